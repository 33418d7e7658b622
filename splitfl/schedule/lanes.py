"""What one actor may do at the same time.

A server that serves three clients has one program, but nothing makes client 2 wait for client 0 unless they meet at
a shared stage. So a program is split into lanes, one per client, which run concurrently, each in program order:

    program   1F0.0 1B0.0 1F1.0 1B1.0 1U0 1U1 0R0(params:c0) 0R1(params:c1) 0A
    lane 0    1F0.0 1B0.0 1U0 0R0 ----.
    lane 1    1F1.0 1B1.0 1U1 0R1 ----+-> waits for both
    joint                             0A

Where lanes meet, program order holds, so that a seed decides the bits: on a stage with a single replica every compute
instruction waits for the one before it, and an instruction that concerns all clients waits for each of them. One that
computes for all of them at a merged stage takes what came from the stage below, and gives gradients back there: it
meets the lanes at both stages.
"""

from __future__ import annotations

from typing import NamedTuple

from splitfl.schedule.instruction import Instruction, Op, Program
from splitfl.schedule.topology import Topology

PRIORITY = {op: rank for rank, op in enumerate((Op.SEND, Op.RECV, Op.BACKWARD_INPUT, Op.BACKWARD, Op.FORWARD))}
"""What goes first when several lanes have work: what another actor waits for, before what nobody does."""

LAST = len(PRIORITY)
"""The priority of every operation that `PRIORITY` does not list."""


class Entry(NamedTuple):
    """An instruction of a lane: its position in the program, and the positions in other lanes that it waits for."""

    position: int
    instruction: Instruction
    after: tuple[int, ...] = ()


def lane(instruction: Instruction) -> int | None:
    """The lane of an instruction: its client, or None when it concerns all clients together."""
    return None if instruction.op is Op.AGGREGATE else instruction.client


def _touched(instruction: Instruction, topology: Topology) -> tuple[int, ...]:
    """The stages at which an instruction that concerns all clients meets those of single ones."""
    stage = instruction.stage
    enters = stage in topology.merged and stage > 0 and stage - 1 not in topology.merged
    return (stage, stage - 1) if enters and instruction.micro_batch is not None else (stage,)


def lanes(program: Program, topology: Topology) -> dict[int | None, tuple[Entry, ...]]:
    """The lanes of one actor's program, by client id (None: joint instructions), in order of first appearance.

    Within a lane instructions follow one another; across lanes an entry waits for the entries in its `after`. An entry
    that is implied by an earlier wait of the same lane is left out.
    """
    split: dict[int | None, list[Entry]] = {}
    latest: dict[int, dict[int | None, int]] = {}  # stage -> lane -> position of its last instruction there
    joint: dict[int, int] = {}  # stage -> position of its last joint instruction
    shared: dict[int, tuple[int | None, int]] = {}  # shared stage -> lane and position of its last computation
    waited: dict[tuple[int | None, int | None], int] = {}  # lane, other lane -> position already waited for
    for position, instruction in enumerate(program):
        own, stage = lane(instruction), instruction.stage
        meets: list[tuple[int | None, int]] = []
        touched = _touched(instruction, topology) if own is None else (stage,)
        if own is None:
            meets += (meeting for each in touched for meeting in latest.get(each, {}).items())
        elif stage in joint:
            meets.append((None, joint[stage]))
        if stage in topology.shared and instruction.op is not Op.SEND and instruction.op is not Op.RECV:
            if stage in shared:
                meets.append(shared[stage])
            shared[stage] = (own, position)
        after = set()
        for other, earlier in meets:
            if other != own and waited.get((own, other), -1) < earlier:
                waited[own, other] = earlier
                after.add(earlier)
        for each in touched:
            latest.setdefault(each, {})[own] = position
            if own is None:
                joint[each] = position
        split.setdefault(own, []).append(Entry(position, instruction, tuple(sorted(after))))
    return {key: tuple(entries) for key, entries in split.items()}
