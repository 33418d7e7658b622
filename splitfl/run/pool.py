"""Where computing happens: inline for simulation, or on a bounded pool of threads beside the event loop."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
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


@dataclass(slots=True, eq=False)
class _Job:
    """A computation, and the event loop in which somebody waits for its outcome."""

    compute: Callable[[], Any]
    outcome: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop

    def carry_out(self) -> None:
        """Compute, and hand the outcome over."""
        try:
            result = self.compute()
        except StopIteration as error:  # no future can hold one
            self.fail(RuntimeError(f"StopIteration({error}) in a computation"))
        except BaseException as error:
            self.fail(error)
        else:
            self._tell(self.outcome.set_result, result)

    def fail(self, error: BaseException) -> None:
        """Hand over that there is no result, and why."""
        self._tell(self.outcome.set_exception, error)

    def _tell(self, settle: Callable[[Any], None], outcome: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(settle, outcome)


class Threads:
    """`slots` worker threads with one torch thread each and a queue ordered by `PRIORITY`.

    One thread per worker: it is the fastest on small stages, and it keeps the order of summation, hence the bits,
    the same on every machine.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._queue: list[tuple[int, int, _Job]] = []
        self._changed = threading.Condition()
        self._ticket = itertools.count()
        self._closed = False
        self._threads = [threading.Thread(target=self._serve, daemon=True, name=f"compute-{i}") for i in range(slots)]
        for thread in self._threads:
            thread.start()

    async def run(self, op: Op, function: Callable[..., T], *arguments: Any) -> T:
        """The result of `function(*arguments)`, computed on a worker. RuntimeError where the pool is closed."""
        loop = asyncio.get_running_loop()
        job = _Job(partial(function, *arguments), loop.create_future(), loop)
        with self._changed:
            if self._closed:
                raise RuntimeError("the compute pool is closed")
            heapq.heappush(self._queue, (PRIORITY.get(op, LAST), next(self._ticket), job))
            self._changed.notify()
        try:
            await asyncio.wait([job.outcome])
        except asyncio.CancelledError:
            await self._abandon(job)
            raise
        return cast(T, job.outcome.result())

    def close(self) -> None:
        """Take no more work; workers end after what they run, and whoever waits for the rest gets a RuntimeError."""
        with self._changed:
            self._closed = True
            waiting, self._queue = self._queue, []
            self._changed.notify_all()
        for _, _, job in waiting:
            job.fail(RuntimeError("the compute pool was closed"))
        for thread in self._threads:
            thread.join(timeout=10)

    @property
    def waiting(self) -> int:
        """Computations that wait for a free worker."""
        return len(self._queue)

    async def _abandon(self, job: _Job) -> None:
        """Take back work that has not begun. Wait for work that has, however often the wait is cancelled: it still
        touches its replica, and the next turn would race with it."""
        with self._changed:
            ours = [entry for entry in self._queue if entry[2] is job]
            if ours:
                self._queue.remove(ours[0])
                heapq.heapify(self._queue)
                return
        while not job.outcome.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([job.outcome])
        job.outcome.exception()  # looked at, so that asyncio does not report it as lost

    def _serve(self) -> None:
        torch.set_num_threads(1)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._queue) or self._closed)
                if self._closed:
                    return
                job = heapq.heappop(self._queue)[2]
            job.carry_out()
            del job  # or an idle worker would keep its tensors alive
