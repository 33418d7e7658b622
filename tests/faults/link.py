"""A link of TCP between one client and the server, in user space, that can be made to fail at an exact byte.

    client ---- Link ---- server        up: from the client to the server, down: the other way

What fails is armed beforehand: `link.arm("up", 4711, stall(2.0))` lets 4711 bytes through, counted over all connections
of this link, and then stalls. Nothing that was forwarded before the fault is lost, and no byte after it gets through
early, so a run of the lab depends on the seed and not on how fast the machine is.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from socket import SO_LINGER, SOL_SOCKET
from typing import Literal

Direction = Literal["up", "down"]

PIECE = 16 << 10
"""Bytes that are read at once."""

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing sends a reset, as a cable that is pulled and put back does."""


@dataclass(eq=False)
class Connection:
    """One connection over the link: its two sockets, and what keeps its bytes."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    swallowing: bool = False
    going: asyncio.Event = field(default_factory=asyncio.Event)

    def reset(self) -> None:
        """Break both ends at once; what waits to be sent is lost."""
        for writer in (self.client, self.server):
            if (socket := writer.get_extra_info("socket")) is not None:
                with suppress(OSError):
                    socket.setsockopt(SOL_SOCKET, SO_LINGER, RESET)
            writer.transport.abort()


Fault = Callable[["Link", Connection], Awaitable[None]]
"""What happens at the byte; the direction that reached it waits until it returns."""


class Link:
    """Listens at `port`, forwards to the server at `target`, and carries out the faults that are armed.

    rate   bytes a second in each direction; None is as fast as the machine
    delay  seconds that every piece is under way
    """

    def __init__(self, *, rate: float | None = None, delay: float = 0.0) -> None:
        self.port = 0
        self.target = 0
        self.rate = self.usual_rate = rate
        self.delay = delay
        self.moved: dict[Direction, int] = {"up": 0, "down": 0}
        self.fired: list[str] = []
        self.mode: Literal["open", "refusing", "swallowing"] = "open"
        self._armed: dict[Direction, list[tuple[int, Fault]]] = {"up": [], "down": []}
        self._connections: dict[Connection, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None

    async def start(self, target: int) -> None:
        """Listen on a free port of this machine, for connections to `target` on it."""
        self.target = target
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=PIECE)
        self.port = self._server.sockets[0].getsockname()[1]

    def arm(self, direction: Direction, at: int, fault: Fault) -> None:
        """Let `at` bytes in all go in `direction`, then do `fault`."""
        self._armed[direction].append((at, fault))
        self._armed[direction].sort(key=lambda armed: armed[0])

    async def stop(self) -> None:
        """Break every connection and listen no more."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._connections.values())
        self.reset()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def reset(self) -> None:
        """Break every connection there is."""
        for connection in list(self._connections):
            connection.reset()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.mode == "refusing":
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target, limit=PIECE)
        except OSError:
            writer.transport.abort()
            return
        connection = Connection(writer, back, swallowing=self.mode == "swallowing")
        connection.going.set()
        task = asyncio.ensure_future(self._forward(connection, reader, there))
        self._connections[connection] = task
        try:
            await asyncio.wait({task})
        finally:
            del self._connections[connection]

    async def _forward(self, connection: Connection, reader: asyncio.StreamReader, there: asyncio.StreamReader) -> None:
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump("up", connection, reader, connection.server))
                both.create_task(self._pump("down", connection, there, connection.client))
        except* OSError:
            pass
        finally:
            connection.reset()

    async def _pump(
        self, way: Direction, connection: Connection, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        """Forward one direction, piece by piece, until either end is gone."""
        while piece := await source.read(PIECE):
            while piece and not connection.swallowing:
                at, fault = self._next(way)
                ahead = piece[: max(at - self.moved[way], 0)] if at is not None else piece
                await self._deliver(way, connection, ahead, sink)
                piece = piece[len(ahead) :]
                if fault is not None and at == self.moved[way]:
                    self._armed[way].pop(0)
                    await fault(self, connection)
        if connection.swallowing:
            await asyncio.Event().wait()  # the other end never learns that this one is gone
        sink.write_eof()

    async def _deliver(self, way: Direction, connection: Connection, piece: bytes, sink: asyncio.StreamWriter) -> None:
        if not piece:
            return
        await asyncio.sleep(self.delay + (len(piece) / self.rate if self.rate else 0.0))
        await connection.going.wait()
        sink.write(piece)
        await sink.drain()
        self.moved[way] += len(piece)

    def _next(self, way: Direction) -> tuple[int | None, Fault | None]:
        armed = self._armed[way]
        if not armed:
            return None, None
        at, fault = armed[0]
        return max(at, self.moved[way]), fault


def cut() -> Fault:
    """The connection is reset on both sides."""

    async def fault(link: Link, connection: Connection) -> None:
        link.fired.append("cut")
        connection.reset()
        raise ConnectionResetError("cut")

    return fault


def half_open(seconds: float) -> Fault:
    """Nothing gets through any more, and neither end is told; new connections fare the same for `seconds`."""

    async def fault(link: Link, connection: Connection) -> None:
        link.fired.append("half-open")
        connection.swallowing = True
        link.mode = "swallowing"
        asyncio.get_running_loop().call_later(seconds, _open, link)

    return fault


def outage(seconds: float) -> Fault:
    """The connection is reset, and for `seconds` there is no other."""

    async def fault(link: Link, connection: Connection) -> None:
        link.fired.append("outage")
        link.mode = "refusing"
        asyncio.get_running_loop().call_later(seconds, _open, link)
        connection.reset()
        raise ConnectionResetError("outage")

    return fault


def stall(seconds: float) -> Fault:
    """Both directions stand still for `seconds`; then all of it arrives."""

    async def fault(link: Link, connection: Connection) -> None:
        link.fired.append("stall")
        connection.going.clear()
        asyncio.get_running_loop().call_later(seconds, connection.going.set)

    return fault


def slow(rate: float, seconds: float) -> Fault:
    """For `seconds` the link carries `rate` bytes a second: the client reads, and is heard, slowly."""

    async def fault(link: Link, connection: Connection) -> None:
        link.fired.append("slow")
        link.rate = rate
        asyncio.get_running_loop().call_later(seconds, _quicken, link)

    return fault


def call(name: str, function: Callable[[], Awaitable[None]]) -> Fault:
    """Something outside the link: a process is killed."""

    async def fault(link: Link, connection: Connection) -> None:
        link.fired.append(name)
        await function()

    return fault


def _open(link: Link) -> None:
    link.mode = "open"


def _quicken(link: Link) -> None:
    link.rate = link.usual_rate
