"""Lost connections and killed ends: whoever comes back, the bits are those of an undisturbed run."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
import torch

import splitfl
from splitfl.run.blueprint import Deadlines
from splitfl.run.options import StoppedError

METHODS = {
    "fedavg": splitfl.methods.fedavg(),
    "sl": splitfl.methods.sl(),
    "splitfed-v2": splitfl.methods.splitfed_v2(),
    "splitfed-v3": splitfl.methods.splitfed_v3(),
    "pipar": splitfl.methods.pipar(micro_batches=2),
}


class Cut:
    """A channel that is closed in the middle: before its n-th bundle is sent."""

    def __init__(self, channel, counter):
        self.channel, self.counter = channel, counter

    def __getattr__(self, name):
        return getattr(self.channel, name)

    async def send(self, address, payload):
        self.counter["sent"] += 1
        if self.counter["sent"] == self.counter["at"]:
            await self.channel.close("the cable was pulled")
        return await self.channel.send(address, payload)


@pytest.fixture
def clients(bench):
    return {f"c{client}": bench.dataset(size, seed=client) for client, size in enumerate((9, 6, 11))}


def made_for(bench, method, **options):
    deadlines = Deadlines(enrollment=10.0, step=10.0, round=60.0, rejoin=10.0)
    return bench.job(bench.Mlp, "fc1", METHODS[method], deadlines=deadlines, **options)


def equal(trained, expected):
    states = [(trained.state, expected.state), *((trained.models()[n], expected.states[n]) for n in expected.states)]
    return all(torch.equal(one[name], other[name]) for one, other in states for name in other)


def cutting(at):
    """An end whose connection is cut before its `at`-th bundle, and that comes back."""

    async def end(name, data, plain, open_channel):
        counter = {"sent": 0, "at": at}

        async def connecting():
            return Cut(await open_channel(), counter)

        return await plain(name, data, connecting, 10.0)

    return end


@pytest.mark.parametrize("state", ["reset", "keep"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("at", [1, 4, 9])
def test_a_cut_connection_changes_no_bit(bench, clients, method, state, at):
    made = made_for(bench, method, optimizer_state=state)
    expected = splitfl.simulate(made, clients=clients, rounds=3)
    ends = {"c1": cutting(at), "c2": cutting(at + 1)}
    trained, words = bench.run(bench.over_grpc(made.blueprint(), clients, rounds=3, ends=ends))
    assert equal(trained, expected)
    assert all(record.failures == () for record in trained.rounds)
    assert all(word == "training is complete after 3 rounds" for word in words.values())


@pytest.mark.parametrize("method", ["fedavg", "sl", "splitfed-v2", "pipar"])
@pytest.mark.parametrize("after", [0.05, 0.2])
def test_a_killed_client_that_is_started_again_changes_no_bit(bench, clients, method, after):
    made = made_for(bench, method)
    expected = splitfl.simulate(made, clients=clients, rounds=3)

    async def killed(name, data, plain, open_channel):
        channels = []

        async def connecting():
            channels.append(await open_channel())
            return channels[-1]

        first = asyncio.create_task(plain(name, data, connecting))
        while not channels or channels[0].received_bytes < 100:
            await asyncio.sleep(0.01)
        await asyncio.sleep(after)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        return await plain(name, data, open_channel, 10.0)

    trained, words = bench.run(bench.over_grpc(made.blueprint(), clients, rounds=3, ends={"c1": killed}))
    assert equal(trained, expected)
    assert words["c0"] == "training is complete after 3 rounds"


def test_a_client_that_stays_away_is_dropped_and_named(bench, clients):
    deadlines = Deadlines(enrollment=10.0, step=10.0, round=60.0, rejoin=0.5)
    made = bench.job(bench.Mlp, "fc1", METHODS["pipar"], deadlines=deadlines)

    async def leaving(name, data, plain, open_channel):
        counter = {"sent": 0, "at": 2}

        async def connecting():
            return Cut(await open_channel(), counter)

        return await plain(name, data, connecting)

    trained, words = bench.run(bench.over_grpc(made.blueprint(), clients, rounds=2, ends={"c1": leaving}))
    (failure,) = trained.rounds[0].failures
    assert failure.client == "c1"
    assert "did not come back within 0.5 s" in failure.reason
    assert trained.rounds[1].failures == ()
    assert "lost the server" in str(words["c1"])


@pytest.mark.parametrize("state", ["reset", "keep"])
@pytest.mark.parametrize("method", METHODS)
def test_a_server_stopped_after_a_round_and_resumed_gives_the_same_bits(bench, clients, method, state, tmp_path):
    made = made_for(bench, method, optimizer_state=state)
    expected = splitfl.simulate(made, clients=clients, rounds=4)
    trained = bench.run(stopped_and_resumed(bench, made, clients, tmp_path))
    assert equal(trained, expected)
    assert [record.round for record in trained.rounds] == [1, 2, 3, 4]


async def stopped_and_resumed(bench, made, clients, folder):
    """Two servers one after the other on one port; the clients live through the change."""
    from splitfl.aggregation import strategy_from
    from splitfl.run.client import Client
    from splitfl.run.enrollment import Enrollment
    from splitfl.run.options import Options
    from splitfl.run.pool import Threads
    from splitfl.run.server import run_server
    from splitfl.transport import connect, serve

    blueprint, port = made.blueprint(), 0
    pools, tasks = [Threads(2)], []
    trained = None
    for resume in (False, True):
        enrollment = Enrollment(blueprint, len(clients))
        server = await serve(f"127.0.0.1:{port}", enrollment.admit)
        port = server.port
        for name, data in {} if tasks else clients.items():
            pools.append(Threads(1))
            connecting = partial(connect, server.address, timeout=20)
            client = Client(blueprint, data, name=name, connect=connecting, pool=pools[-1], patience=20.0)
            tasks.append(asyncio.create_task(client.run()))
        strategy = strategy_from("FedAvg", clients=len(clients)) if blueprint.method.takes_strategy else None
        options = Options(strategy=strategy, checkpoint=folder, resume=resume, stop=lambda resume=resume: not resume)
        work = run_server(blueprint, enrollment, pool=pools[0], options=options, rounds=4)
        if resume:
            trained = await work
        else:
            with pytest.raises(StoppedError, match="stopped after round 1 of 4"):
                await work
        await server.stop(1.0)
    await asyncio.gather(*tasks)
    for pool in pools:
        await asyncio.to_thread(pool.close)
    return trained


def test_a_server_killed_after_its_last_round_ends_without_clients_that_are_gone(bench, clients, tmp_path):
    """Some clients have heard that training is complete and left; the others come back, and are told so, too."""
    from splitfl.aggregation import strategy_from
    from splitfl.run.enrollment import Enrollment
    from splitfl.run.options import Options
    from splitfl.run.pool import Threads
    from splitfl.run.server import run_server

    made = made_for(bench, "splitfed-v3")
    trained, _ = bench.run(bench.over_grpc(made.blueprint(), clients, rounds=2, checkpoint=tmp_path))

    async def again():
        blueprint = made.blueprint()
        enrollment = Enrollment(blueprint, len(clients))
        options = Options(strategy=strategy_from("FedAvg", clients=3), checkpoint=tmp_path, resume=True)
        pool = Threads(1)
        found = await run_server(blueprint, enrollment, pool=pool, options=options, rounds=2)
        await asyncio.to_thread(pool.close)
        return found

    found = bench.run(again(), within=15)
    assert equal(found, splitfl.simulate(made, clients=clients, rounds=2))
    assert found.rounds == trained.rounds
    assert found.names == trained.names == ("c0", "c1", "c2")

    _, words = bench.run(
        bench.over_grpc(made.blueprint(), {"c1": clients["c1"]}, rounds=2, checkpoint=tmp_path, resume=True)
    )
    assert words == {"c1": "training is complete after 2 rounds"}
