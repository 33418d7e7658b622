"""Where computing happens: inline for simulation, or on a bounded pool of threads beside the event loop."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

import torch

from splitfl.schedule.instruction import Op
from splitfl.schedule.lanes import LAST, PRIORITY

T = TypeVar("T")


class Pool(Protocol):
    """Runs functions of one actor, the most urgent first."""

    slots: int

    async def run(self, op: Op, function: Callable[..., T], *arguments: Any) -> T:
        """The result of `function(*arguments)`, computed when a slot is free."""
        ...

    def close(self) -> None:
        """Take no more work; what runs is finished."""
        ...


class Inline:
    """Computes at once in the caller: one process, one order, nothing to wait for."""

    slots = 1

    async def run(self, op: Op, function: Callable[..., T], *arguments: Any) -> T:
        """The result of `function(*arguments)`; other tasks get a turn first, so that messages keep moving."""
        del op
        await asyncio.sleep(0)
        return function(*arguments)

    def close(self) -> None:
        """Nothing to close."""


class Threads:
    """`slots` worker threads with one torch thread each and a queue ordered by `PRIORITY`.

    One thread per worker: it is the fastest on small stages, and it keeps the order of summation, hence the bits,
    the same on every machine.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._work: list[tuple[int, int, Callable[[], None]]] = []
        self._ready = threading.Condition()
        self._ticket = itertools.count()
        self._closed = False
        self._threads = [threading.Thread(target=self._serve, daemon=True, name=f"compute-{i}") for i in range(slots)]
        for thread in self._threads:
            thread.start()

    async def run(self, op: Op, function: Callable[..., T], *arguments: Any) -> T:
        """The result of `function(*arguments)`, computed on a worker."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        abandoned = threading.Event()

        def work() -> None:
            try:
                outcome = None if abandoned.is_set() else function(*arguments)
            except BaseException as error:
                loop.call_soon_threadsafe(_settle, future, None, error)
            else:
                loop.call_soon_threadsafe(_settle, future, outcome, None)

        with self._ready:
            if self._closed:
                raise RuntimeError("the compute pool is closed")
            heapq.heappush(self._work, (PRIORITY.get(op, LAST), next(self._ticket), work))
            self._ready.notify()
        try:
            return cast(T, await asyncio.shield(future))
        except asyncio.CancelledError:
            # Work that has begun still touches its replica: wait for it, or the next turn would race with it.
            abandoned.set()
            await asyncio.wait([future])
            raise

    def close(self) -> None:
        """Take no more work; workers end after what they run."""
        with self._ready:
            self._closed = True
            self._work.clear()
            self._ready.notify_all()
        for thread in self._threads:
            thread.join(timeout=10)

    def _serve(self) -> None:
        torch.set_num_threads(1)
        while True:
            with self._ready:
                self._ready.wait_for(lambda: bool(self._work) or self._closed)
                if self._closed:
                    return
                _, _, work = heapq.heappop(self._work)
            work()


def _settle(future: asyncio.Future[Any], outcome: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(outcome)
