"""Clients that send what spoils the work of others, say the wrong thing, or hold everybody up."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace

import pytest
import torch

import splitfl
from splitfl.codecs import frame
from splitfl.run.blueprint import Deadlines
from splitfl.run.scales import TOO_FAR, Scales
from splitfl.schedule import Kind
from splitfl.transport import grpc_stream
from splitfl.transport.messages import PROTOCOL, Begin, Hello, Refuse, Report, Welcome


@pytest.fixture
def clients(bench):
    return {f"c{client}": bench.dataset(samples, seed=client) for client, samples in enumerate((8, 8, 8))}


def blueprint(bench, method, **deadlines):
    chosen = Deadlines(**{"enrollment": 5.0, "step": 3.0, "round": 20.0, "rejoin": 0.0, **deadlines})
    return bench.job(bench.Mlp, "fc1", method, deadlines=chosen).blueprint()


class Meddling:
    """A channel on which outgoing tensors and words pass through a function first; None lets them vanish."""

    def __init__(self, channel, *, tensors=None, words=None):
        self.channel, self.tensors, self.words = channel, tensors, words

    def __getattr__(self, name):
        return getattr(self.channel, name)

    async def send(self, address, payload):
        if self.tensors is not None:
            changed = self.tensors(address, frame.decode(b"".join(payload)))
            if changed is None:
                return 0
            payload = frame.encode(changed)
        return await self.channel.send(address, payload)

    async def tell(self, control):
        changed = self.words(control) if self.words else control
        if changed is not None:
            await self.channel.tell(changed)


def meddling(**functions):
    async def end(name, data, plain, open_channel):
        async def connecting():
            return Meddling(await open_channel(), **functions)

        return await plain(name, data, connecting)

    return end


def run(bench, made, clients, *, rounds=2, ends=None):
    return bench.run(bench.over_grpc(made, clients, rounds=rounds, ends=ends), within=40)


def only(record):
    (failure,) = record.failures
    return failure.client, failure.reason


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_numbers_that_would_spoil_a_shared_tail_are_refused(bench, clients, number):
    """On a tail that all share, one client's NaN would be everybody's; the round is repeated without it."""

    def poison(address, tensors):
        if address.value.kind is Kind.ACT and address.step == 1:
            return {name: value * number if value.is_floating_point() else value for name, value in tensors.items()}
        return tensors

    made = blueprint(bench, "splitfed-v2")
    trained, _ = run(bench, made, clients, ends={"c1": meddling(tensors=poison)})
    client, reason = only(trained.rounds[0])
    assert client == "c1"
    assert "holds NaN" in reason or "what it sent is as large as inf" in reason
    assert all(torch.isfinite(value).all() for value in trained.state.values())
    assert trained.rounds[1].participants == ("c0", "c2")


@pytest.mark.parametrize("size", [1e30, 1e200, math.inf])
@pytest.mark.parametrize("method", ["splitfed-v2", "parallel-sl", "epsl", "scala", "local-loss"])
def test_whoever_blows_up_what_all_share_is_blamed_and_not_its_victims(bench, clients, method, size):
    """Large numbers make steps after which the next client's loss is no number; huge ones are not let in at all."""

    def swell(address, tensors):
        if address.value.kind is Kind.ACT and address.step == 1:
            return {name: value * size if value.is_floating_point() else value for name, value in tensors.items()}
        return tensors

    trained, _ = run(bench, blueprint(bench, method), clients, ends={"c1": meddling(tensors=swell)})
    client, reason = only(trained.rounds[0])
    assert client == "c1"
    assert "what it sent is as large as" in reason or "holds NaN" in reason
    assert trained.rounds[1].participants == ("c0", "c2")
    assert all(bool((value.abs() < 100).all()) for value in trained.state.values())


def test_the_larger_numbers_of_one_client_are_blamed_for_a_loss_that_is_none():
    scales = Scales()
    for client, size in ((0, 0.5), (1, 2e5), (2, 3.0)):
        scales.note(client, [torch.full((2, 3), size), torch.tensor([7])])
    assert scales.outlier() == (1, "what it sent is as large as 2.0e+05, that of the others 1.8e+00")
    assert scales.outlier(TOO_FAR) is None
    scales.forget(0)
    scales.forget(2)
    assert scales.outlier() is None  # nobody is left to compare it with


