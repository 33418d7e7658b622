"""Turns that go on beside the rounds: they begin from weights that others have left behind when they arrive.

round           1        2        3
c0       ──────▶ ──────▶ ──────▶          each arrow is a turn; it ends in the round in which it arrives
c1       ────────────────▶                of weights that are two rounds old by then: staleness 1
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from splitfl.run.turn import TurnOutcome, Turns

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Begun:
    """A turn of `clients` that begins from the whole model's weights `start`, those after round `version`.

    number  decides its random draws; no client has two turns of one number
    """

    clients: tuple[int, ...]
    start: Tensors
    version: int
    number: int


Arrived = tuple[Begun, TurnOutcome]


class UnderWay(Protocol):
    """Turns that have begun and have not arrived."""

    def begin(self, turn: Begun) -> None:
        """Let a turn begin, now."""

    async def next(self) -> list[Arrived]:
        """The turns that arrive next, one or more; none where none is under way."""

    async def close(self) -> None:
        """Give up what is under way."""


class AsTheyCome:
    """Each turn a task of its own: who is done first arrives first."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._tasks: dict[asyncio.Task[TurnOutcome], Begun] = {}

    def begin(self, turn: Begun) -> None:
        """Let a turn begin, now."""
        work = self._turns.run(turn.number, dict.fromkeys(turn.clients, turn.start))
        self._tasks[asyncio.create_task(work)] = turn

    async def next(self) -> list[Arrived]:
        """The turns that are done by now, in the order of their clients; waits for one."""
        if not self._tasks:
            return []
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        arrived = [(self._tasks.pop(task), task.result()) for task in done]
        return sorted(arrived, key=lambda each: each[0].clients)

    async def close(self) -> None:
        """Give up what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()


class Foretold:
    """Turns on the virtual clock: they arrive when the simulator says, so the order is the same in every run.

    predict  seconds that a turn of some clients takes
    clock    the time of the last arrival, or until which the server was busy after it
    """

    def __init__(self, turns: Turns, predict: Callable[[Sequence[int]], float]) -> None:
        self.clock = 0.0
        self._turns = turns
        self._predict = predict
        self._ends: list[tuple[float, tuple[int, ...], Begun]] = []

    def begin(self, turn: Begun) -> None:
        """Let a turn begin, now."""
        heapq.heappush(self._ends, (self.clock + self._predict(turn.clients), turn.clients, turn))

    async def next(self) -> list[Arrived]:
        """The turn that ends first; of those that end together the one with the lowest id."""
        if not self._ends:
            return []
        end, _, turn = heapq.heappop(self._ends)
        self.clock = max(self.clock, end)
        return [(turn, await self._turns.run(turn.number, dict.fromkeys(turn.clients, turn.start)))]

    async def close(self) -> None:
        """Give up what is under way."""
        self._ends.clear()


def moved(now: Tensors, start: Tensors, trained: Tensors, *, share: float, outright: Collection[str]) -> Tensors:
    """`now` with `share` of what was learned between `start` and `trained`; tensors `outright` as they were trained.

    Whole numbers are never mixed.
    """

    def one(name: str, value: torch.Tensor) -> torch.Tensor:
        if name in outright or not value.is_floating_point() or (share == 1.0 and now[name] is start[name]):
            return value
        return now[name] + share * (value - start[name])

    return {name: one(name, value) for name, value in trained.items()}
