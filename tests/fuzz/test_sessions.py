"""Hostile sessions against a server that trains: whatever they say and in which order, honest clients lose no bit."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import grpc.aio
import pytest
import torch

import splitfl
from splitfl.api.loop import run_blocking
from splitfl.schedule.instruction import Kind, Value
from splitfl.transport import SessionLimits, connect, serve
from splitfl.transport.envelope import encode_control, encode_parts
from splitfl.transport.grpc_stream import METHOD
from splitfl.transport.messages import PROTOCOL, Address, Begin, Finish, Hello, Report
from splitfl.transport.stream import StreamEnded
from tests.faults.ends import dataset, make_job
from tests.faults.plan import CLIENTS, Plan
from tests.faults.reference import Leaving
from tests.fuzz.corpus import envelopes, frames
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


async def betray(address: str, blueprint, samples: int, seed: int) -> str:
    """One that enrolls with the right job, and in its turn sends what no client may; why its session ended."""
    draw, corpus = random.Random(seed), envelopes()
    channel = await connect(address)
    fingerprint = json.dumps(blueprint.fingerprints())
    await channel.tell(Hello(PROTOCOL, "dan", fingerprint, samples, "splitfl", instance="d"))
    welcome = await channel.hear(timeout=30, what="a welcome")
    begin = await channel.hear(timeout=30, what="a turn")
    assert isinstance(begin, Begin)
    for _ in range(draw.randint(5, 40)):
        kind, micro = draw.choice(((Kind.ACT, 0), (Kind.ACT, 1), (Kind.GRAD, 0), (Kind.PARAMS, None), (Kind.AVG, None)))
        value = Value(kind, draw.choice((0, 0, 0, 1, 7)), draw.choice((welcome.client, 0)), micro)
        place = Address(begin.round, draw.choice((0, 0, 1, 9)), value)
        theirs = [*encode_parts(place, [draw.choice(frames())]), encode_control(Report(begin.round, samples))]
        try:
            await channel._stream.write(mutate(draw, draw.choice((theirs, corpus))))
        except StreamEnded:
            break  # the server has had enough
    await channel.wait_closed()
    reason = channel.reason
    await channel.close()
    return reason


@pytest.mark.parametrize("method", ["pipar", "splitfed-v2"])
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
def test_an_enrolled_traitor_leaves_no_trace(method, seed):
    plan = Plan(13, method, "keep", (None,) * 3, (0.0,) * 3, ())
    deadlines = splitfl.Deadlines(enrollment=30.0, step=4.0, round=30.0, rejoin=0.5)
    job = replace(make_job(plan), deadlines=deadlines)
    data = {name: dataset(name, plan.seed) for name in CLIENTS}
    theirs = dataset("ada", plan.seed + 1)
    expected = splitfl.simulate(job, clients={**data, "dan": Leaving(theirs, 0)}, rounds=2)
    address = []
    listening = threading.Event()

    def on_listen(where):
        address.append(where)
        listening.set()

    with ThreadPoolExecutor(5) as threads:
        serving = threads.submit(splitfl.serve, job, clients=4, rounds=2, on_listen=on_listen)
        assert listening.wait(20)
        traitor = threads.submit(run_blocking, betray(address[0], job.blueprint(), len(theirs), seed))
        honest = [threads.submit(splitfl.join, job, data[name], server=address[0], name=name) for name in CLIENTS]
        result = serving.result(60)
        assert [each.result(20) for each in honest] == ["training is complete after 2 rounds"] * 3
        assert traitor.result(20)
    (failure,) = result.history.rounds[0].failures
    assert failure.client == "dan"
    assert all(record.participants == CLIENTS for record in result.history.rounds)
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
            heard.clear()
            channel = await connect(server.address)
            await channel.tell(Finish("still there"))
            await channel.wait_closed()
            assert heard == [Finish("still there")]
            await channel.close()
        finally:
            await server.stop(1.0)

    run_blocking(flood())