@pytest.mark.parametrize(
    "other",
    [
        lambda labels: labels.reshape(-1, 1),
        lambda labels: torch.nn.functional.one_hot(labels, 3),
        lambda labels: labels.double(),
    ],
    ids=["column", "one-hot", "float"],
)
@pytest.mark.parametrize("method", ["parallel-sl", "scala"])
def test_labels_of_another_form_do_not_end_a_merged_batch(bench, clients, method, other):
    inputs, labels = clients["c1"].tensors
    clients["c1"] = torch.utils.data.TensorDataset(inputs, other(labels))
    trained, _ = run(bench, blueprint(bench, method), clients, rounds=1)
    client, reason = only(trained.rounds[0])
    assert client == "c1"
    assert "its labels are" in reason
    assert "those of the others int64[]" in reason
    assert trained.rounds[0].participants == ("c0", "c2")


def test_a_claim_of_more_samples_than_can_be_planned_is_refused(bench, clients):
    made = blueprint(bench, "splitfed-v1", enrollment=2.0)
    heard = []

    async def boast(name, data, plain, open_channel):
        channel = await open_channel()
        await channel.tell(Hello(PROTOCOL, name, json.dumps(made.fingerprints()), 10**12, "test"))
        heard.append(await channel.hear(timeout=5, what="the refusal"))

    with pytest.raises(splitfl.SplitflError, match="2 of 3 clients enrolled"):
        run(bench, made, clients, ends={"c1": boast})
    (word,) = heard
    assert isinstance(word, Refuse)
    assert "claims 1000000000000 training samples, 250000000000 mini-batches a round" in word.message


def test_labels_that_the_loss_cannot_take_are_the_clients_own_fault(bench, clients, caplog):
    inputs, labels = clients["c1"].tensors
    clients["c1"] = torch.utils.data.TensorDataset(inputs, labels + 1)
    for method in ("pipar", "splitfed-v2"):
        trained, _ = run(bench, blueprint(bench, method), clients, rounds=1)
        client, reason = only(trained.rounds[0])
        assert client == "c1"
        assert "1F1.0 on its data: IndexError: Target 3 is out of bounds" in reason
        assert trained.rounds[0].participants == ("c0", "c2")
    assert "on data of c1 failed" in caplog.text


def test_an_update_that_is_refused_does_not_count_as_taking_part(bench, clients):
    def ruin(address, tensors):
        kept = address.value.kind is not Kind.PARAMS
        return tensors if kept else {name: value * math.nan for name, value in tensors.items()}

    trained, _ = run(bench, blueprint(bench, "pipar"), clients, rounds=1, ends={"c1": meddling(tensors=ruin)})
    assert only(trained.rounds[0])[0] == "c1"
    assert trained.rounds[0].participants == ("c0", "c2")


@pytest.mark.parametrize(
    "metrics",
    [
        {},
        {"train_loss": 1.0},
        {"train_loss": math.nan, "train_samples": math.nan, "busy": math.inf},
        {"train_loss": 1.0, "train_samples": -5.0, "busy": -1.0},
    ],
)
def test_senseless_metrics_break_nothing(bench, clients, metrics):
    def lie(control):
        return replace(control, metrics=metrics) if isinstance(control, Report) else control

    trained, _ = run(bench, blueprint(bench, "fedavg"), clients, rounds=1, ends={"c1": meddling(words=lie)})
    (record,) = trained.rounds
    assert record.failures == ()
    assert math.isfinite(record.train_loss)
    assert all(0 <= share <= 1 for share in record.idle.values())


