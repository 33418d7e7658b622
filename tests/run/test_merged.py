"""One batch of the samples of all clients on the server, beside plain PyTorch on the same samples."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

import pytest
import torch
from torch import nn

import splitfl
from splitfl.data.batches import Batches, plan
from splitfl.data.sampling import global_plan
from splitfl.methods import METHODS, Merging, Method
from splitfl.run.limits import channel_limits
from splitfl.run.seeds import derive
from splitfl.run.together import ROUNDING

SAMPLES = (8, 12, 6)
ROUNDS = 2
CLASSES = 3


class Normed(nn.Module):
    """A tail whose BatchNorm sees who else is in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(6, 8)
        self.fc2, self.fc3 = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 7)), nn.Linear(7, CLASSES)

    def forward(self, x):
        return self.fc3(torch.tanh(self.fc2(torch.relu(self.fc1(x)))))


@pytest.fixture
def clients(bench):
    return [bench.dataset(samples, seed=client) for client, samples in enumerate(SAMPLES)]


@dataclass
class Batch:
    """What the clients of one mini-batch sent: activations with their graphs, and labels."""

    sent: list[torch.Tensor]
    labels: list[torch.Tensor]
    tail: Callable[[torch.Tensor], torch.Tensor]
    weights: list[nn.Parameter]

    @property
    def rows(self):
        return [len(labels) for labels in self.labels]


def plainly(batch):
    nn.functional.cross_entropy(batch.tail(torch.cat(batch.sent)), torch.cat(batch.labels)).backward()


def averaging(ratio):
    def train(batch):
        rows, count = batch.rows, ceil(ratio * min(batch.rows))
        with torch.enable_grad():
            leaves = [sent.detach().requires_grad_() for sent in batch.sent]
            mean = sum(len(leaf) / sum(rows) * leaf.detach()[:count] for leaf in leaves).requires_grad_()
            outputs = batch.tail(torch.cat([*leaves, mean]))
            loss = nn.functional.cross_entropy(outputs[: sum(rows)], torch.cat(batch.labels))
        upstream = torch.autograd.grad(loss, outputs, retain_graph=True)[0].split([*rows, count])
        start = [torch.cat([torch.zeros_like(part[:count]), part[count:]]) for part in upstream[:-1]]
        outputs.backward(torch.cat([*start, sum(part[:count] for part in upstream[:-1])]))
        for sent, leaf in zip(batch.sent, leaves, strict=True):
            share = len(leaf) / sum(rows) * mean.grad
            sent.backward(torch.cat([share, leaf.grad[count:]]))

    return train


def adjusting(batch):
    def prior(labels):
        return torch.stack([(labels == each).double().mean().clamp(min=1e-9).log() for each in range(CLASSES)])

    outputs, labels = batch.tail(torch.cat(batch.sent)), torch.cat(batch.labels)
    whole = nn.functional.cross_entropy(outputs + prior(labels), labels)
    found = torch.autograd.grad(whole, batch.weights, retain_graph=True)
    parts = [
        nn.functional.cross_entropy(output + prior(own), own) * (len(own) / len(labels))
        for output, own in zip(outputs.split(batch.rows), batch.labels, strict=True)
    ]
    sum(parts).backward()  # also into the tail, whose gradients are replaced
    for weight, gradient in zip(batch.weights, found, strict=True):
        weight.grad = gradient


def by_hand(made, clients, *, sizes_of, train):
    """Fronts and tail after training; `sizes_of(round)` are each client's mini-batches, 0 where it sits one out."""
    whole = made.build_model()
    front, tail = whole.fc1, nn.ModuleList([whole.fc2, whole.fc3])
    fronts = [copy.deepcopy(front) for _ in clients]
    total = sum(map(len, clients))
    for number in range(1, ROUNDS + 1):
        steppers, shared = [made.optimizer(each.parameters()) for each in fronts], made.optimizer(tail.parameters())
        seeds = [derive(derive(made.seed, "round", number), "data", client) for client in range(len(clients))]
        sizes = sizes_of(number)
        batches = [
            Batches(each, sizes=tuple(own), seed=seed, shuffle=True)
            for each, own, seed in zip(clients, sizes, seeds, strict=True)
        ]
        for step in range(max(map(len, sizes))):
            taking = [client for client, own in enumerate(sizes) if step < len(own) and own[step]]
            drawn = [batches[client][step] for client in taking]
            sent = [fronts[client](x) for client, (x, _) in zip(taking, drawn, strict=True)]
            labels = [target for _, target in drawn]
            compute = lambda sent: tail[1](torch.tanh(tail[0](torch.relu(sent))))  # noqa: E731
            train(Batch(sent, labels, compute, list(tail.parameters())))
            for optimizer in (*(steppers[client] for client in taking), shared):
                optimizer.step()
                optimizer.zero_grad()
        if made.method.average_front:
            states = [each.state_dict() for each in fronts]
            shares = [len(each) / total for each in clients]
            mean = {name: sum(s[name] * w for s, w in zip(states, shares, strict=True)) for name in states[0]}
            for each in fronts:
                each.load_state_dict(mean)
    return fronts, tail


