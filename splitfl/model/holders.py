"""A stage taken apart by its inputs: each part is what one holder of features computes.

    bank  -> conv, relu --.
                           }-- cut -- the tail joins them
    shop  -> linear ------'

A value belongs to the input that it depends on, so a model needs no change for vertical splitting: its `forward` takes
one input per holder, and joins what becomes of them after the cut.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from operator import getitem
from typing import Any

import torch
from torch import fx

from splitfl.model.errors import CutError
from splitfl.model.partition import Stage


def holders(stage: Stage) -> tuple[Stage, ...]:
    """The parts of the first stage of a partition, one for each of its inputs, in the order of the inputs.

    A part has the weights that its values need, under the whole model's names. Raises CutError where a value that
    crosses the cut depends on several inputs or on none, an input reaches no cut, or two parts share weights.
    """
    if not isinstance(stage.module, fx.GraphModule):
        raise CutError(
            "the model is not cut: expected a cut after the last layer that sees the input of one holder only"
        )
    owners = _owners(stage)
    parts = tuple(_part(stage, port.name, owners) for port in stage.inputs)
    _require_own_weights(parts)
    return parts


def _owners(stage: Stage) -> Mapping[str, str]:
    """The input that each output depends on."""
    module: Any = stage.module
    needs = _needs(module.graph)
    found: dict[str, str] = {}
    for name, node in _outputs(module.graph).items():
        inputs = needs[node] if isinstance(node, fx.Node) else frozenset()
        if len(inputs) != 1:
            joined = f"is made of {', '.join(sorted(inputs))}" if inputs else "is made of no input"
            raise CutError(
                f"{name!r}, which crosses the cut, {joined}, expected one input: choose a cut before they are joined"
            )
        (found[name],) = inputs
        if _takes(node):
            raise CutError(f"input {name!r} crosses the cut as it is: choose a cut after its own layers")
    for port in stage.inputs:
        if port.name not in found.values():
            raise CutError(f"nothing of input {port.name!r} crosses the cut: choose a cut after its own layers")
    return found


def _needs(graph: fx.Graph) -> dict[fx.Node, frozenset[str]]:
    """The inputs that each node depends on: on their values, and not on how many samples there are."""
    needs: dict[fx.Node, frozenset[str]] = {}
    for node in graph.nodes:
        found: set[str] = set().union(*(needs[given] for given in node.all_input_nodes))
        needs[node] = frozenset({node.args[1]} if _takes(node) else () if _counts_samples(node) else found)
    _place_counters(graph, needs)
    return needs


def _place_counters(graph: fx.Graph, needs: dict[fx.Node, frozenset[str]]) -> None:
    """A buffer that counts on its own (BatchNorm's, in torch.export) belongs to the inputs that its module sees."""
    seen: dict[str, frozenset[str]] = {}
    for node in graph.nodes:
        for parent in _modules_of(node):
            seen[parent] = seen.get(parent, frozenset()) | needs[node]
    for node in graph.nodes:
        if not needs[node] and not node.users and node.op != "output":
            needs[node] = frozenset().union(*(seen[parent] for parent in _modules_of(node)))


def _modules_of(node: fx.Node) -> set[str]:
    """Paths of the modules whose weights and buffers a node takes one by one."""
    return {str(given.target).rpartition(".")[0] for given in node.all_input_nodes if given.op == "get_attr"}


def _counts_samples(node: fx.Node) -> bool:
    """Whether `node` is the number of samples of an input, which is the same for all: torch.export asks only one."""
    return bool(node.target is torch.ops.aten.sym_size.int and _takes(node.args[0]) and node.args[1] == 0)


def _takes(node: Any) -> bool:
    """Whether `node` is an input itself."""
    if not isinstance(node, fx.Node) or node.target is not getitem:
        return False
    return isinstance(node.args[0], fx.Node) and node.args[0].op == "placeholder"


def _outputs(graph: fx.Graph) -> dict[str, Any]:
    (output,) = graph.find_nodes(op="output")
    return dict(output.args[0])


def _part(stage: Stage, name: str, owners: Mapping[str, str]) -> Stage:
    module: Any = copy.deepcopy(stage.module)
    graph = module.graph
    needs = _needs(graph)
    own = next(node for node in graph.nodes if _takes(node) and node.args[1] == name)
    for node in graph.nodes:
        if _counts_samples(node):
            node.args = (own, 0)
    (output,) = graph.find_nodes(op="output")
    output.args = ({key: node for key, node in output.args[0].items() if owners[key] == name},)
    for node in reversed(graph.nodes):
        if node.op != "output" and not node.users and needs[node] - {name}:
            graph.erase_node(node)
    graph.eliminate_dead_code()
    module.delete_all_unused_submodules()
    module.recompile()
    saved = set(module.state_dict())
    return replace(
        stage,
        module=module,
        inputs=tuple(port for port in stage.inputs if port.name == name),
        outputs=tuple(port for port in stage.outputs if owners[port.name] == name),
        parameters=tuple(each for each in stage.parameters if each in saved),
        buffers=tuple(each for each in stage.buffers if each in saved),
    )


def _require_own_weights(parts: Iterable[Stage]) -> None:
    held: dict[str, str] = {}
    for part in parts:
        name = part.inputs[0].name
        for weight in part.state_names:
            if weight in held:
                raise CutError(
                    f"{weight!r} is used for input {held[weight]!r} and again for {name!r}: every holder needs layers "
                    "of its own before the cut"
                )
            held[weight] = name
