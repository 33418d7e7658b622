"""Hostile sessions against a server that trains: whatever they say and in which order, honest clients lose no bit."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc.aio
import pytest
import torch

import splitfl
from splitfl.api.loop import run_blocking
from splitfl.transport import SessionLimits, connect, serve
from splitfl.transport.grpc_stream import METHOD
from tests.faults.ends import dataset, make_job
from tests.faults.plan import CLIENTS, Plan
from tests.fuzz.corpus import envelopes
from tests.fuzz.mutate import mutate

ROUNDS = 12

AT_ONCE = 8
"""Hostile sessions side by side."""

PATIENCE = 20.0
"""Seconds in which a server has had enough of a hostile session: it waits ten for a hello."""


async def misbehave(address: str, seed: int) -> None:
    """One session: well-formed words out of order, malformed ones, silence; then it hangs up, or waits to be told."""
    draw, corpus = random.Random(seed), envelopes()
    async with grpc.aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        call = channel.stream_stream(METHOD)()
        try:
            for _ in range(draw.randint(1, 8)):
                await call.write(draw.choice(corpus) if draw.random() < 0.4 else mutate(draw, corpus))
            if draw.random() < 0.7:
                await call.done_writing()
                async with asyncio.timeout(PATIENCE):
                    while await call.read() is not grpc.aio.EOF:
                        pass
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the server has hung up first
        finally:
            call.cancel()


async def keep_misbehaving(address: str, done: threading.Event, first: int) -> int:
    """Session after session until training is over; how many there were."""
    sessions = 0
    while not done.is_set():
        await asyncio.gather(*(misbehave(address, first + sessions + index) for index in range(AT_ONCE)))
        sessions += AT_ONCE
    return sessions


@pytest.mark.parametrize(
    "method", ["pipar", pytest.param("splitfed-v2", marks=pytest.mark.slow), pytest.param("sl", marks=pytest.mark.slow)]
)
def test_honest_clients_lose_no_bit_to_hostile_sessions(method):
    plan = Plan(11, method, "keep", (None,) * 3, (0.0,) * 3, ())
    data = {name: dataset(name, plan.seed) for name in CLIENTS}
    expected = splitfl.simulate(make_job(plan), clients=data, rounds=ROUNDS)
    jobs = [make_job(plan) for _ in CLIENTS]
    address, listening, done = [], threading.Event(), threading.Event()

    def on_listen(where):
        address.append(where)
        listening.set()

    with ThreadPoolExecutor(5) as threads:
        serving = threads.submit(
            splitfl.serve,
            make_job(plan),
            clients=len(CLIENTS),
            rounds=ROUNDS,
            sessions=SessionLimits(open=64, per_minute=100_000),
            on_listen=on_listen,
        )
        serving.add_done_callback(lambda _: done.set())
        assert listening.wait(20)
        hostile = threads.submit(run_blocking, keep_misbehaving(address[0], done, 1000))
        honest = [
            threads.submit(splitfl.join, job, data[name], server=address[0], name=name)
            for name, job in zip(CLIENTS, jobs, strict=True)
        ]
        result = serving.result(90)
        words = [each.result(20) for each in honest]
        assert hostile.result(60) >= AT_ONCE
    assert words == [f"training is complete after {ROUNDS} rounds"] * len(CLIENTS)
    assert all(record.failures == () for record in result.history.rounds)
    assert all(torch.equal(result.state[name], value) for name, value in expected.state.items())


def test_a_hostile_server_is_left_in_words():
    """What a client hears may be anything, too: it gives up in words, within its patience."""
    plan = Plan(11, "pipar", "reset", (None,) * 3, (0.0,) * 3, ())
    job, data = make_job(plan), dataset("ada", 11)
    job.blueprint()
    draw, corpus = random.Random(3), envelopes()

    async def hostile(channel):
        await channel.hear(timeout=5, what="a hello")
        for _ in range(draw.randint(1, 4)):
            await channel._stream.write(mutate(draw, corpus))
        await asyncio.sleep(0.2)

    server = run_blocking(serve("127.0.0.1:0", hostile))
    try:
        for _ in range(4):
            try:
                word = splitfl.join(job, data, server=server.address, name="ada", patience=0.01)
            except splitfl.SplitflError:
                continue
            assert isinstance(word, str)  # among the words there may be one that says that training is over
    finally:
        run_blocking(server.stop(1.0))


def test_a_server_serves_after_a_flood():
    async def flood():
        heard = []

        async def on_session(channel):
            heard.append(await channel.hear(timeout=5, what="a word"))

        server = await serve("127.0.0.1:0", on_session, sessions=SessionLimits(open=64, per_minute=100_000))
        try:
            for first in range(0, 80, AT_ONCE):
                await asyncio.gather(*(misbehave(server.address, first + index) for index in range(AT_ONCE)))
            channel = await connect(server.address)
            await channel.close()
        finally:
            await server.stop(1.0)

    run_blocking(flood())
