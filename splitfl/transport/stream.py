"""A channel made of any ordered stream of envelopes: the same rules, and the same bytes, in memory and over gRPC."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from splitfl.codecs.frame import Buffer
from splitfl.transport.base import ChannelClosed, ChannelLimits, EnvelopeError
from splitfl.transport.envelope import Part, bundle_size, decode, encode_control, encode_parts
from splitfl.transport.mailbox import Mailbox
from splitfl.transport.messages import Address, Control, Refuse
from splitfl.transport.part import part_count

_LOGGER = logging.getLogger(__name__)

GRACE = 5.0
"""Seconds that a closing end allows for its last words to get through."""


class StreamEnded(Exception):  # noqa: N818
    """The stream carries nothing more, and why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Stream(Protocol):
    """What carries envelopes: one writer and one reader at a time."""

    @property
    def peer(self) -> str:
        """The other end, for messages."""

    @property
    def identity(self) -> frozenset[str]:
        """The names in the other end's certificate, if it showed one."""

    async def write(self, envelope: bytes) -> None:
        """Send an envelope, as soon as the other end has room for it. Raises StreamEnded."""

    async def read(self) -> bytes:
        """The next envelope. Raises StreamEnded when there will be none."""

    async def end(self, reason: str) -> None:
        """Write no more; return when the other end has read everything, or after `GRACE` seconds."""


@dataclass(slots=True)
class _Outgoing:
    """A message on its way out: its envelopes, made when they are written, and how many are left."""

    envelopes: Iterator[bytes]
    left: int
    settled: asyncio.Future[None]
    begun: bool = False


class StreamChannel:
    """A `Channel` over a `Stream`. Made inside a running event loop, where its two tasks live until it is closed.

    Control messages overtake tensors at the next part. Bundles leave in the order in which they were sent, one after
    the other: of two micro-batches that share a link the first one then arrives in half the time, at no cost to the
    second.
    """

    def __init__(self, stream: Stream, *, limits: ChannelLimits) -> None:
        self.sent_bytes = 0
        self.received_bytes = 0
        self._stream = stream
        self._mailbox = Mailbox(stream.peer, limits=limits)
        self._controls: deque[_Outgoing] = deque()
        self._bundles: deque[_Outgoing] = deque()
        self._work = asyncio.Event()
        self._closed = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        self._reader = asyncio.create_task(self._read_all())
        self._writer = asyncio.create_task(self._write_all())
        for task in (self._reader, self._writer):
            task.add_done_callback(self._note_failure)

    @property
    def peer(self) -> str:
        """The other end, for messages."""
        return self._stream.peer

    @property
    def identity(self) -> frozenset[str]:
        """The names in the certificate that the other end showed."""
        return self._stream.identity

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._mailbox.reason is not None

    @property
    def reason(self) -> str:
        """Why the channel closed; empty while it is open."""
        return self._mailbox.reason or ""

    async def send(self, address: Address, payload: Sequence[Buffer]) -> int:
        """Send a bundle; returns the bytes of its envelopes once all are written.

        A send that is cancelled before its first part is withdrawn, one that has begun goes on with a copy.
        """
        size = sum(memoryview(buffer).nbytes for buffer in payload)
        outgoing = self._outgoing(encode_parts(address, payload), part_count(size))
        total = bundle_size(address, size)
        try:
            await self._leave(outgoing, self._bundles)
        except asyncio.CancelledError:
            outgoing.envelopes = iter(list(outgoing.envelopes))
            raise
        return total

    async def receive(self, address: Address, *, timeout: float) -> memoryview:
        """Take a bundle, whether it is here already or still to come."""
        return await self._mailbox.take(address, timeout=timeout)

    def expect(self, round_number: int, wanted: Callable[[Address], bool]) -> None:
        """Let in only what is `wanted` of this round."""
        self._mailbox.expect(round_number, wanted)

    async def tell(self, control: Control) -> None:
        """Send a control message, ahead of the bundles."""
        await self._leave(self._outgoing(iter([encode_control(control)]), 1), self._controls)

    async def hear(self, *, timeout: float, what: str) -> Control:
        """Take the next control message."""
        return await self._mailbox.take_control(timeout=timeout, what=what)

    async def wait_closed(self) -> None:
        """Return once the channel is closed, by whichever end."""
        await self._closed.wait()

    async def close(self, reason: str = "closed by this end") -> None:
        """End the session; what was told is delivered, bundles that have not begun are withdrawn."""
        self._begin_closing(reason)
        if self._closing is not None:
            await asyncio.shield(self._closing)

    def lose(self, reason: str) -> None:
        """Note that the stream is gone: everybody who waits here learns why."""
        self._mailbox.close(reason)
        for outgoing in (*self._controls, *self._bundles):
            _settle(outgoing)
        self._controls.clear()
        self._bundles.clear()
        self._writer.cancel()
        self._closed.set()

    def _outgoing(self, envelopes: Iterator[bytes], count: int) -> _Outgoing:
        return _Outgoing(envelopes, count, asyncio.get_running_loop().create_future())

    async def _leave(self, outgoing: _Outgoing, queue: deque[_Outgoing]) -> None:
        if self.closed or self._closing is not None:
            raise ChannelClosed(self.peer, self.reason or "it is being closed by this end")
        queue.append(outgoing)
        self._work.set()
        try:
            await outgoing.settled
        except asyncio.CancelledError:
            if not outgoing.begun and outgoing in queue:
                queue.remove(outgoing)
            raise
        if outgoing.left:
            raise ChannelClosed(self.peer, self.reason or "closed by this end")

    async def _write_all(self) -> None:
        try:
            while True:
                queue = self._controls or self._bundles
                if not queue:
                    if self._closing is not None:
                        return
                    self._work.clear()
                    await self._work.wait()
                    continue
                outgoing = queue[0]
                outgoing.begun = True
                envelope = next(outgoing.envelopes)
                await self._stream.write(envelope)
                self.sent_bytes += len(envelope)
                outgoing.left -= 1
                if outgoing.left == 0 and outgoing in queue:
                    queue.remove(outgoing)
                    _settle(outgoing)
        except StreamEnded as ended:
            self.lose(ended.reason)

    async def _read_all(self) -> None:
        try:
            while True:
                envelope = await self._stream.read()
                self.received_bytes += len(envelope)
                message = decode(envelope)
                if isinstance(message, Part):
                    await self._mailbox.put(message)
                else:
                    await self._mailbox.put_control(message)
        except StreamEnded as ended:
            self.lose(ended.reason)
        except EnvelopeError as error:
            self._begin_closing(f"it broke the protocol: {error}", farewell=Refuse("protocol", str(error)))

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOGGER.error("the channel to %s failed", self.peer, exc_info=error)
            self.lose(f"{type(error).__name__}: {error}")

    def _begin_closing(self, reason: str, farewell: Refuse | None = None) -> None:
        if self._closing is not None:
            return
        if farewell is not None and not self.closed:
            self._controls.append(self._outgoing(iter([encode_control(farewell)]), 1))
        self._closing = asyncio.create_task(self._close(reason))

    async def _close(self, reason: str) -> None:
        for outgoing in self._bundles:
            _settle(outgoing)
        self._bundles.clear()
        self._work.set()
        await asyncio.wait([self._writer], timeout=GRACE)
        self._mailbox.close(reason)
        self._writer.cancel()
        await asyncio.wait([self._writer])
        await self._stream.end(reason)
        self._reader.cancel()
        await asyncio.wait([self._reader])
        self.lose(reason)


def _settle(outgoing: _Outgoing) -> None:
    if not outgoing.settled.done():
        outgoing.settled.set_result(None)
