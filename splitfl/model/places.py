"""Names for the places where a model can be cut: modules by their path, functional code by its node's name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx, nn

from splitfl.model.errors import CutError
from splitfl.model.trace import COMPUTE, Trace

SHOWN = 8


@dataclass(frozen=True, slots=True)
class Places:
    """The places of a trace, each with the number of graph nodes before its cut.

    A module's place is after its last operation. A module that is called several times has one place per call,
    `relu@0`, `relu@1`; its bare path is `ambiguous`. A module's path goes before a node of the same name.
    """

    positions: dict[str, int]
    ambiguous: dict[str, tuple[str, ...]]
    modules: frozenset[str]


def places(traced: Trace) -> Places:
    """Every place of a trace, in the order of execution."""
    calls: dict[str, dict[str, int]] = {}
    positions: dict[str, int] = {}
    for position, node in enumerate(traced.graph.nodes, start=1):
        if node.op not in COMPUTE:
            continue
        positions[node.name] = position
        for key, path in _stack(node):
            calls.setdefault(path, {})[key] = position
    ambiguous = {}
    for path, ends in calls.items():
        if len(ends) == 1:
            positions[path] = next(iter(ends.values()))
        else:
            ambiguous[path] = tuple(f"{path}@{index}" for index in range(len(ends)))
            positions.pop(path, None)
            positions.update(zip(ambiguous[path], ends.values(), strict=True))
    ordered = dict(sorted(positions.items(), key=lambda item: item[1]))
    return Places(ordered, ambiguous, frozenset(calls))


def _stack(node: fx.Node) -> list[tuple[str, str]]:
    """The module calls around a node, outermost first: a key for the call, and the module's path."""
    stack = node.meta.get("nn_module_stack") or {}
    found = [(str(key), str(entry[0]).split("@")[0]) for key, entry in stack.items()]
    return [(key, path) for key, path in found if path and not path.startswith("_empty_nn_module_stack")]


def locate(cuts: Sequence[str], found: Places, model: nn.Module) -> tuple[int, ...]:
    """The positions of `cuts`; CutError where one is unknown or ambiguous, or they are not in ascending order."""
    positions = [_position(cut, found, model) for cut in cuts]
    if len(set(cuts)) != len(cuts):
        twice = next(cut for index, cut in enumerate(cuts) if cut in cuts[:index])
        raise CutError(f"cuts = {list(cuts)}: {twice!r} is there twice")
    if positions != sorted(positions):
        ordered = [cut for _, cut in sorted(zip(positions, cuts, strict=True))]
        raise CutError(f"cuts = {list(cuts)} are not in the order of execution, expected {ordered}")
    return tuple(positions)


def _position(cut: str, found: Places, model: nn.Module) -> int:
    if cut in found.ambiguous:
        calls = found.ambiguous[cut]
        raise CutError(f"cut = {cut!r}: that module is called {len(calls)} times; choose one of {', '.join(calls)}")
    if cut not in found.positions:
        raise CutError(f"cut = {cut!r}: {_why_unknown(cut, found, model)}")
    return found.positions[cut]


def _why_unknown(cut: str, found: Places, model: nn.Module) -> str:
    known = list(found.positions)
    paths = {path for path, _ in model.named_modules()}
    parents = [cut.rsplit(".", depth)[0] for depth in range(1, cut.count(".") + 1)]
    whole = next((parent for parent in parents if parent in found.modules), None)
    if cut in paths and whole:
        why = f"{whole!r} is one unit and cannot be cut inside"
    elif cut in paths:
        why = "that module is not called in the model's forward"
    else:
        why = "no such place in the model"
    close = difflib.get_close_matches(cut, known, n=3, cutoff=0.5)
    meant = f"; did you mean {' or '.join(map(repr, close))}? Places" if close else "; places"
    step = max(1, len(known) // SHOWN)
    more = ", ..." if len(known) > SHOWN else ""
    return f"{why}{meant}: {', '.join(known[::step][:SHOWN])}{more}"
