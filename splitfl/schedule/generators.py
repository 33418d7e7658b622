"""The built-in generators by name, and the way from a generator to a schedule that is proved."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from splitfl.schedule.aggregation import federate
from splitfl.schedule.check import check
from splitfl.schedule.federated import sequential
from splitfl.schedule.instruction import Instruction, Schedule
from splitfl.schedule.local import decoupled
from splitfl.schedule.looped import breadth_first, interleaved
from splitfl.schedule.lower import lower
from splitfl.schedule.pipar import pipar, pipar_1f1b
from splitfl.schedule.pipeline import gpipe, one_f_one_b
from splitfl.schedule.sequence import seq_1f1b
from splitfl.schedule.topology import Topology
from splitfl.schedule.zero_bubble import zb_h1, zb_h2

Generator = Callable[[Topology], Schedule]
"""Topology in, compute instructions of one mini-batch per actor out; pure."""

GENERATORS: dict[str, Generator] = {
    "sequential": sequential,
    "decoupled": decoupled,
    "pipar": pipar,
    "pipar-1f1b": pipar_1f1b,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "breadth-first": breadth_first,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
    "seq-1f1b": seq_1f1b,
}
"""The built-in generators."""


def generator(name: str) -> Generator:
    """The built-in generator called `name`. Raises ValueError listing the names."""
    if name not in GENERATORS:
        close = get_close_matches(name, GENERATORS, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"schedule = {name!r}, expected one of {', '.join(GENERATORS)}{hint}")
    return GENERATORS[name]


def build(generate: Generator, topology: Topology) -> dict[str, tuple[Instruction, ...]]:
    """The whole round that `generate` makes of `topology`: federated, lowered and checked.

    Without aggregation and with one step that is the mini-batch itself. Raises ScheduleError where the generator is
    wrong.
    """
    schedule = lower(federate(generate(topology), topology), topology)
    check(schedule, topology)
    return schedule
