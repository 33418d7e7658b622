"""The proof that a schedule is the algorithm that its topology states: coverage, then the walk.

The walk alone lets pass what can still be carried out but is another algorithm: a micro-batch that is missing
altogether, a step that is never taken. Coverage counts them.
"""

from __future__ import annotations

from collections.abc import Iterator

from splitfl.schedule.error import ScheduleError
from splitfl.schedule.instruction import Instruction, Op, Schedule
from splitfl.schedule.topology import Topology
from splitfl.schedule.walk import Walk, walk

Places = list[tuple[str, int]]
Part = tuple[int, int | None, int, int]
"""Stage, client, micro-batch and chunk."""


def check(schedule: Schedule, topology: Topology) -> Walk:
    """Prove that `schedule` carries out `topology` exactly, and return the walk that did.

    Every stage, client (a merged stage: all together), micro-batch and chunk has `steps` forwards and `steps` backwards
    (one B, or I and W); every replica takes `steps` optimizer steps; every aggregated stage is averaged once and loaded
    once per client; every instruction is on the actor where its stage is placed; and the whole can be carried out
    (`walk`). Raises ScheduleError naming the place.
    """
    found: dict[Instruction, Places] = {}
    for actor, program in schedule.items():
        if actor not in topology.actors:
            raise ScheduleError(f"unknown actor {actor!r}, expected one of {', '.join(topology.actors)}")
        for position, instruction in enumerate(program):
            problem = _misplaced(actor, instruction, topology)
            if problem:
                raise ScheduleError(problem, actor=actor, position=position, instruction=instruction)
            if instruction.op is not Op.SEND and instruction.op is not Op.RECV:
                found.setdefault(instruction, []).append((actor, position))
    for expected, times in _required(topology):
        _count(expected, found.get(expected, []), times, topology)
    for stage, client, micro, chunk in _parts(topology):
        if stage in topology.trained:
            _count_backwards(found, (stage, client, micro, chunk), topology)
    return walk(schedule, topology)


def _misplaced(actor: str, instruction: Instruction, topology: Topology) -> str | None:
    """What is wrong with seeing this instruction on this actor, or None."""
    op, stage, client, micro, chunk, kind, peer = instruction
    if not 0 <= stage < topology.stages:
        return f"unknown stage {stage}, expected 0 to {topology.last}"
    if client is not None and client not in topology.clients:
        return f"unknown client {client}, expected one of {', '.join(map(str, topology.clients))}"
    together = client is None and stage in topology.merged
    if client is None and micro is not None and kind is None and not together:
        return "names no client"
    if micro is not None and micro not in topology.micro(client):
        return f"unknown micro-batch {micro} of client {client}"
    if not 0 <= chunk < topology.chunks:
        return f"unknown chunk {chunk}, expected 0 to {topology.chunks - 1}"
    if op is Op.SEND or op is Op.RECV:
        known = peer in topology.actors and peer != actor
        return None if known else f"{peer!r} is no other actor, expected one of {', '.join(topology.actors)}"
    if op in (Op.AGGREGATE, Op.LOAD) and stage not in topology.aggregated:
        return f"stage {stage} is not aggregated"
    if op is Op.AGGREGATE:
        home = topology.aggregator
    elif client is not None:
        home = topology.actor(stage, client)
    elif together or (op is Op.STEP and stage in topology.joint):
        home = topology.placement[stage]
    else:
        return "names no client"
    if op is Op.STEP and client is not None and stage in topology.joint:
        return f"stage {stage} takes one joint step for all clients: {stage}U"
    if client is not None and stage in topology.merged:
        return f"stage {stage} computes for all clients together: {instruction._replace(client=None)}"
    if micro is None and op in (Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT, Op.STORE):
        return "names no micro-batch"
    if (op is Op.STORE) != (stage in topology.stored):
        return f"stage {stage} {'learns' if op is Op.STORE else 'only keeps what arrives'}"
    if stage in topology.frozen and op not in (Op.FORWARD, Op.LOAD, Op.AGGREGATE):
        return f"stage {stage} is frozen: it only runs forward"
    return None if home == actor else f"belongs on {home}"


def _required(topology: Topology) -> Iterator[tuple[Instruction, int]]:
    """Every instruction that must be there, backwards aside, with how often."""
    for stage, client, micro, chunk in _parts(topology):
        op = Op.STORE if stage in topology.stored else Op.FORWARD
        yield Instruction(op, stage, client, micro, chunk), topology.steps
    for stage in topology.trained:
        for owner in (None,) if stage in topology.joint else topology.clients:
            yield Instruction(Op.STEP, stage, owner), topology.steps
    for stage in sorted(topology.aggregated):
        yield Instruction(Op.AGGREGATE, stage), 1
        for client in topology.clients:
            yield Instruction(Op.LOAD, stage, client), 1


def _parts(topology: Topology) -> Iterator[Part]:
    for stage in range(topology.stages):
        for owner in topology.owners(stage):
            for micro in topology.micro(owner):
                for chunk in range(topology.chunks):
                    yield stage, owner, micro, chunk


def _count(expected: Instruction, places: Places, times: int, topology: Topology) -> None:
    if len(places) > times:
        actor, position = places[times]
        problem = f"comes {len(places)} times, expected {times}"
        raise ScheduleError(problem, actor=actor, position=position, instruction=expected)
    if len(places) < times:
        problem = f"{expected} is missing: {len(places)} of {times} found"
        raise ScheduleError(problem, actor=_home(expected, topology))


def _count_backwards(found: dict[Instruction, Places], part: Part, topology: Topology) -> None:
    full, inputs, weights = (Instruction(op, *part) for op in (Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT))
    starts = found.get(full, []) + found.get(inputs, [])
    if len(starts) > topology.steps:
        actor, position = starts[-1]
        name = inputs if inputs in found else full
        problem = f"is one backward too many: {len(starts)}, expected {topology.steps}"
        raise ScheduleError(problem, actor=actor, position=position, instruction=name)
    if len(starts) < topology.steps:
        problem = f"{full} (or {inputs} and {weights}) is missing: {len(starts)} of {topology.steps} found"
        raise ScheduleError(problem, actor=_home(full, topology))
    _count(weights, found.get(weights, []), len(found.get(inputs, [])), topology)


def _home(instruction: Instruction, topology: Topology) -> str:
    """The actor on which an instruction is expected."""
    if instruction.op is Op.AGGREGATE:
        return topology.aggregator
    client = topology.clients[0] if instruction.client is None else instruction.client
    return topology.actor(instruction.stage, client)
