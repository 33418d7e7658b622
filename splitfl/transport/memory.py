"""Channels within one process: the same envelopes as over gRPC, handed over in memory."""

from __future__ import annotations

import asyncio
from collections import deque

from splitfl.transport.base import Channel, ChannelLimits
from splitfl.transport.shaped import Link, shape
from splitfl.transport.stream import StreamChannel, StreamEnded

DEPTH = 4
"""Envelopes that one end may be ahead of the other."""


def memory_pair(
    first: str = "client", second: str = "server", *, limits: ChannelLimits | None = None, link: Link | None = None
) -> tuple[Channel, Channel]:
    """The two ends of a session between `first` and `second`, in a running event loop.

    `link` is the first end's: `link.up` shapes what it sends, `link.down` what it receives.
    """
    up, down = _Pipe(), _Pipe()
    near = MemoryStream(second, outgoing=up, incoming=down)
    far = MemoryStream(first, outgoing=down, incoming=up)
    chosen = limits or ChannelLimits()
    return StreamChannel(shape(near, link), limits=chosen), StreamChannel(far, limits=chosen)


class _Pipe:
    """One direction: a short queue with an end."""

    def __init__(self) -> None:
        self._envelopes: deque[bytes] = deque()
        self._reason: str | None = None
        self._changed = asyncio.Condition()

    async def put(self, envelope: bytes) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._envelopes) < DEPTH or self._reason is not None)
            if self._reason is not None:
                raise StreamEnded(self._reason)
            self._envelopes.append(envelope)
            self._changed.notify_all()

    async def get(self) -> bytes:
        async with self._changed:
            await self._changed.wait_for(lambda: self._envelopes or self._reason is not None)
            if not self._envelopes:
                raise StreamEnded(str(self._reason))
            envelope = self._envelopes.popleft()
            self._changed.notify_all()
            return envelope

    async def end(self, reason: str) -> None:
        async with self._changed:
            self._reason = self._reason or reason
            self._changed.notify_all()


class MemoryStream:
    """One end of a stream in memory."""

    identity: frozenset[str] = frozenset()

    def __init__(self, peer: str, *, outgoing: _Pipe, incoming: _Pipe) -> None:
        self.peer = peer
        self._outgoing = outgoing
        self._incoming = incoming

    async def write(self, envelope: bytes) -> None:
        """Hand an envelope over; waits while the other end is `DEPTH` behind."""
        await self._outgoing.put(envelope)

    async def read(self) -> bytes:
        """The next envelope."""
        return await self._incoming.get()

    async def end(self, reason: str) -> None:
        """End both directions; what was written can still be read."""
        told = f"closed by the other end: {reason}"
        await self._outgoing.end(told)
        await self._incoming.end(told)
