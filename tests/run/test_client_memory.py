"""What is a client's own outlives its process: the bits are those of a client that was never killed."""

from __future__ import annotations

import asyncio

import pytest
import torch

import splitfl
from splitfl.run.blueprint import Deadlines
from splitfl.run.checkpoint import CheckpointError
from splitfl.run.client_memory import ClientMemory

METHODS = {
    "fedavg": splitfl.methods.fedavg(),
    "sl": splitfl.methods.sl(),
    "splitfed-v2": splitfl.methods.splitfed_v2(),
    "splitfed-v3": splitfl.methods.splitfed_v3(),
    "pipar": splitfl.methods.pipar(micro_batches=2),
}


def made_for(bench, method, state):
    deadlines = Deadlines(enrollment=10.0, step=10.0, round=60.0, rejoin=10.0)
    return bench.job(bench.Mlp, "fc1", METHODS[method], deadlines=deadlines, optimizer_state=state)


def killed_in_round(number, folder):
    """An end that dies while it is in its turn of round `number` or later, and starts anew with the same folder."""

    async def end(name, data, plain, open_channel):
        turns = []

        async def connecting():
            return Watched(await open_channel(), turns)

        first = asyncio.create_task(plain(name, data, connecting, state=folder))
        while len(turns) < number and not first.done():
            await asyncio.sleep(0.002)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        return await plain(name, data, open_channel, 10.0, state=folder)

    return end


class Watched:
    """A channel that notes in which turns it sent something."""

    def __init__(self, channel, turns):
        self.channel, self.turns = channel, turns

    def __getattr__(self, name):
        return getattr(self.channel, name)

    async def send(self, address, payload):
        if address.round not in self.turns:
            self.turns.append(address.round)
        return await self.channel.send(address, payload)


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize(("method", "state"), [("splitfed-v3", "reset"), *((name, "keep") for name in METHODS)])
def test_a_killed_client_goes_on_with_what_is_its_own(bench, method, state, number, tmp_path):
    clients = {f"c{client}": bench.dataset(size, seed=client) for client, size in enumerate((9, 6, 11))}
    made = made_for(bench, method, state)
    expected = splitfl.simulate(made, clients=clients, rounds=3)
    ends = {"c1": killed_in_round(number, tmp_path)}
    trained, words = bench.run(bench.over_grpc(made.blueprint(), clients, rounds=3, ends=ends))
    assert words["c1"] == "training is complete after 3 rounds"
    assert all(record.failures == () for record in trained.rounds)
    for name in expected.state:
        assert torch.equal(trained.state[name], expected.state[name])
    for client, model in expected.states.items():
        assert all(torch.equal(trained.models()[client][name], model[name]) for name in model)


def test_nothing_is_written_where_nothing_is_a_clients_own(bench, tmp_path):
    clients = {"c0": bench.dataset(6)}
    made = made_for(bench, "pipar", "reset")

    async def end(name, data, plain, open_channel):
        return await plain(name, data, state=tmp_path)

    bench.run(bench.over_grpc(made.blueprint(), clients, rounds=1, ends={"c0": end}))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_client_or_job_is_refused(bench, tmp_path):
    blueprint = made_for(bench, "splitfed-v3", "reset").blueprint()
    ClientMemory(tmp_path, "c0", blueprint).keep("after", 7, {"weights/0/x": torch.ones(1)})
    with pytest.raises(CheckpointError, match="of another client"):
        ClientMemory(tmp_path, "c1", blueprint).recall(7, 1)
    other = made_for(bench, "splitfed-v3", "keep").blueprint()
    with pytest.raises(CheckpointError, match="of another job"):
        ClientMemory(tmp_path, "c0", other).recall(7, 0)
