"""Rounds that do not wait for their clients, or do not let their clients wait for the average."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from splitfl.aggregation import Update
from splitfl.aggregation.values import Reply
from splitfl.run.blueprint import Blueprint
from splitfl.run.roster import Roster
from splitfl.run.turn import Turns
from splitfl.run.under_way import Arrived, AsTheyCome, Begun, Foretold, Tensors, UnderWay, moved
from splitfl.run.virtual import Predict


class Ahead:
    """The turns of a job whose rounds are overlapped or buffered (see `Method.rounds`).

    predict  puts them on the virtual clock; without it they arrive as they come
    last     the round after which nobody begins anything
    """

    def __init__(
        self, blueprint: Blueprint, roster: Roster, turns: Turns, *, predict: Predict | None, last: int
    ) -> None:
        self._method = blueprint.method
        self._buffers = blueprint.buffers
        self._roster = roster
        self._turns = turns
        self._predict = predict
        self._last = last
        self._seconds: dict[Sequence[int], float] = {}
        self._busy: set[int] = set()
        self._under_way: UnderWay = Foretold(turns, self._foretell) if predict is not None else AsTheyCome(turns)

    @property
    def clock(self) -> float:
        """The virtual time of the last arrival, in seconds; 0 where time is real."""
        return self._under_way.clock if isinstance(self._under_way, Foretold) else 0.0

    async def arrivals(self, number: int, state: Tensors) -> list[Arrived]:
        """The turns whose work makes round `number`, before which the model's weights are `state`.

        Where rounds overlap, the turns of the next one begin here, from `state`.
        """
        self.go_on(number - 1, state)
        arrived: list[Arrived] = []
        delivered = 0
        wanted = 1 if self._overlaps else min(self._method.buffer, len(self._busy))
        while delivered < wanted and (found := await self._under_way.next()):
            for turn, outcome in found:
                self._busy -= set(turn.clients)
                delivered += bool(outcome.states)
            arrived += found
        if self._overlaps and number < self._last:
            self._begin(tuple(self._free()), state, version=number - 1, number=number + 1)
        return arrived

    def go_on(self, number: int, state: Tensors) -> None:
        """Let every client that has nothing to do begin with `state`, the weights after round `number`."""
        free = self._free()
        if number >= self._last or not free:
            return
        for clients in [tuple(free)] if self._overlaps else [(client,) for client in free]:
            self._begin(clients, state, version=number, number=number + 1)

    def spend(self, seconds: float) -> None:
        """The server took `seconds` of virtual time before anybody can begin anew; turns under way go on meanwhile."""
        if isinstance(self._under_way, Foretold):
            self._under_way.clock += seconds

    def onto(self, averaged: Tensors, reply: Reply, turn: Begun, number: int) -> Reply:
        """An update of `turn` that arrives in round `number`, put onto the weights `averaged` before that round.

        What was learned since `turn.start` counts the less, the more rounds went by.
        """
        if not isinstance(reply, Update):
            return reply
        share = float((number - turn.version) ** -self._method.staleness)
        return replace(reply, state=moved(averaged, turn.start, reply.state, share=share, outright=self._buffers))

    async def close(self) -> None:
        """Give up what is under way."""
        await self._under_way.close()

    @property
    def _overlaps(self) -> bool:
        return self._method.rounds == "overlapped"

    def _free(self) -> list[int]:
        here = sorted(self._roster.members)
        return [client for client in here if client not in self._busy and self._turns.absent(client) is None]

    def _begin(self, clients: tuple[int, ...], state: Tensors, *, version: int, number: int) -> None:
        if clients:
            self._busy |= set(clients)
            self._under_way.begin(Begun(clients, dict(state), version, number))

    def _foretell(self, clients: Sequence[int]) -> float:
        if clients not in self._seconds and self._predict is not None:
            self._seconds[clients] = self._predict(self._turns.plan(clients)).makespan
        return self._seconds[clients]
