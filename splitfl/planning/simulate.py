"""A schedule and its costs in, a timeline out.

Event-driven: the graph of the schedule says what waits for what, and the rest is queues. An actor's compute slots take
what is ready, backward before forward before the rest (`PRIORITY`), among equals what was ready first, then the lower
client id. A SEND does not hold its lane up; a link carries one message at a time in each direction, in the order in
which they were handed over; a RECV waits for its message.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from splitfl.planning.cost import Costs, Link
from splitfl.planning.memory import Memory
from splitfl.planning.timeline import Event, Timeline
from splitfl.schedule import PRIORITY, Node, Op, Schedule, ScheduleError, Topology, graph
from splitfl.schedule.lanes import LAST


class Prepared(NamedTuple):
    """A schedule made ready for `play`: all that does not depend on costs.

    `after` lists the nodes that each node lets go on, and `receiver` the RECV of every SEND.
    """

    topology: Topology
    actors: tuple[str, ...]
    nodes: tuple[Node, ...]
    after: tuple[tuple[int, ...], ...]
    receiver: dict[int, int]


def simulate(schedule: Schedule, topology: Topology, costs: Costs) -> Timeline:
    """The timeline of a lowered schedule. Raises ScheduleError where messages do not pair up or nobody can go on."""
    return play(prepare(schedule, topology), costs)


def prepare(schedule: Schedule, topology: Topology) -> Prepared:
    """The part of a simulation that stays the same when costs change. Raises ScheduleError as `simulate` does."""
    nodes = graph(schedule, topology)
    after: list[list[int]] = [[] for _ in nodes]
    receiver: dict[int, int] = {}
    for number, node in enumerate(nodes):
        for earlier in node.before:
            if earlier == node.sent:
                receiver[earlier] = number
            else:
                after[earlier].append(number)
    return Prepared(topology, tuple(schedule), nodes, tuple(map(tuple, after)), receiver)


def play(prepared: Prepared, costs: Costs) -> Timeline:
    """The timeline of a prepared schedule at these costs. Raises ScheduleError when nobody can go on."""
    return _Run(prepared, costs).result()


class _Run:
    """One simulation under way."""

    def __init__(self, prepared: Prepared, costs: Costs) -> None:
        self.nodes, self.after, self.receiver = prepared.nodes, prepared.after, prepared.receiver
        self.costs = costs
        self.seconds = [costs.seconds(node.actor, node.instruction) for node in self.nodes]
        self.rank = [PRIORITY.get(node.instruction.op, LAST) for node in self.nodes]
        self.pending = [len(node.before) for node in self.nodes]
        self.reached = [0.0] * len(self.nodes)  # when its lane came to each node
        self.slots = {actor: costs.slots(actor) for actor in prepared.actors}
        self.free = dict(self.slots)
        self.ready: dict[str, list[tuple[int, float, int, int]]] = {actor: [] for actor in prepared.actors}
        self.due: list[tuple[float, int]] = []  # time and node whose slot is done; ~node: its message is there
        self.links: dict[tuple[str, str], tuple[Link, float]] = {}  # with the time from which each is free
        self.events: list[Event] = []
        self.traffic: dict[tuple[str, str], int] = {}
        self.memory = Memory(prepared.topology, prepared.actors, costs.held)

    def result(self) -> Timeline:
        self._reach([number for number, count in enumerate(self.pending) if count == 0], 0.0)
        self._fill_slots(self.slots, 0.0)
        while self.due:
            self._advance()
        if len(self.events) < len(self.nodes):
            raise ScheduleError(f"nobody can go on: {len(self.nodes) - len(self.events)} instructions are left")
        self.events.sort(key=lambda event: (event.start, event.end))
        busy = dict.fromkeys(self.slots, 0.0)
        for node, seconds in zip(self.nodes, self.seconds, strict=True):
            busy[node.actor] += seconds
        return Timeline(
            events=tuple(self.events),
            makespan=max((event.end for event in self.events), default=0.0),
            busy=busy,
            slots=self.slots,
            traffic=self.traffic,
            peak_memory=self.memory.peaks(),
        )

    def _advance(self) -> None:
        """Go to the next moment at which something is due; everything due then happens before slots are filled."""
        nodes, due = self.nodes, self.due
        now = due[0][0]
        touched: dict[str, None] = {}
        while due and due[0][0] == now:
            number = heapq.heappop(due)[1]
            if number >= 0:
                actor, instruction = nodes[number].actor, nodes[number].instruction
                self.free[actor] += 1
                if instruction.op is Op.SEND:
                    self._transmit(number, now)
                elif instruction.op is Op.RECV:
                    self._receive(number, now)
                self._reach(self._let_go(number, now), now)
            else:
                number = ~number
                actor = nodes[number].actor
                self.memory.carried_out(actor, nodes[number].instruction, now, now)
                self.pending[number] -= 1
                if self.pending[number] == 0:
                    self._reach([number], now)
            touched[actor] = None
        self._fill_slots(touched, now)

    def _fill_slots(self, actors: Iterable[str], now: float) -> None:
        """Give every free slot the most urgent work that is ready."""
        for actor in actors:
            ready = self.ready[actor]
            while ready and self.free[actor]:
                number = heapq.heappop(ready)[3]
                self.free[actor] -= 1
                end = now + self.seconds[number]
                heapq.heappush(self.due, (end, number))
                instruction = self.nodes[number].instruction
                if instruction.kind is None:
                    self.events.append(Event(actor, instruction, now, end))
                    self.memory.carried_out(actor, instruction, now, end)

    def _reach(self, numbers: list[int], now: float) -> None:
        """Nothing holds these nodes back any more: messages pass at once, computing queues for a slot."""
        while numbers:
            number = numbers.pop()
            actor, lane, _, instruction, _, _ = self.nodes[number]
            if instruction.kind is None or self.seconds[number]:
                urgency = (self.rank[number], now, -1 if lane is None else lane, number)
                heapq.heappush(self.ready[actor], urgency)
                continue
            if instruction.op is Op.SEND:
                self._transmit(number, now)
            else:
                self._receive(number, now)
            numbers += self._let_go(number, now)

    def _let_go(self, number: int, now: float) -> list[int]:
        """Count a node off for those that wait for it, and return the ones that nothing holds back now."""
        free = []
        for later in self.after[number]:
            self.reached[later] = now
            self.pending[later] -= 1
            if self.pending[later] == 0:
                free.append(later)
        return free

    def _transmit(self, number: int, now: float) -> None:
        """Hand a message to its link."""
        actor, instruction = self.nodes[number].actor, self.nodes[number].instruction
        pair = (actor, instruction.peer or "")
        link, free_from = self.links.get(pair) or (self.costs.link(*pair), 0.0)
        nbytes = self.costs.message(instruction.value)
        left = max(now, free_from) + link.transfer(nbytes)
        self.links[pair] = (link, left)
        self.traffic[pair] = self.traffic.get(pair, 0) + nbytes
        start = now - self.seconds[number]
        self.events.append(Event(actor, instruction, start, left, nbytes))
        self.memory.carried_out(actor, instruction, start, left)
        heapq.heappush(self.due, (left + link.latency, ~self.receiver[number]))

    def _receive(self, number: int, now: float) -> None:
        """A message that is there and that its lane has come to."""
        actor, instruction = self.nodes[number].actor, self.nodes[number].instruction
        nbytes = self.costs.message(instruction.value)
        self.events.append(Event(actor, instruction, self.reached[number], now, nbytes))
