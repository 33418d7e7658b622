"""Which stage each operation belongs to, what crosses each cut, and whether the cut is lawful."""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from splitfl.model.crossing import Crossing, crossings, named_leaves, storage
from splitfl.model.errors import CutError
from splitfl.model.probe import LARGE, SMALL
from splitfl.model.record import Analysis
from splitfl.model.trace import COMPUTE, Trace

SHAPE_METHODS = ("size", "dim", "ndimension")
SHAPE_ATTRIBUTES = ("shape", "ndim", "dtype", "device")


@dataclass(frozen=True, slots=True, eq=False)
class Division:
    """The stage of every node, and for each cut the nodes whose values cross it."""

    stage_of: dict[fx.Node, int]
    boundaries: tuple[tuple[fx.Node, ...], ...]

    @property
    def last(self) -> int:
        """Index of the last stage."""
        return len(self.boundaries)


def divide(analysis: Analysis, positions: Sequence[int], cuts: Sequence[str]) -> Division:
    """Divide the graph at `positions`; `cuts` are the places' names, for the messages.

    Raises CutError for a stage without an operation and for weights or modules on both sides of a cut.
    """
    stage_of = _assign(analysis, positions)
    busy = {stage_of[node] for node in analysis.trace.computed}
    for stage in range(len(positions) + 1):
        if stage not in busy:
            where = f"after {cuts[stage - 1]!r}" if stage else "before it"
            raise CutError(f"cuts = {list(cuts)}: nothing is left to compute for stage {stage}, {where}")
    _require_one_owner(analysis, stage_of)
    boundaries = tuple(_crossing_nodes(analysis.trace.graph, stage_of, stage) for stage in range(len(positions)))
    division = Division(stage_of, boundaries)
    for stage in range(len(positions)):
        _require_no_alias(analysis, division, stage)
    return division


def _assign(analysis: Analysis, positions: Sequence[int]) -> dict[fx.Node, int]:
    stage_of: dict[fx.Node, int] = {}
    for index, node in enumerate(analysis.trace.graph.nodes):
        if node.op in COMPUTE:
            stage_of[node] = bisect_right(positions, index)
        elif node.op == "placeholder":
            stage_of[node] = 0
        elif node.op == "output":
            stage_of[node] = len(positions)
    for node in analysis.trace.computed:
        if _updates_buffer(node):
            inputs = [stage_of[given] for given in node.all_input_nodes if given in stage_of]
            stage_of[node] = max(inputs, default=stage_of[node])
        base = node.all_input_nodes[0] if len(node.all_input_nodes) == 1 else None
        if base in stage_of and _belongs_with(node, base, analysis, stage_of):
            stage_of[node] = stage_of[base]
    return stage_of


def _updates_buffer(node: fx.Node) -> bool:
    """Whether `node` only writes into a buffer: torch.export leaves that to the end, it belongs with the new value."""
    first = node.args[0] if node.args else None
    return not node.users and isinstance(first, fx.Node) and first.op == "get_attr"


def _belongs_with(node: fx.Node, base: fx.Node, analysis: Analysis, stage_of: dict[fx.Node, int]) -> bool:
    """Whether `node` only looks into `base`, so that it is cheaper to do that before the cut.

    A part of a tuple crosses rather than the whole of it, and a shape rather than a tensor that nobody else needs.
    """
    if not isinstance(analysis.small.values[base], torch.Tensor):
        return node.op == "call_function" and node.target in (operator.getitem, getattr)
    later = [user for user in base.users if stage_of[user] > stage_of[base]]
    return _reads_shape(node) and all(map(_reads_shape, later))


def _reads_shape(node: fx.Node) -> bool:
    if node.op == "call_method":
        return node.target in SHAPE_METHODS
    if node.target is getattr:
        return node.args[1] in SHAPE_ATTRIBUTES
    return node.target is torch.ops.aten.sym_size.int


def _crossing_nodes(graph: fx.Graph, stage_of: dict[fx.Node, int], stage: int) -> tuple[fx.Node, ...]:
    return tuple(
        node
        for node in graph.nodes
        if stage_of.get(node, stage + 1) <= stage and any(stage_of[user] > stage for user in node.users)
    )


def node_crossings(analysis: Analysis, node: fx.Node) -> tuple[Crossing, ...]:
    """How the value of `node` crosses a cut; CutError where it cannot."""
    name = node.name
    if node.op == "placeholder":  # torch.fx renames an input called `input`, the port keeps the model's name
        name = analysis.signature.names[analysis.trace.inputs.index(node)]
    return crossings(name, analysis.small.values[node], analysis.large.values[node], batches=(SMALL, LARGE))


def writes_after(analysis: Analysis, division: Division, stage: int) -> set[int]:
    """Addresses of memory that a stage after `stage` changes in place."""
    return {address for node, address in analysis.small.writes if division.stage_of.get(node, 0) > stage and address}


def _require_no_alias(analysis: Analysis, division: Division, stage: int) -> None:
    """Two views of the same memory become two tensors; later writes into one would not be seen in the other."""
    written = writes_after(analysis, division, stage)
    first: dict[int, str] = {}
    for node in division.boundaries[stage]:
        for _, leaf in named_leaves(analysis.small.values[node]):
            address = storage(leaf) if isinstance(leaf, torch.Tensor) else 0
            if address in written and first.setdefault(address, node.name) != node.name:
                raise CutError(
                    f"values {first[address]!r} and {node.name!r} share memory that is changed in place after the cut: "
                    "cut elsewhere"
                )


def _require_one_owner(analysis: Analysis, stage_of: dict[fx.Node, int]) -> None:
    traced = analysis.trace
    parameters = {id(tensor) for tensor in traced.model.parameters()}
    changed = {id(buffer) for name, buffer in traced.model.named_buffers() if name in analysis.small.changed}
    owners: dict[int, tuple[int, str]] = {}
    for node, stage, name, tensor in uses(traced, stage_of):
        if id(tensor) not in parameters | changed:
            continue
        owner, first = owners.setdefault(id(tensor), (stage, name))
        if owner == stage:
            continue
        names = sorted({first, name, *_aliases(traced, tensor)})
        if len(names) > 1:
            raise CutError(
                f"{' and '.join(map(repr, names))} are the same weights, but stage {owner} and stage {stage} "
                "would each hold them: choose a cut that leaves both on one side"
            )
        raise CutError(
            f"{names[0]!r} is used by stage {owner} and again by stage {stage} (in {node.name!r}): "
            "choose a cut that leaves both uses on one side"
        )


def uses(traced: Trace, stage_of: dict[fx.Node, int]) -> Iterator[tuple[fx.Node, int, str, Any]]:
    """(node, stage, name, tensor) for every parameter and buffer that a stage uses."""
    for node in traced.graph.nodes:
        if node.op == "call_module":
            module = traced.model.get_submodule(str(node.target))
            named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
            for name, tensor in named:
                yield node, stage_of[node], f"{node.target}.{name}", tensor
        elif node.op == "get_attr":
            value = operator.attrgetter(str(node.target))(traced.model)
            for user in node.users:
                yield user, stage_of[user], str(node.target), value


def _aliases(traced: Trace, tensor: Any) -> list[str]:
    named = (
        *traced.model.named_parameters(remove_duplicate=False),
        *traced.model.named_buffers(remove_duplicate=False),
    )
    return [name for name, value in named if value is tensor]
