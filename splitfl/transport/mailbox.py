"""What has arrived and was not taken yet: bundles by address, control messages in order, all within a cap on memory.

A mailbox belongs to one event loop. One task (the reader) puts parts and control messages in; any number take them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from splitfl.transport.base import ChannelClosed, ChannelLimits, DeadlineExceeded, EnvelopeError, TransportError
from splitfl.transport.messages import Address, Control
from splitfl.transport.part import Part

T = TypeVar("T")

MAX_CONTROLS = 256
"""Control messages that may wait; a peer that sends more is read no further until some are heard."""


@dataclass(slots=True)
class _Assembly:
    """A bundle of several parts on its way in.

    The buffer grows with what arrives, so that a header that claims a large size costs nothing. Appending was measured
    to be as fast as filling memory that is reserved beforehand.
    """

    buffer: bytearray = field(default_factory=bytearray)
    parts: int = 0


class Mailbox:
    """The arrivals of one channel. `peer` names the other end in errors."""

    def __init__(self, peer: str, *, limits: ChannelLimits) -> None:
        self.peer = peer
        self.reason: str | None = None
        self._limits = limits
        self._bundles: dict[Address, memoryview] = {}
        self._assemblies: dict[Address, _Assembly] = {}
        self._sizes: dict[Address, int] = {}
        self._receivers: dict[Address, asyncio.Future[None]] = {}
        self._controls: deque[Control] = deque()
        self._hearers: deque[asyncio.Future[None]] = deque()
        self._room = asyncio.Event()
        self._round = 0
        self._wanted: tuple[int, Callable[[Address], bool]] | None = None

    def expect(self, round_number: int, wanted: Callable[[Address], bool]) -> None:
        """From now on let in, of this round, what is `wanted`, and nothing of a later one. Without it all is let in."""
        self._wanted = (round_number, wanted)

    async def put(self, part: Part) -> None:
        """Take in a part, waiting while the cap is reached. A part of a round that is over is dropped.

        Raises EnvelopeError for a part that nobody asked for, repeats another, does not follow its predecessor, or is
        too large.
        """
        address = part.address
        self._check_wanted(address)
        self._advance(address.round)
        if address.round < self._round:
            return
        if part.number == 0:
            self._check_first(part)
            await self._admit(address, part.size)
            if self.reason is not None or address.round < self._round:
                return
            self._sizes[address] = part.size
            if len(part.payload) == part.size:
                self._deliver(address, part.payload)
                return
            self._assemblies[address] = _Assembly()
        self._append(part)

    async def put_control(self, control: Control) -> None:
        """Take in a control message, waiting while too many are unheard."""
        while len(self._controls) >= MAX_CONTROLS and self.reason is None:
            await self._wait_for_room()
        self._controls.append(control)
        if self._hearers:
            _wake(self._hearers.popleft())

    async def take(self, address: Address, *, timeout: float) -> memoryview:
        """The bundle at `address`, waiting at most `timeout` seconds.

        Raises DeadlineExceeded, ChannelClosed, or TransportError where a later round has begun.
        """
        self._advance(address.round)
        if address in self._receivers:
            raise RuntimeError(f"{address} is being received already")
        if address not in self._bundles:
            self._check_awaitable(address)
            arrival = self._receivers[address] = asyncio.get_running_loop().create_future()
            self._room.set()
            try:
                await self._within(timeout, arrival, what=str(address), address=address)
            finally:
                del self._receivers[address]
        if address not in self._bundles:
            self._check_awaitable(address)
        bundle = self._bundles.pop(address)
        del self._sizes[address]
        self._room.set()
        return bundle

    async def take_control(self, *, timeout: float, what: str) -> Control:
        """The next control message, waiting at most `timeout` seconds. Raises DeadlineExceeded or ChannelClosed."""
        while not self._controls:
            self._check_open()
            arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._hearers.append(arrival)
            try:
                await self._within(timeout, arrival, what=what)
            except BaseException:
                if arrival.done() and not arrival.cancelled() and self._hearers:
                    _wake(self._hearers.popleft())
                raise
            finally:
                if arrival in self._hearers:
                    self._hearers.remove(arrival)
        self._room.set()
        return self._controls.popleft()

    def close(self, reason: str) -> None:
        """Wake everybody: nothing more will arrive. What is complete can still be taken; the first reason stays."""
        if self.reason is not None:
            return
        self.reason = reason
        self._assemblies.clear()
        self._room.set()
        for arrival in (*self._receivers.values(), *self._hearers):
            _wake(arrival)

    def _check_wanted(self, address: Address) -> None:
        if self._wanted is None or address.round < self._wanted[0]:
            return
        if address.round > self._wanted[0] or not self._wanted[1](address):
            raise EnvelopeError(f"nobody asked for {address}")

    def _check_first(self, part: Part) -> None:
        address = part.address
        if address in self._sizes:
            raise EnvelopeError(f"{address} was sent twice")
        if part.size > self._limits.message:
            raise EnvelopeError(f"{address} has {part.size} bytes, expected at most {self._limits.message}")
        if len(part.payload) > part.size or (part.size > 0 and not part.payload):
            raise EnvelopeError(f"{address} has {part.size} bytes, but its first part {len(part.payload)}")

    async def _admit(self, address: Address, size: int) -> None:
        """Wait until `size` bytes fit. Whatever is awaited comes in at once, or the wait could last for ever."""
        while self.reason is None and address.round >= self._round and address not in self._receivers:
            held = sum(self._sizes.values())
            if held == 0 or held + size <= self._limits.waiting:
                return
            await self._wait_for_room()

    async def _wait_for_room(self) -> None:
        self._room.clear()
        await self._room.wait()

    def _append(self, part: Part) -> None:
        address = part.address
        assembly = self._assemblies.get(address)
        if assembly is None or assembly.parts != part.number:
            raise EnvelopeError(f"part {part.number} of {address} follows none")
        end = len(assembly.buffer) + len(part.payload)
        if part.size != self._sizes[address] or end > part.size or not part.payload:
            raise EnvelopeError(f"part {part.number} of {address} does not fit: {end} of {part.size} bytes")
        assembly.buffer += part.payload
        assembly.parts += 1
        if end == part.size:
            del self._assemblies[address]
            self._deliver(address, memoryview(assembly.buffer))

    def _deliver(self, address: Address, bundle: memoryview) -> None:
        self._bundles[address] = bundle
        if address in self._receivers:
            _wake(self._receivers[address])

    def _advance(self, round_number: int) -> None:
        """Forget what is left of earlier rounds: nobody will ask for it."""
        if round_number <= self._round:
            return
        self._round = round_number
        for address in [address for address in self._sizes if address.round < round_number]:
            self._bundles.pop(address, None)
            self._assemblies.pop(address, None)
            del self._sizes[address]
        for address, arrival in self._receivers.items():
            if address.round < round_number:
                _wake(arrival)
        self._room.set()

    def _check_awaitable(self, address: Address) -> None:
        self._check_open()
        if address.round < self._round:
            raise TransportError(f"{address} comes too late: round {self._round} has begun")

    def _check_open(self) -> None:
        if self.reason is not None:
            raise ChannelClosed(self.peer, self.reason)

    async def _within(self, timeout: float, arrival: Awaitable[T], *, what: str, address: Address | None = None) -> T:
        try:
            async with asyncio.timeout(timeout):
                return await arrival
        except TimeoutError:
            note = ""
            if address in self._assemblies and address is not None:
                note = f"; {len(self._assemblies[address].buffer)} of {self._sizes[address]} bytes came"
            raise DeadlineExceeded(what, peer=self.peer, seconds=timeout, note=note) from None


def _wake(arrival: asyncio.Future[None]) -> None:
    if not arrival.done():
        arrival.set_result(None)
