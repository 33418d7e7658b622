"""Putting in the messages: from what is computed where to who sends what to whom.

A generator writes compute instructions only. Where a value is made on one actor and consumed on another, `lower` puts
a SEND right after the instruction that makes it and a RECV right before the one that consumes it, as JaxPP infers its
sends from the task graph (arXiv 2412.14374, section 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from splitfl.schedule.error import ScheduleError
from splitfl.schedule.instruction import Instruction, Op, Program, Schedule, Value, effects, initial_values
from splitfl.schedule.text import MOVABLE
from splitfl.schedule.topology import Topology

AT_START = -1
"""The position of what an actor holds before its first instruction."""


class _Place(NamedTuple):
    actor: str
    position: int


def lower(
    schedule: Schedule, topology: Topology, *, initial: Mapping[Value, str] | None = None
) -> dict[str, tuple[Instruction, ...]]:
    """`schedule` with a SEND and a RECV for every value that changes hands.

    A value that is made anew in every mini-batch moves each time; weights move once, after their last use; what the
    aggregator holds at the start (`initial`, by default `initial_values(topology)`) is sent at the start. A schedule
    that is lowered already comes back unchanged. Raises ScheduleError, naming the place, where a value is needed that
    nobody makes, or that cannot travel.
    """
    start = initial_values(topology) if initial is None else initial
    made: dict[Value, list[_Place]] = {}
    wanted: dict[Value, list[_Place]] = {}
    for actor, program in schedule.items():
        held = {value: AT_START for value, holder in start.items() if holder == actor}
        spare, lacking = _loose_ends(program, topology, held)
        for value, position in spare:
            made.setdefault(value, []).append(_Place(actor, position))
        for value, position in lacking:
            wanted.setdefault(value, []).append(_Place(actor, position))
    sends: dict[_Place, list[Instruction]] = {}
    recvs: dict[_Place, list[Instruction]] = {}
    for value, needs in wanted.items():
        for need, source in zip(needs, _sources(schedule, value, needs, made.get(value, [])), strict=True):
            sends.setdefault(source, []).append(_move(Op.SEND, value, need.actor))
            recvs.setdefault(need, []).append(_move(Op.RECV, value, source.actor))
    return {actor: _woven(actor, program, sends, recvs) for actor, program in schedule.items()}


def _loose_ends(
    program: Program, topology: Topology, held: dict[Value, int]
) -> tuple[list[tuple[Value, int]], list[tuple[Value, int]]]:
    """What `program` makes without consuming it, and what it consumes without having made it, with positions."""
    spare: list[tuple[Value, int]] = []
    lacking: list[tuple[Value, int]] = []
    for position, instruction in enumerate(program):
        consumes, reads, writes = effects(instruction, topology)
        for value in consumes:
            if held.pop(value, None) is None:
                lacking.append((value, position))
        held.update(dict.fromkeys((value for value in reads if value in held), position))
        for value in writes:
            if value in held:
                spare.append((value, held[value]))
            held[value] = position
    return spare + list(held.items()), lacking


def _sources(schedule: Schedule, value: Value, needs: list[_Place], made: list[_Place]) -> list[_Place]:
    """Where each need is met: the first by the first that is made, and so on."""
    for number, (actor, position) in enumerate(needs):
        problem = None
        if number >= len(made):
            problem = f"needs {value}, which nobody makes for it"
        elif made[number].actor == actor:
            problem = f"needs {value}, which {actor} makes only later, at position {made[number].position}"
        elif value.kind not in MOVABLE:
            problem = f"needs {value}, which is made on {made[number].actor}, and a {value.kind} cannot travel"
        elif actor != needs[0].actor or made[number].actor != made[0].actor:
            problem = f"needs {value}, which more than one actor makes or consumes"
        if problem:
            raise ScheduleError(problem, actor=actor, position=position, instruction=schedule[actor][position])
    return made[: len(needs)]


def _move(op: Op, value: Value, peer: str) -> Instruction:
    return Instruction(op, value.stage, value.client, value.micro_batch, value.chunk, value.kind, peer)


def _woven(
    actor: str,
    program: Program,
    sends: Mapping[_Place, list[Instruction]],
    recvs: Mapping[_Place, list[Instruction]],
) -> tuple[Instruction, ...]:
    woven = list(sends.get(_Place(actor, AT_START), ()))
    for position, instruction in enumerate(program):
        here = _Place(actor, position)
        woven += (*recvs.get(here, ()), instruction, *sends.get(here, ()))
    return tuple(woven)
