"""Where a model can be cut, and what each cut would cost."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx, nn

from splitfl.model.boundary import Division, divide, node_crossings, uses
from splitfl.model.crossing import Port
from splitfl.model.errors import CutError
from splitfl.model.flops import flops_by_node
from splitfl.model.places import Places, places
from splitfl.model.probe import SMALL, training_copy
from splitfl.model.record import Analysis, analyze
from splitfl.model.signature import Batch, rows, signature
from splitfl.model.trace import How


@dataclass(frozen=True, slots=True, kw_only=True)
class CutInfo:
    """One lawful cut; pairs are (before, after).

    aliases     other names of the same place
    parameters  numbers of trainable and frozen weights
    flops       of a forward, per sample
    tensors     number of tensors that cross, of which `bytes` per sample and `fixed_bytes` per micro-batch
    gradient_bytes  per sample, of those that have a gradient
    uncounted   operations of the model that `flops` leaves out
    """

    place: str
    aliases: tuple[str, ...]
    parameters: tuple[int, int]
    flops: tuple[float, float]
    tensors: int
    bytes: int
    fixed_bytes: int
    gradient_bytes: int
    uncounted: tuple[str, ...]


def possible_cuts(model: nn.Module, example_input: Batch, *, method: How = "auto") -> list[CutInfo]:
    """Every place at which `model` can be cut, in the order of execution; one entry for places that coincide.

    Raises ShapeError and CutError as `partition` does where the model does not run or cannot be traced at all.
    """
    found = signature(model, example_input)
    values = found.bind(example_input)
    analysis = analyze(training_copy(model), found, values, method=method)
    spent, uncounted = flops_by_node(analysis.trace, rows(values, SMALL))
    lawful: dict[frozenset[fx.Node], list[str]] = {}
    divisions: dict[frozenset[fx.Node], tuple[Division, list[Port]]] = {}
    for position, names in _by_position(places(analysis.trace), analysis).items():
        try:
            division = divide(analysis, (position,), names[:1])
            ports = [crossing.port for node in division.boundaries[0] for crossing in node_crossings(analysis, node)]
        except CutError:
            continue
        front = frozenset(node for node in analysis.trace.computed if division.stage_of[node] == 0)
        lawful.setdefault(front, []).extend(names)
        divisions[front] = division, ports
    return [_described(names, analysis, *divisions[front], spent, uncounted) for front, names in lawful.items()]


def _by_position(found: Places, analysis: Analysis) -> dict[int, list[str]]:
    """Names of each position, the outermost module first; a node that is a module's call has the module's name."""
    calls = {node.name for node in analysis.trace.computed if node.op == "call_module"}
    grouped: dict[int, list[str]] = {}
    for name, position in found.positions.items():
        if name not in calls or name.split("@")[0] in found.modules:
            grouped.setdefault(position, []).append(name)
    for names in grouped.values():
        names.sort(key=lambda name: (name.split("@")[0] not in found.modules, name.count("."), len(name)))
    return grouped


def _described(
    names: list[str],
    analysis: Analysis,
    division: Division,
    ports: list[Port],
    spent: dict[fx.Node, int],
    uncounted: tuple[str, ...],
) -> CutInfo:
    flops = [0.0, 0.0]
    for node in analysis.trace.computed:
        flops[division.stage_of[node]] += spent[node] / SMALL
    return CutInfo(
        place=names[0],
        aliases=tuple(names[1:]),
        parameters=_parameters(analysis, division),
        flops=(flops[0], flops[1]),
        tensors=len(ports),
        bytes=sum(port.bytes for port in ports if port.batched),
        fixed_bytes=sum(port.bytes for port in ports if not port.batched),
        gradient_bytes=sum(port.bytes for port in ports if port.batched and port.requires_grad),
        uncounted=uncounted,
    )


def _parameters(analysis: Analysis, division: Division) -> tuple[int, int]:
    known = {id(parameter) for parameter in analysis.trace.model.parameters()}
    owned = {
        id(tensor): (stage, tensor.numel())
        for _, stage, _, tensor in uses(analysis.trace, division.stage_of)
        if id(tensor) in known
    }
    before, after = (sum(count for stage, count in owned.values() if stage == side) for side in (0, 1))
    return before, after
