"""Updates of which only a part is sent: against a plain loop, over broken lines, and in bytes."""

from __future__ import annotations

import asyncio
import copy

import pytest
import torch
from torch import nn

import splitfl
from splitfl.codecs import frame, parse
from splitfl.data.batches import Batches, plan
from splitfl.run.blueprint import Deadlines
from splitfl.run.seeds import derive

SAMPLES = (9, 6, 11)
ROUNDS = 3


def wide():
    """Tensors of more than 64 elements, so that something is left out, and small ones, of which nothing is."""
    return nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 24), nn.Tanh(), nn.Linear(24, 3))


@pytest.fixture
def clients(bench):
    return {f"c{client}": bench.dataset(size, seed=client) for client, size in enumerate(SAMPLES)}


def made_for(bench, update, method="fedavg"):
    deadlines = Deadlines(enrollment=10.0, step=10.0, round=60.0, rejoin=10.0)
    return bench.job(wide, "1", method, codec=splitfl.codec(update=update), deadlines=deadlines)


def by_hand(made, clients, text):
    """FedAvg on whole models; each client sends the codec's picture of its change and of what it left over."""
    codec = parse(text)
    whole = made.build_model()
    left = [{name: torch.zeros_like(value) for name, value in whole.state_dict().items()} for _ in clients]
    total = sum(map(len, clients))
    for number in range(1, ROUNDS + 1):
        before = copy.deepcopy(whole.state_dict())
        arrived = []
        for client, data in enumerate(clients):
            own = copy.deepcopy(whole)
            optimizer = made.optimizer(own.parameters())
            seed = derive(derive(made.seed, "round", number), "data", client)
            batches = Batches(data, sizes=plan(len(data), batch_size=made.batch_size), seed=seed, shuffle=True)
            for step in range(len(batches)):
                x, target = batches[step]
                made.loss(own(x), target).backward()
                optimizer.step()
                optimizer.zero_grad()
            change = {name: value - before[name] for name, value in own.state_dict().items()}
            if codec.feedback:
                change = {name: value + left[client][name] for name, value in change.items()}
            seen = frame.decode(b"".join(frame.encode(change, codec)))
            left[client] = {name: value - seen[name] for name, value in change.items()}
            arrived.append({name: before[name] + value for name, value in seen.items()})
        shares = [len(data) / total for data in clients]
        whole.load_state_dict(
            {name: sum(each[name] * w for each, w in zip(arrived, shares, strict=True)) for name in before}
        )
    return whole.state_dict()


@pytest.mark.parametrize("update", ["topk:0.1", "topk:0.1+feedback", "topk:0.2+int8+feedback"])
def test_what_is_left_out_is_left_for_the_next_round_where_the_codec_says_so(bench, clients, update):
    made = made_for(bench, update)
    result = splitfl.simulate(made, clients=clients, rounds=ROUNDS)
    # The average goes down in the format of the codec, which here keeps every bit unless it is int8.
    if "int8" not in update:
        assert bench.difference(result.state, by_hand(made, list(clients.values()), update)) < 1e-9
    trained, _ = bench.run(bench.over_grpc(made.blueprint(), clients, rounds=ROUNDS))
    assert bench.difference(trained.model, result.state) == 0


def test_feedback_brings_what_was_left_out(bench, clients):
    """Without it small changes never arrive, with it they add up until they do: nearer to what a whole update gives."""
    whole = splitfl.simulate(made_for(bench, "raw"), clients=clients, rounds=40).state
    states = [
        splitfl.simulate(made_for(bench, f"topk:0.05{more}"), clients=clients, rounds=40).state
        for more in ("", "+feedback")
    ]
    far, near = (sum(float((state[name] - whole[name]).norm()) for name in whole) for state in states)
    assert near < 0.8 * far


def test_random_positions_come_from_the_seed(bench, clients):
    made = made_for(bench, "randk:0.3+feedback", "splitfed-v1")
    first, again = (splitfl.simulate(made, clients=clients, rounds=2).state for _ in range(2))
    assert bench.difference(first, again) == 0
    trained, _ = bench.run(bench.over_grpc(made.blueprint(), clients, rounds=2))
    assert bench.difference(trained.model, first) == 0


@pytest.mark.parametrize("at", ["avg", "params"])
def test_a_line_that_breaks_changes_no_bit(bench, clients, at):
    """The line of one client is cut in its second round, before it sends its update, or right after."""
    made = made_for(bench, "topk:0.1+feedback")
    expected = splitfl.simulate(made, clients=clients, rounds=ROUNDS)
    turns, cut = set(), []

    async def end(name, data, plain, open_channel):
        async def connecting():
            channel = await open_channel()
            told, heard = channel.send, channel.receive

            async def send(address, payload):
                sent = await told(address, payload)
                turns.add(address.round)
                if at == "params" and len(turns) == 2 and not cut:
                    cut.append(address)
                    await channel.close()
                return sent

            async def receive(address, *, timeout):
                if at == "avg" and turns and not cut:
                    cut.append(address)
                    await channel.close()
                return await heard(address, timeout=timeout)

            channel.send, channel.receive = send, receive
            return channel

        return await plain(name, data, connecting, patience=10.0)

    trained, words = bench.run(bench.over_grpc(made.blueprint(), clients, rounds=ROUNDS, ends={"c1": end}))
    assert len(cut) == 1
    assert words["c1"] == f"training is complete after {ROUNDS} rounds"
    assert bench.difference(trained.model, expected.state) == 0


@pytest.mark.parametrize("number", [2, 3])
def test_a_killed_client_goes_on_with_what_it_left_over(bench, clients, number, tmp_path):
    made = made_for(bench, "topk:0.1+feedback")
    expected = splitfl.simulate(made, clients=clients, rounds=ROUNDS)

    async def end(name, data, plain, open_channel):
        turns = set()

        async def connecting():
            channel = await open_channel()
            heard = channel.receive

            async def receive(address, *, timeout):
                turns.add(address.round)
                return await heard(address, timeout=timeout)

            channel.receive = receive
            return channel

        first = asyncio.create_task(plain(name, data, connecting, state=tmp_path))
        while len(turns) < number and not first.done():
            await asyncio.sleep(0.002)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        return await plain(name, data, open_channel, 10.0, state=tmp_path)

    trained, words = bench.run(bench.over_grpc(made.blueprint(), clients, rounds=ROUNDS, ends={"c1": end}))
    assert words["c1"] == f"training is complete after {ROUNDS} rounds"
    assert bench.difference(trained.model, expected.state) == 0


def test_updates_take_the_bytes_that_were_promised(bench, clients):
    class Large(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(6, 2000), nn.Linear(2000, 3)

        def forward(self, x):
            return self.fc2(torch.relu(self.fc1(x)))

    numbers = 12_000 + 6_000 + 2_003  # of which the last, biases, have 2,000 and 3
    for update, bytes_each in (
        ("raw", 4),
        ("bf16", 2),
        ("int8", 1),
        ("int4", 0.5),
        ("topk:0.1", 0.525),
        ("topk:0.01+int8", 0.05),
    ):
        options = {"codec": splitfl.codec(update=update), "dtype": torch.float32, "local_steps": 1}
        result = splitfl.simulate(bench.job(Large, "fc1", "fedavg", **options), rounds=1, clients=[
            bench.dataset(4, dtype=torch.float32)
        ])  # fmt: skip
        assert result.history.rounds[0].bytes_up == pytest.approx(numbers * bytes_each, rel=0.02, abs=600)
