"""One seed, one set of bits: in memory and over gRPC, whatever finishes first."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch

import splitfl
from splitfl.transport import ClientTLS, make_certificates


class Slow(torch.utils.data.Dataset):
    """A data set that takes a random while for each sample, so that clients overtake one another."""

    def __init__(self, data, seed):
        self.data, self.random = data, random.Random(seed)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        import time

        time.sleep(self.random.random() / 500)
        return self.data[index]


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def clients(bench):
    return {
        f"c{client}": bench.dataset(size, seed=client, dtype=torch.float32) for client, size in enumerate((9, 6, 11))
    }


def made_for(bench, method, model="mlp"):
    kind = bench.KINDS[model]
    return bench.job(kind.model, kind.cuts[0], method, dtype=torch.float32)


METHODS = [
    splitfl.methods.fedavg(),
    splitfl.methods.sl(),
    splitfl.methods.splitfed_v1(),
    splitfl.methods.splitfed_v2(),
    splitfl.methods.splitfed_v3(),
    splitfl.methods.pipar(micro_batches=3),
    splitfl.methods.pipar(micro_batches=3, order="1f1b"),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.name}-{method.schedule}")
def test_over_grpc_the_bits_are_those_of_a_run_in_memory(bench, clients, method):
    made = made_for(bench, method)
    expected = splitfl.simulate(made, clients=clients, rounds=2)
    for slots in (1, 3):
        trained, _ = bench.run(bench.over_grpc(made.blueprint(), clients, rounds=2, slots=slots))
        assert equal(trained.state, expected.state)
        models = trained.models()
        assert all(equal(models[name], expected.states[name]) for name in models)


@pytest.mark.parametrize("model", ["dropout", "transformer"])
def test_slow_clients_and_dropout_change_no_bit(bench, clients, model):
    made = made_for(bench, splitfl.methods.pipar(micro_batches=2), model)
    expected = splitfl.simulate(made, clients=clients, rounds=2)
    for seed in (1, 2):
        slow = {name: Slow(data, seed + index) for index, (name, data) in enumerate(clients.items())}
        trained, _ = bench.run(bench.over_grpc(made.blueprint(), slow, rounds=2))
        assert equal(trained.state, expected.state)


def test_ids_follow_names_and_not_arrival(bench, clients):
    made = made_for(bench, splitfl.methods.splitfed_v2())
    expected = splitfl.simulate(made, clients=clients, rounds=1)

    async def late(name, data, plain, _):
        await asyncio.sleep(0.3)
        return await plain(name, data)

    turned = dict(reversed(clients.items()))
    trained, _ = bench.run(bench.over_grpc(made.blueprint(), turned, rounds=1, ends={"c0": late}))
    assert equal(trained.state, expected.state)


def test_codecs_act_alike_in_memory_and_over_tls(bench, clients, tmp_path):
    kind = bench.KINDS["mlp"]
    codec = splitfl.codec(activation="int8", gradient="bf16")
    made = bench.job(kind.model, ("fc1",), splitfl.methods.pipar(micro_batches=2), dtype=torch.float32, codec=codec)
    expected = splitfl.simulate(made, clients=clients, rounds=2)
    tls = make_certificates(tmp_path, ["127.0.0.1"]), ClientTLS(ca=tmp_path / "ca.pem")
    trained, _ = bench.run(bench.over_grpc(made.blueprint(), clients, rounds=2, tls=tls))
    assert equal(trained.state, expected.state)
    plain = bench.job(kind.model, ("fc1",), splitfl.methods.pipar(micro_batches=2), dtype=torch.float32)
    assert not equal(splitfl.simulate(plain, clients=clients, rounds=2).state, expected.state)


def test_another_seed_gives_other_bits(bench, clients):
    one, other = (made_for(bench, "pipar"), bench.job(bench.Mlp, "fc1", "pipar", dtype=torch.float32, seed=4))
    assert not equal(
        splitfl.simulate(one, clients=clients, rounds=1).state, splitfl.simulate(other, clients=clients, rounds=1).state
    )