def planned(made, minimum=1):
    """The mini-batches of each round, as the method says."""
    method = made.method

    def sizes_of(number):
        if not method.global_sampling:
            batch = [method.batch_size(client, made.batch_size) for client in range(len(SAMPLES))]
            return [plan(n, batch_size=b, minimum=minimum) for n, b in zip(SAMPLES, batch, strict=True)]
        batch = method.global_batch or made.batch_size * len(SAMPLES)
        counts = global_plan(dict(enumerate(SAMPLES)), batch=batch, seed=derive(made.seed, "sizes", number))
        return [[step.get(client, 0) for step in counts] for client in range(len(SAMPLES))]

    return sizes_of


CASES = {
    "parallel-sl": (METHODS["parallel-sl"](), plainly),
    "parallel-sl, own fronts": (METHODS["parallel-sl"](average_front=False), plainly),
    "gpsl": (METHODS["gpsl"](global_batch=7), plainly),
    "mergesfl": (METHODS["mergesfl"](speeds=(1.0, 0.5)), plainly),
    "epsl, none": (METHODS["epsl"](aggregation_ratio=0.0), plainly),
    "epsl, half": (METHODS["epsl"](aggregation_ratio=0.5), averaging(0.5)),
    "epsl, all": (METHODS["epsl"](aggregation_ratio=1.0, average_front=False), averaging(1.0)),
    "scala": (METHODS["scala"](global_batch=7), adjusting),
    "scala, even": (METHODS["scala"](global_sampling=False), adjusting),
}


def expected(made, clients, model_minimum, train):
    fronts, tail = by_hand(made, clients, sizes_of=planned(made, model_minimum), train=train)
    found = []
    for front in fronts:
        ends = [("fc1", front), ("fc2", tail[0]), ("fc3", tail[1])]
        found.append({f"{layer}.{key}": value for layer, part in ends for key, value in part.state_dict().items()})
    return found


@pytest.mark.parametrize("cut", ["fc1", ["fc1", "fc2"]], ids=["one tail", "two stages of it"])
@pytest.mark.parametrize("case", CASES)
def test_the_server_trains_on_all_samples_together(bench, clients, case, cut):
    method, train = CASES[case]
    made = bench.job(bench.Mlp, cut, method)
    states = expected(made, clients, 1, train)
    result = splitfl.simulate(made, clients=clients, rounds=ROUNDS)
    for state, name in zip(states, result.history.clients, strict=True):
        got = result.state if method.average_front else result.states[name]
        assert bench.difference(got, state) < 1e-12
    named = {f"c{client}": each for client, each in enumerate(clients)}
    trained, _ = bench.run(bench.over_grpc(made.blueprint(), named, rounds=ROUNDS))
    assert bench.difference(trained.model, result.state) == 0


@pytest.mark.parametrize("name", ["parallel-sl", "epsl", "mergesfl"])
def test_a_batch_norm_of_the_tail_sees_everybody(bench, clients, name):
    made = bench.job(Normed, "fc1", METHODS[name]())
    states = expected(made, clients, 2, averaging(0.5) if name == "epsl" else plainly)
    result = splitfl.simulate(made, clients=clients, rounds=ROUNDS)
    assert bench.difference(result.state, states[0]) < 1e-12


def test_epsl_without_averages_is_parallel_sl(bench, clients):
    def trained(method):
        return splitfl.simulate(bench.job(bench.Mlp, "fc1", method), clients=clients, rounds=ROUNDS)

    plain = trained("parallel-sl")
    assert bench.difference(trained(METHODS["epsl"](aggregation_ratio=0.0)).state, plain.state) == 0
    assert bench.difference(trained(METHODS["mergesfl"]()).state, plain.state) == 0


def test_who_is_slower_takes_smaller_mini_batches():
    method = METHODS["mergesfl"](speeds=(2.0, 1.0, 0.1))
    assert [method.batch_size(client, 16) for client in range(5)] == [16, 8, 1, 16, 8]


def test_a_client_whose_labels_fail_is_named_and_the_others_go_on(bench, clients):
    bad = torch.utils.data.TensorDataset(clients[1].tensors[0], clients[1].tensors[1] + 5)
    named = {"c0": clients[0], "c1": bad, "c2": clients[2]}
    trained, _ = bench.run(bench.over_grpc(bench.job(bench.Mlp, "fc1", "parallel-sl").blueprint(), named, rounds=1))
    (failure,) = trained.rounds[0].failures
    assert failure.client == "c1"
    assert "1F.0 on its data" in failure.reason
    assert "out of bounds" in failure.reason
    assert all(bool(value.isfinite().all()) for value in trained.model.values())


