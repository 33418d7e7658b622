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


class _Flight:
    """Envelopes between departure and arrival in one direction, and the signals of those who fill and empty it."""

    def __init__(self, way: Way) -> None:
        self._pacer = _Pacer(way)
        self._envelopes: deque[tuple[float, bytes]] = deque()
        self._changed = asyncio.Condition()
        self._ended: StreamEnded | None = None

    async def board(self, envelope: bytes) -> None:
        """Return when the envelope has left. Waits while an earlier one has arrived and nobody takes it."""
        await self.drained(overdue_only=True)
        if self._ended is not None:
            raise self._ended
        arrival = await self._pacer.depart(len(envelope))
        async with self._changed:
            self._envelopes.append((arrival, envelope))
            self._changed.notify_all()

    async def arrive(self) -> bytes:
        """The next envelope, when it arrives; it stays in flight until `land`."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._envelopes or self._ended is not None)
        if not self._envelopes and self._ended is not None:
            raise self._ended
        arrival, envelope = self._envelopes[0]
        await sleep_until(arrival)
        return envelope

    async def land(self) -> None:
        """The envelope that arrived has been taken."""
        async with self._changed:
            self._envelopes.popleft()
            self._changed.notify_all()

    async def drained(self, *, overdue_only: bool = False) -> None:
        """Wait until nothing is in flight, or nothing that should have landed."""
        clock = asyncio.get_running_loop().time
        async with self._changed:
            await self._changed.wait_for(
                lambda: (
                    self._ended is not None
                    or not self._envelopes
                    or (overdue_only and self._envelopes[0][0] >= clock())
                )
            )

    async def end(self, ended: StreamEnded) -> None:
        """Nothing more will board; what is in flight still arrives."""
        async with self._changed:
            self._ended = self._ended or ended
            self._changed.notify_all()


class ShapedStream:
    """A stream whose envelopes take their time in both directions; one task per direction keeps them on the way."""

    def __init__(self, stream: Stream, link: Link) -> None:
        self._stream = stream
        self._up = _Flight(link.up)
        self._down = _Flight(link.down)
        self._tasks = [asyncio.create_task(self._deliver()), asyncio.create_task(self._fetch())]

    @property
    def peer(self) -> str:
        """The other end, for messages."""
        return self._stream.peer

    @property
    def identity(self) -> frozenset[str]:
        """The names in the other end's certificate."""
        return self._stream.identity

    async def write(self, envelope: bytes) -> None:
        """Return when the envelope has left; it arrives a delay later."""
        await self._up.board(envelope)

    async def read(self) -> bytes:
        """The next envelope, when it arrives."""
        envelope = await self._down.arrive()
        await self._down.land()
        return envelope

    async def end(self, reason: str) -> None:
        """Let what has left arrive, then end the stream."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._up.drained(), GRACE)
        await self._stream.end(reason)
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def _deliver(self) -> None:
        try:
            while True:
                await self._stream.write(await self._up.arrive())
                await self._up.land()
        except StreamEnded as ended:
            await self._up.end(ended)

    async def _fetch(self) -> None:
        try:
            while True:
                await self._down.board(await self._stream.read())
        except StreamEnded as ended:
            await self._down.end(ended)
            await self._up.end(ended)


async def sleep_until(when: float) -> None:
    """Sleep until the event loop's clock shows `when`."""
    delay = when - asyncio.get_running_loop().time()
    if delay > 0:
        await asyncio.sleep(delay)
