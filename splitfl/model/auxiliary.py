"""Auxiliary networks: small heads that give an inner stage a loss of its own.

    activation of the stage ──> next stage
              └─> auxiliary network ──> output like the model's ──> loss

A head is part of its stage: its weights are named `auxiliary.STAGE. ...` beside the stage's own, are trained by the
same optimizer and averaged with them. It belongs to no model that comes out of training. (arXiv 2101.09751, section 3,
for the client-side partition; 1901.08164 for every block.)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn

from splitfl.model.crossing import named_leaves
from splitfl.model.errors import CutError
from splitfl.model.heads import HEADS, automatic
from splitfl.model.partition import AUXILIARY, Partition, Stage, is_auxiliary, one_or_all
from splitfl.model.probe import undisturbed

Build = str | Callable[[Any, Any], Any]
"""A name of `HEADS`, or a function (activation, output) -> module, given two samples of each."""


def with_auxiliaries(
    partition: Partition,
    stages: Iterable[int],
    *,
    build: Build,
    share: float,
    seeds: Callable[[int], int],
    frozen: bool = False,
) -> Partition:
    """`partition` with an auxiliary network at each of `stages`; the last stage needs none.

    `share` is that of an automatic head's parameters in its stage's, `seeds` gives the seed of a head's initial
    weights by stage; `frozen` heads are not trained with their stages. Raises CutError where no head fits, or a head of
    the user's gives another output than the model.
    """
    wanted = set(stages) - {len(partition.stages) - 1}
    if not wanted:
        return partition
    _require_free_name(partition)
    activations, output = _examples(partition)
    made = list(partition.stages)
    for index in sorted(wanted):
        activation = activations[index]
        with torch.random.fork_rng():
            torch.manual_seed(seeds(index))
            head = _build(build, activation, output, int(share * _trainable(made[index])))
        _check(head, activation, output, stage=index)
        made[index] = _attached(made[index], head.requires_grad_(not frozen))
    return replace(partition, stages=tuple(made))


def _require_free_name(partition: Partition) -> None:
    taken = [name for name in partition.original if is_auxiliary(name)]
    if taken:
        raise CutError(f"{taken[0]!r}: the model has a part named {AUXILIARY!r}, expected that name to be free")


def _examples(partition: Partition) -> tuple[list[Any], Any]:
    """Two samples of what leaves each stage (a tensor, or a dict of several), and of the model's output."""
    values, activations, result = partition.example, [], None
    for stage in partition.stages:
        with undisturbed(stage.module), torch.no_grad():
            result = stage.apply(stage.module, values)
        values = {name: tensor.detach() for name, tensor in stage.name_outputs(result).items()}
        activations.append(one_or_all(values))
    return activations, result


def _trainable(stage: Stage) -> int:
    return sum(parameter.numel() for parameter in stage.module.parameters() if parameter.requires_grad)


def _build(build: Build, activation: Any, output: Any, budget: int) -> nn.Module:
    if isinstance(build, str):
        if build not in HEADS:
            raise CutError(f"auxiliary = {build!r}, expected one of {', '.join(HEADS)}, or a function")
        head = automatic(build, activation, output, budget)
    else:
        head = build(activation, output)
    if not isinstance(head, nn.Module):
        raise CutError(f"auxiliary: the function gives {type(head).__name__}, expected a torch.nn.Module")
    leaves = [leaf for _, leaf in named_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    return head.to(leaves[0]) if leaves else head


def _check(head: nn.Module, activation: Any, output: Any, *, stage: int) -> None:
    """Raise CutError unless `head` makes an output like the model's of the activation."""
    try:
        with undisturbed(head), torch.no_grad():
            made = head(activation)
    except Exception as error:
        raise CutError(f"auxiliary network of stage {stage} fails on {_shapes(activation)}: {error}") from error
    if _shapes(made) != _shapes(output):
        raise CutError(f"auxiliary network of stage {stage} gives {_shapes(made)}, expected {_shapes(output)}")


def _shapes(value: Any) -> str:
    parts = [tuple(leaf.shape) for _, leaf in named_leaves(value) if isinstance(leaf, torch.Tensor)]
    return ", ".join(map(str, parts))


def _attached(stage: Stage, head: nn.Module) -> Stage:
    """The stage with one more output, the auxiliary network's; it is looked at by the loss and never sent."""
    body: fx.GraphModule = stage.module  # type: ignore[assignment]
    root = copy.deepcopy(body)
    name = f"{AUXILIARY}.{stage.index}"
    root.add_module(AUXILIARY, nn.ModuleDict({str(stage.index): head}))
    graph = fx.Graph()
    sent: dict[str, Any] = dict(graph.graph_copy(body.graph, {}))  # type: ignore[arg-type]
    graph.output({**sent, AUXILIARY: graph.call_module(name, (one_or_all(sent),))})
    module = fx.GraphModule(root, graph, class_name=f"Stage{stage.index}")
    module.train(body.training)
    saved = tuple(module.state_dict())
    trained = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    return replace(
        stage,
        module=module,
        parameters=tuple(name for name in saved if name in trained),
        buffers=tuple(name for name in saved if name not in trained),
        random=True,  # a head of the user's may draw; to seed a forward that does not is harmless
    )
