"""Carrying a schedule out on paper: every value is present when it is needed, and nothing is left over.

The walk runs the graph of a schedule against the table of effects. Computing takes one unit of a clock, messages take
none, and lanes run side by side. It proves progress (no deadlock), pairing of messages, single assignment, that a
backward sees the weights of its forward, and that the end state is the start state.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from splitfl.schedule.error import ScheduleError
from splitfl.schedule.graph import Node, graph
from splitfl.schedule.instruction import (
    Instruction,
    Kind,
    Op,
    Schedule,
    Value,
    effects,
    initial_values,
    weights,
)
from splitfl.schedule.topology import Topology


class Visit(NamedTuple):
    """One instruction carried out: by whom, in which lane, at which position, from when to when (clock units)."""

    actor: str
    lane: int | None
    position: int
    instruction: Instruction
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """What a walk saw.

    visits  every instruction, in the order in which it was carried out
    peaks   per actor, the largest number of values of each kind that it held at one time
    clock   units until the last instruction was complete
    """

    visits: tuple[Visit, ...]
    peaks: Mapping[str, Mapping[Kind, int]]
    clock: int


def walk(
    schedule: Schedule,
    topology: Topology,
    *,
    initial: Mapping[Value, str] | None = None,
    final: Mapping[Value, str] | None = None,
) -> Walk:
    """Carry `schedule` out abstractly and return what was seen.

    `initial` and `final` are the values alive before and after, with their actors; both default to
    `initial_values(topology)`. Raises ScheduleError naming actor, position, instruction and the value that is missing,
    made twice or left over; or, when nobody can go on, what each actor waits for.
    """
    nodes = graph(schedule, topology)
    stores = _Stores(topology, schedule, initial_values(topology) if initial is None else initial)
    after: list[list[int]] = [[] for _ in nodes]
    pending = [len(node.before) for node in nodes]
    for number, node in enumerate(nodes):
        for earlier in node.before:
            after[earlier].append(number)
    earliest = [0] * len(nodes)
    ready = [(0, number) for number, count in enumerate(pending) if count == 0]
    visits: list[Visit] = []
    while ready:
        start, number = heapq.heappop(ready)
        node = nodes[number]
        stores.apply(node)
        end = start + (node.instruction.op not in (Op.SEND, Op.RECV))
        visits.append(Visit(node.actor, node.lane, node.position, node.instruction, start, end))
        for later in after[number]:
            pending[later] -= 1
            earliest[later] = max(earliest[later], end)
            if pending[later] == 0:
                heapq.heappush(ready, (earliest[later], later))
    if len(visits) < len(nodes):
        raise ScheduleError(_stuck(nodes, visits))
    stores.settle(initial_values(topology) if final is None else final)
    return Walk(visits=tuple(visits), peaks=stores.peaks, clock=max((visit.end for visit in visits), default=0))


class _Stores:
    """The values that each actor holds, with the version of the weights that each was made from."""

    def __init__(self, topology: Topology, actors: Iterable[str], initial: Mapping[Value, str]) -> None:
        self.topology = topology
        self.held: dict[str, dict[Value, int]] = {}
        self.makers: dict[tuple[str, Value], Node] = {}
        self.peaks: dict[str, Counter[Kind]] = {}
        self._counts: dict[str, Counter[Kind]] = {}
        self._version = 0
        for actor in dict.fromkeys([*actors, *initial.values()]):
            self.held[actor] = {}
            self.peaks[actor], self._counts[actor] = Counter(), Counter()
        for value, actor in initial.items():
            self._put(actor, value, 0)

    def apply(self, node: Node) -> None:
        """Carry out one instruction."""
        actor, instruction = node.actor, node.instruction
        held, counts = self.held[actor], self._counts[actor]
        consumes, reads, writes = effects(instruction, self.topology)
        for value in (*consumes, *reads):
            if value not in held:
                raise _error(node, f"needs {value}, which {actor} does not hold")
        version = self._version_for(node, held)
        for value in consumes:
            del held[value]
            counts[value.kind] -= 1
        for value in writes:
            if value in held:
                raise _error(node, f"makes {value}, which {actor} holds already")
            self._put(actor, value, version)
            self.makers[actor, value] = node

    def settle(self, final: Mapping[Value, str]) -> None:
        """Raise unless exactly `final` is held."""
        for actor, held in self.held.items():
            for value in held:
                if final.get(value) != actor:
                    maker = self.makers.get((actor, value))
                    if maker is None:
                        raise ScheduleError(f"{value} is left over at the end", actor=actor)
                    raise _error(maker, f"makes {value}, which is left over at the end")
        for value, actor in final.items():
            if value not in self.held.get(actor, {}):
                raise ScheduleError(f"{value} should be there at the end, as it was at the start", actor=actor)

    def _version_for(self, node: Node, held: dict[Value, int]) -> int:
        """The version that the instruction's writes carry; a backward must see the weights of its forward."""
        op, stage, client, micro, chunk, _, _ = node.instruction
        if op is Op.FORWARD:
            return held[weights(self.topology, stage, client)]
        if op in (Op.BACKWARD, Op.BACKWARD_INPUT):
            params = weights(self.topology, stage, client)
            stash = Value(Kind.STASH, stage, client, micro, chunk)
            if held[params] != held[stash] and not self.topology.stash_weights:
                raise _error(node, f"sees other weights than its forward did: {params} changed between them")
        self._version += 1
        return self._version

    def _put(self, actor: str, value: Value, version: int) -> None:
        self.held[actor][value] = version
        count = self._counts[actor][value.kind] + 1
        self._counts[actor][value.kind] = count
        if count > self.peaks[actor][value.kind]:
            self.peaks[actor][value.kind] = count


def _error(node: Node, problem: str) -> ScheduleError:
    return ScheduleError(problem, actor=node.actor, position=node.position, instruction=node.instruction)


def _stuck(nodes: tuple[Node, ...], visits: list[Visit]) -> str:
    """What every lane that cannot go on waits for."""
    done = {(visit.actor, visit.position) for visit in visits}
    seen: set[tuple[str, int | None]] = set()
    waits = []
    for node in nodes:
        if (node.actor, node.position) in done or (node.actor, node.lane) in seen:
            continue
        seen.add((node.actor, node.lane))
        missing = [nodes[number] for number in node.before if (nodes[number].actor, nodes[number].position) not in done]
        causes = " and ".join(f"{other.actor}, position {other.position}, {other.instruction}" for other in missing)
        waits.append(f"{node.actor}, position {node.position}, {node.instruction} waits for {causes}")
    return f"nobody can go on: {'; '.join(waits)}"