def test_ignored_labels_count_for_no_class(bench, clients):
    """-100 is what torch's cross-entropy leaves out: here the first sample of one client."""
    labels = clients[1].tensors[1].clone()
    labels[0] = -100
    with_ignored = [clients[0], torch.utils.data.TensorDataset(clients[1].tensors[0], labels), clients[2]]
    made = bench.job(bench.Mlp, "fc1", METHODS["scala"](global_sampling=False))
    result = splitfl.simulate(made, clients=with_ignored, rounds=1)
    assert not result.history.rounds[0].failures
    assert all(bool(value.isfinite().all()) for value in result.state.values())


def test_a_share_is_rounded_up_once():
    """0.55 x 100 is a little more than 55 in binary."""
    assert [ceil(share * count - ROUNDING) for share, count in ((0.55, 100), (0.07, 100), (0.5, 5))] == [55, 7, 3]


def test_a_transform_looks_at_one_client_at_a_time(bench, clients):
    """What a client did not send has no gradient, whatever others sent: columns of zeros are left out of both ways."""
    codec = splitfl.codec(activation="columns", gradient="columns")

    def bytes_down(method):
        wide = lambda: nn.Sequential(nn.Linear(6, 400), nn.Tanh(), nn.Linear(400, 3))  # noqa: E731
        made = replace(bench.job(wide, "1", method), codec=codec, transform="feature-dropout:0.1")
        return splitfl.simulate(made, clients=clients, rounds=1).history.rounds[0].bytes_down

    alone, merged = bytes_down("splitfed-v2"), bytes_down("parallel-sl")
    assert merged < 1.1 * alone


def test_a_slow_client_with_full_mini_batches_of_its_own_takes_part(bench):
    method = METHODS["mergesfl"](speeds=(1.0, 0.25))
    made = replace(bench.job(bench.Mlp, "fc1", method), batch_size=8, drop_last=True)
    data = [bench.dataset(16, seed=0), bench.dataset(6, seed=1)]
    assert splitfl.simulate(made, clients=data, rounds=1).history.rounds[0].participants == ("c0", "c1")


def test_a_global_batch_that_nobody_can_fill_is_an_error(bench, clients):
    made = replace(bench.job(bench.Mlp, "fc1", METHODS["gpsl"](global_batch=500)), drop_last=True)
    with pytest.raises(splitfl.SplitflError, match="global_batch = 500 with drop_last: the clients have 26 samples"):
        splitfl.simulate(made, clients=clients, rounds=1)


def test_one_clients_share_of_a_global_batch_may_be_all_of_it(bench):
    made = bench.job(lambda: nn.Sequential(nn.Linear(6, 50_000), nn.Linear(50_000, 3)), "0", "gpsl").blueprint()
    needed = made.training.batch_size * 20 * 50_000 * 8
    assert channel_limits(made, clients=20).message >= needed


def test_logit_adjustment_wants_one_class_per_sample(bench):
    made = replace(bench.job(bench.Mlp, "fc1", "scala"), loss=nn.functional.mse_loss)
    data = torch.utils.data.TensorDataset(torch.zeros(8, 6).double(), torch.zeros(8, 3).double())
    with pytest.raises(splitfl.SplitflError, match=r"one class for each sample .* float64\[4, 3\]"):
        splitfl.simulate(made, clients=[data], rounds=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"joint_step": False}, "merging = Merging"),
        ({"micro_batches": 2}, "micro_batches = 2, expected 1 where clients"),
        ({"speeds": ()}, r"speeds = \(\), expected numbers above 0"),
        ({"speeds": (1.0, -1.0)}, "speeds = .* expected numbers above 0"),
    ],
)
def test_contradictions_name_their_field(options, message):
    whole = {"shared_tail": True, "joint_step": True, "merging": Merging(), **options}
    with pytest.raises(ValueError, match=f"method mine: {message}"):
        Method(name="mine", schedule="sequential", **whole)


@pytest.mark.parametrize("options", [{"averaged": 1.5}, {"averaged": 0.5, "logit_adjustment": True}])
def test_a_merging_that_cannot_be_is_refused(options):
    with pytest.raises(ValueError, match="merging: averaged"):
        Merging(**options)


def test_global_sampling_takes_a_model_that_a_single_sample_is_enough_for(bench):
    with pytest.raises(splitfl.JobError, match=r"gpsl' draws mini-batches of any size, this model takes 2 samples"):
        bench.job(lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), "0", "gpsl").blueprint()