def test_a_client_that_gives_up_and_stays_connected_is_believed(bench, clients):
    """A client in another language may say why it stops, and keep the line open."""

    async def stopping(name, data, plain, open_channel):
        channel = await open_channel()
        made = blueprint(bench, "pipar", step=1.0)
        await channel.tell(Hello(PROTOCOL, name, json.dumps(made.fingerprints()), len(data), "test"))
        assert isinstance(await channel.hear(timeout=5, what="welcome"), Welcome)
        assert isinstance(await channel.hear(timeout=5, what="begin"), Begin)
        await channel.tell(Refuse("failed", "the battery is low"))
        await channel.wait_closed()

    trained, _ = run(bench, blueprint(bench, "pipar", step=1.0), clients, rounds=1, ends={"c1": stopping})
    assert only(trained.rounds[0]) == ("c1", "the battery is low")


@pytest.mark.slow
def test_a_client_that_reads_nothing_does_not_hold_the_others_up(bench, clients, monkeypatch):
    """Its channel takes what fits into the buffers on the way; the model does not."""
    usual = grpc_stream.options  # which let gRPC's window grow with what it measures: under load up to the whole model
    monkeypatch.setattr(grpc_stream, "options", lambda silence: [*usual(silence), ("grpc.http2.bdp_probe", 0)])

    class Large(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2 = torch.nn.Linear(6, 2**18), torch.nn.Linear(2**18, 3)

        def forward(self, x):
            return self.fc2(torch.relu(self.fc1(x)))

    deadlines = Deadlines(enrollment=5.0, step=1.0, round=30.0, rejoin=0.0)
    made = bench.job(Large, "fc1", "fedavg", deadlines=deadlines, dtype=torch.float32).blueprint()
    clients = {name: bench.dataset(4, dtype=torch.float32) for name in clients}

    async def deaf(name, data, plain, open_channel):
        channel = await open_channel()
        await channel.tell(Hello(PROTOCOL, name, json.dumps(made.fingerprints()), len(data), "test"))
        assert isinstance(await channel.hear(timeout=5, what="welcome"), Welcome)
        channel._mailbox.put = lambda _: asyncio.sleep(60)  # the first piece of the model stays in its throat
        await asyncio.sleep(2)
        await channel.close()

    trained, _ = run(bench, made, clients, rounds=1, ends={"c1": deaf})
    client, reason = only(trained.rounds[0])
    assert client == "c1"
    assert "it did not take avg[0,1] of round" in reason
    assert reason.endswith("within 1 s")
    assert trained.rounds[0].participants == ("c0", "c2")


def test_the_rounds_deadline_blames_the_one_that_all_wait_for(bench, clients):
    """With a shared tail everybody is late, but not everybody is slow."""

    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            import time

            time.sleep(0.15)
            return clients["c0"][index]

    slow = {**clients, "c1": Slow()}
    trained, _ = run(bench, blueprint(bench, "splitfed-v2", round=1.0), slow, rounds=1)
    assert only(trained.rounds[0]) == ("c1", "not done when the round's deadline of 1 s passed")
    assert trained.rounds[0].participants == ("c0", "c2")


def test_a_relay_in_which_nobody_trained_is_an_error(bench, clients):
    class Broken(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            raise OSError("the disk is gone")

    with pytest.raises(splitfl.SplitflError, match=r"round 1: nobody trained \(c0: OSError: the disk is gone; c1: "):
        run(bench, blueprint(bench, "sl"), dict.fromkeys(clients, Broken()), rounds=1)


def test_a_client_without_a_turn_of_its_own_in_a_relay(bench, clients):
    """It has too few samples for a mini-batch: nothing of it is on the virtual clock either."""
    made = bench.job(bench.Mlp, "fc1", "sl", drop_last=True)
    result = splitfl.simulate(made, clients={**clients, "c3": bench.dataset(2)}, rounds=2)
    for record in result.history.rounds:
        assert only(record) == ("c3", "takes no part: 2 training samples, no full mini-batch of 4 (drop_last)")
        assert record.participants == ("c0", "c1", "c2")
    assert result.history.predicted


def test_diverged_shared_weights_end_the_run_in_words(bench, clients):
    def linear():
        return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 5), torch.nn.Linear(5, 3))

    made = bench.job(linear, "0", "splitfed-v2", optimizer=splitfl.sgd(lr=1e30))
    with pytest.raises(splitfl.SplitflError, match=r"diverged|spoil weights of all"):
        splitfl.simulate(made, clients=clients, rounds=3)
