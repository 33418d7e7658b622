"""The link of the lab fails where it is told to, and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from splitfl.api.loop import run_blocking
from splitfl.run.blueprint import Deadlines
from splitfl.schedule.instruction import Kind, Value
from splitfl.transport import connect, serve
from splitfl.transport.messages import Address, Finish
from tests.faults.link import Link, call, cut, half_open, outage, slow, stall


async def echo(reader, writer):
    while piece := await reader.read(1 << 16):
        writer.write(piece)
        await writer.drain()
    writer.close()


class Bench:
    """An echo server behind a link."""

    async def __aenter__(self):
        self.echo = await asyncio.start_server(echo, "127.0.0.1", 0)
        self.link = Link()
        await self.link.start(self.echo.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_):
        await self.link.stop()
        self.echo.close()

    async def open(self):
        return await asyncio.open_connection("127.0.0.1", self.link.port)


def on(work):
    async def run():
        async with asyncio.timeout(20), Bench() as bench:
            await work(bench)

    asyncio.run(run())


def test_everything_comes_through_an_open_link():
    async def work(bench):
        reader, writer = await bench.open()
        sent = bytes(range(256)) * 1000
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent
        assert bench.link.moved == {"up": len(sent), "down": len(sent)}
        writer.close()

    on(work)


@pytest.mark.parametrize("at", [1, 4711, 16 << 10])
@pytest.mark.parametrize("fault", [cut, lambda: outage(0.1)])
def test_a_cut_lets_exactly_so_many_bytes_through(fault, at):
    async def work(bench):
        bench.link.arm("up", at, fault())
        reader, writer = await bench.open()
        writer.write(b"x" * 50_000)
        with contextlib.suppress(ConnectionError):
            while await reader.read(1000):
                pass
        assert bench.link.moved["up"] == at
        await asyncio.sleep(0.2)
        again, over = await bench.open()
        over.write(b"once more")
        assert await again.readexactly(9) == b"once more"
        writer.close()
        over.close()

    on(work)


def test_a_half_open_line_tells_nobody():
    async def work(bench):
        bench.link.arm("down", 10, half_open(0.0))
        reader, writer = await bench.open()
        writer.write(b"y" * 100)
        assert await reader.readexactly(10) == b"y" * 10
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.3)
        writer.write(b"z" * 100)
        await writer.drain()
        assert bench.link.fired == ["half-open"]
        writer.close()

    on(work)


@pytest.mark.parametrize(("fault", "least"), [(stall(0.4), 0.35), (slow(20_000.0, 5.0), 0.35)])
def test_a_stall_and_a_slow_line_lose_nothing(fault, least):
    async def work(bench):
        bench.link.arm("up", 100, fault)
        reader, writer = await bench.open()
        start = time.monotonic()
        writer.write(b"w" * 9_000)
        assert await reader.readexactly(9_000) == b"w" * 9_000
        assert time.monotonic() - start >= least
        writer.close()

    on(work)


def test_something_outside_happens_at_the_byte():
    async def work(bench):
        seen = []

        async def note():
            seen.append(bench.link.moved["up"])

        bench.link.arm("up", 33, call("note", note))
        reader, writer = await bench.open()
        writer.write(b"v" * 99)
        await reader.readexactly(99)
        assert seen == [33]
        writer.close()

    on(work)


@pytest.mark.parametrize("up", [True, False])
def test_a_slow_line_full_of_tensors_is_not_taken_for_a_half_open_one(up):
    """The answer to a ping queues behind 3.5 s of tensors, which a step of 6 s allows."""

    async def run():
        channels, link = [], Link(rate=100_000.0)

        async def hold(channel):
            channels.append(channel)
            await channel.wait_closed()

        silence = Deadlines(step=6.0).silence
        server = await serve("127.0.0.1:0", hold, silence=silence)
        await link.start(server.port)
        client = await connect(f"127.0.0.1:{link.port}", silence=silence)
        sender, receiver = (client, channels[0]) if up else (channels[0], client)
        address, payload = Address(1, 0, Value(Kind.ACT, 0, 0, 0)), [b"x" * 350_000]
        start = time.monotonic()
        _, received = await asyncio.gather(sender.send(address, payload), receiver.receive(address, timeout=20))
        assert bytes(received) == payload[0]
        assert time.monotonic() - start > 3.0
        await client.close()
        await server.stop(1.0)
        await link.stop()

    run_blocking(run())


def test_both_ends_of_a_session_find_out_that_the_line_is_half_open():
    async def run():
        channels, link = [], Link()

        async def hold(channel):
            channels.append(channel)
            await channel.wait_closed()

        server = await serve("127.0.0.1:0", hold, silence=2.0)
        await link.start(server.port)
        client = await connect(f"127.0.0.1:{link.port}", silence=2.0)
        link.arm("up", link.moved["up"] + 1, half_open(60.0))
        await client.tell(Finish("into the void"))
        start = time.monotonic()
        async with asyncio.timeout(20):
            await client.wait_closed()
            await channels[0].wait_closed()
        assert time.monotonic() - start < 10
        assert "ping timeout" in client.reason
        await client.close()
        await server.stop(1.0)
        await link.stop()

    run_blocking(run())
