"""From the order of one client's work to the programs of all actors.

A generator only says in which order one client's forwards and backwards go through all stages, as one list that could
be carried out from left to right. `arrange` adds the optimizer steps, lets the clients take turns, and hands every
instruction to the actor where its stage lives; each actor's program is its part of the list, so no order that can be
carried out from left to right can deadlock once it is spread over actors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby, zip_longest

from splitfl.schedule.error import ScheduleError
from splitfl.schedule.instruction import Instruction, Op, Value, effects
from splitfl.schedule.topology import CLIENT, Topology

Order = Callable[[Topology, int], Iterable[Instruction]]
"""Topology and client in; that client's forwards and backwards out, in an order that can be carried out."""


def arrange(topology: Topology, order: Order) -> dict[str, tuple[Instruction, ...]]:
    """The programs of one mini-batch in which every client's work follows `order`.

    With a shared stage that takes a step per client (SplitFed V2), clients go one after the other; else they take
    turns, visit by visit (a visit is what one actor does for one client in one go). At merged stages the visits of all
    clients are one.
    """
    work = [
        [*order(topology, client), *(Instruction(Op.STEP, stage, client) for stage in _own_steps(topology))]
        for client in topology.clients
    ]
    merged = chain(*work) if topology.shared - topology.joint else _in_turn(topology, work)
    programs: dict[str, list[Instruction]] = {actor: [] for actor in topology.actors}
    for instruction in merged:
        programs[_actor(topology, instruction)].append(instruction)
    for stage in sorted(topology.joint):
        programs[topology.placement[stage]].append(Instruction(Op.STEP, stage))
    return {actor: tuple(program) for actor, program in programs.items()}


def weave(orders: Iterable[Iterable[Instruction]], topology: Topology) -> list[Instruction]:
    """Several orders as one that can be carried out: each is kept, and nothing comes before what it needs.

    Raises ScheduleError, naming what waits, where the orders wait for one another.
    """
    waiting = [deque(order) for order in orders]
    there: set[Value] = set()
    woven: list[Instruction] = []
    moved = True
    while moved:
        moved = False
        for order in waiting:
            while order and there.issuperset((effect := effects(order[0], topology)).consumes):
                there.difference_update(effect.consumes)
                there.update(effect.writes)
                woven.append(order.popleft())
                moved = True
    if stuck := [str(order[0]) for order in waiting if order]:
        raise ScheduleError(f"nobody can go on: {', '.join(stuck)} wait for one another")
    return woven


def forwards(topology: Topology, client: int, micro: int, stages: range) -> Iterator[Instruction]:
    """One micro-batch up through `stages`, chunk after chunk."""
    for chunk in range(topology.chunks):
        for stage in stages:
            yield Instruction(Op.FORWARD, stage, client, micro, chunk)


def backwards(topology: Topology, client: int, micro: int, stages: range) -> Iterator[Instruction]:
    """One micro-batch down through `stages`, the last chunk first: earlier chunks are seen by later ones."""
    for chunk in reversed(range(topology.chunks)):
        for stage in reversed(stages):
            yield Instruction(Op.BACKWARD, stage, client, micro, chunk)


def front_and_tail(topology: Topology) -> tuple[range, range]:
    """The leading stages that live on the client, and all the others."""
    places = [place == CLIENT for place in topology.placement]
    cut = places.index(False) if False in places else len(places)
    return range(cut), range(cut, topology.stages)


def _own_steps(topology: Topology) -> list[int]:
    return [stage for stage in topology.trained if stage not in topology.joint]


def _actor(topology: Topology, instruction: Instruction) -> str:
    client = topology.clients[0] if instruction.client is None else instruction.client
    return topology.actor(instruction.stage, client)


def _in_turn(topology: Topology, work: list[list[Instruction]]) -> Iterator[Instruction]:
    def place(at: Instruction) -> tuple[str, bool]:
        return _actor(topology, at), at.stage in topology.merged

    visits = [[list(visit) for _, visit in groupby(items, key=place)] for items in work]
    for turn in zip_longest(*visits, fillvalue=()):
        yield from dict.fromkeys(
            at._replace(client=None) if at.stage in topology.merged else at for visit in turn for at in visit
        )
