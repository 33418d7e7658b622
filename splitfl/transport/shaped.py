"""An emulated link around any stream: a rate and a delay in each direction, the same on every run.

Envelopes leave one after the other at the rate of the link, and arrive a delay later: with t the time at which an
envelope is ready and n its bytes,

    departure = max(t, previous departure) + n / rate
    arrival   = departure + delay

Times come from the clock of the event loop, but each is computed from the previous one, so that late wake-ups do not
add up. Loss and TCP's slow start are not modeled.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from dataclasses import dataclass

from splitfl.errors import SplitflError
from splitfl.transport.stream import GRACE, Stream, StreamEnded


@dataclass(frozen=True, slots=True)
class Way:
    """One direction: `rate` in bytes per second, `delay` in seconds. Raises SplitflError for impossible ones."""

    rate: float = math.inf
    delay: float = 0.0

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise SplitflError(f"link: rate = {self.rate}, expected bytes per second above 0")
        if not 0 <= self.delay < math.inf:
            raise SplitflError(f"link: delay = {self.delay}, expected seconds, 0 or more")


@dataclass(frozen=True, slots=True)
class Link:
    """A link as one end sees it: `up` is what it sends, `down` what it receives."""

    up: Way = Way()
    down: Way = Way()


def shape(stream: Stream, link: Link | None) -> Stream:
    """`stream` behind `link`; `stream` itself if there is none. Made in a running event loop."""
    return stream if link is None else ShapedStream(stream, link)


class _Pacer:
    """The departures of one direction."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._departure = -math.inf

    async def depart(self, nbytes: int) -> float:
        """Wait until `nbytes` have left; returns the time at which they arrive."""
        now = asyncio.get_running_loop().time()
        self._departure = max(now, self._departure) + nbytes / self._way.rate
        await sleep_until(self._departure)
        return self._departure + self._way.delay


class ShapedStream:
    """A stream whose envelopes take their time in both directions; one task per direction keeps them on the way."""

    def __init__(self, stream: Stream, link: Link) -> None:
        self._stream = stream
        self._up = _Pacer(link.up)
        self._down = _Pacer(link.down)
        self._leaving: deque[tuple[float, bytes]] = deque()
        self._coming: deque[tuple[float, bytes]] = deque()
        self._ended: StreamEnded | None = None
        self._left, self._came = asyncio.Event(), asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks = [asyncio.create_task(self._deliver()), asyncio.create_task(self._fetch())]

    @property
    def peer(self) -> str:
        """The other end, for messages."""
        return self._stream.peer

    async def write(self, envelope: bytes) -> None:
        """Return when the envelope has left; it arrives a delay later."""
        if self._ended is not None:
            raise self._ended
        arrival = await self._up.depart(len(envelope))
        self._leaving.append((arrival, envelope))
        self._idle.clear()
        self._left.set()

    async def read(self) -> bytes:
        """The next envelope, when it arrives."""
        while not self._coming:
            if self._ended is not None:
                raise self._ended
            self._came.clear()
            await self._came.wait()
        await sleep_until(self._coming[0][0])
        return self._coming.popleft()[1]

    async def end(self, reason: str) -> None:
        """Let what has left arrive, then end the stream."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), GRACE)
        await self._stream.end(reason)
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def _deliver(self) -> None:
        try:
            while True:
                while self._leaving:
                    await sleep_until(self._leaving[0][0])
                    await self._stream.write(self._leaving.popleft()[1])
                self._idle.set()
                self._left.clear()
                await self._left.wait()
        except StreamEnded as ended:
            self._end(ended)

    async def _fetch(self) -> None:
        try:
            while True:
                envelope = await self._stream.read()
                self._coming.append((await self._down.depart(len(envelope)), envelope))
                self._came.set()
        except StreamEnded as ended:
            self._end(ended)

    def _end(self, ended: StreamEnded) -> None:
        self._ended = ended
        self._idle.set()
        self._came.set()


async def sleep_until(when: float) -> None:
    """Sleep until the event loop's clock shows `when`."""
    delay = when - asyncio.get_running_loop().time()
    if delay > 0:
        await asyncio.sleep(delay)
