"""Buffered rounds whose tail is balanced with drawn activations, against a plain loop that keeps all that ever came."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import splitfl
from splitfl.data.batches import Batches, order, plan
from splitfl.run.seeds import derive

SAMPLES = (8, 21, 13)
DEVICES = ["laptop", "raspberry-pi-3", "laptop"]
gas = splitfl.methods.gas


@pytest.fixture
def clients(bench):
    """Each client has one label more often than the others, and c1 has no other at all."""
    found = []
    for client, samples in enumerate(SAMPLES):
        x, y = bench.dataset(samples, seed=samples).tensors
        often = torch.full_like(y, client)
        found.append(TensorDataset(x, often if client == 1 else torch.where(torch.arange(samples) % 3 > 0, often, y)))
    return found


def front(model, x):
    return torch.relu(model.fc1(x))


def tail(model, activation):
    return model.fc3(torch.tanh(model.fc2(activation)))


def trained(made, start, data, client, number):
    """The whole model's weights after a client's turn, and what its front sent in it, with the labels."""
    model = made.build_model()
    model.load_state_dict(start)
    optimizer = made.optimizer(model.parameters())
    seed = derive(derive(made.seed, "round", number), "data", client)
    batches = Batches(data, sizes=plan(len(data), batch_size=made.batch_size), seed=seed, shuffle=True)
    sent = []
    for step in range(len(batches)):
        x, y = batches[step]
        activation = front(model, x)
        sent.append((activation.detach(), y))
        made.loss(tail(model, activation), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return copy_of(model.state_dict()), [torch.cat(part) for part in zip(*sent, strict=True)]


def copy_of(state):
    return {name: value.clone() for name, value in state.items()}


def put_onto(now, learned):
    """`now` and the mean of what was learned; `learned`: (samples, share, from, to)."""
    total = sum(samples for samples, *_ in learned)
    return {
        name: value + sum(n / total * share * (after[name] - before[name]) for n, share, before, after in learned)
        for name, value in now.items()
    }


def evened(counts, most):
    """One more for the label with the fewest, until all have as many as the most frequent or there were `most`."""
    added = dict.fromkeys(counts, 0)
    for _ in range(most):
        label = min(counts, key=lambda each: (counts[each] + added[each], each))
        if counts[label] + added[label] == max(counts.values()):
            break
        added[label] += 1
    return added


def drawn(made, ever, added, number):
    """Activations and labels from the weighted mean and variance of all that ever came of each label."""
    seed = derive(made.seed, "generated", number)
    activations, labels = [], []
    for label, count in sorted(added.items()):
        rows = torch.cat([x[y == label] for x, y, _ in ever])
        weights = torch.cat([torch.full((int((y == label).sum()),), float(w)) for _, y, w in ever]).double()[:, None]
        mean = (weights * rows).sum(dim=0) / weights.sum()
        spread = ((weights * (rows - mean) ** 2).sum(dim=0) / weights.sum()).sqrt()
        generator = torch.Generator().manual_seed(derive(seed, label))
        noise = torch.randn(count, rows.shape[1], generator=generator, dtype=rows.dtype)
        activations.append(mean + spread * noise)
        labels.append(torch.full((count,), label))
    return torch.cat(activations), torch.cat(labels)


def balanced(made, state, came, ever, number):
    """`state` with a tail that was trained on what came and on what is drawn; and the labels that it saw."""
    x, y = (torch.cat(part) for part in zip(*came, strict=True))
    counts = {label: int((y == label).sum()) for label in sorted({int(each) for _, known, _ in ever for each in known})}
    more, labels = drawn(made, ever, evened(counts, int(made.method.generated * len(y))), number)
    x, y = torch.cat([x, more]), torch.cat([y, labels])
    model = made.build_model()
    model.load_state_dict(state)
    behind = [parameter for name, parameter in model.named_parameters() if not name.startswith("fc1")]
    optimizer = made.optimizer(behind)
    for epoch in range(made.method.server_epochs):
        rows = order(len(y), seed=derive(made.seed, "server", number, epoch), shuffle=True)
        for part in torch.split(rows, list(plan(len(y), batch_size=made.batch_size))):
            made.loss(tail(model, x[part]), y[part]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return copy_of(model.state_dict()), y


@pytest.mark.parametrize(("buffer", "generated", "epochs"), [(1, 1.0, 1), (2, 0.4, 2), (2, 10.0, 1)])
def test_the_tail_learns_from_what_came_and_from_what_is_drawn(bench, clients, buffer, generated, epochs):
    method = gas(buffer=buffer, generated=generated, server_epochs=epochs)
    made = bench.job(bench.Mlp, "relu", method)
    result = splitfl.simulate(made, clients=clients, rounds=7, devices=DEVICES)
    now = copy_of(made.build_model().state_dict())
    begun = dict.fromkeys(range(len(clients)), (now, 0))
    ever, even = [], []
    for number, record in enumerate(result.history.rounds, 1):
        arrived = [int(name.removeprefix("c")) for name in record.participants]
        assert len(arrived) == buffer
        learned, came = [], []
        for client in sorted(arrived):
            start, version = begun[client]
            after, sent = trained(made, start, clients[client], client, version + 1)
            learned.append((SAMPLES[client], (number - version) ** -method.staleness, start, after))
            came.append(sent)
            ever.append((*sent, version + 1))
        now, seen = balanced(made, put_onto(now, learned), came, ever, number)
        even.append(len(set(seen.bincount(minlength=3).tolist())) == 1)
        begun |= dict.fromkeys(arrived, (now, number))
    assert bench.difference(result.state, now) < 1e-10
    assert all(even[3:]) == (generated == 10.0)


def test_without_drawn_activations_it_is_async(bench, clients):
    one, two = (
        splitfl.simulate(bench.job(bench.Mlp, "relu", method), clients=clients, rounds=6, devices=DEVICES)
        for method in (gas(generated=0.0), "async")
    )
    assert bench.difference(one.state, two.state) == 0
    assert one.history.rounds == two.history.rounds


def test_the_seed_decides_the_bits(bench, clients):
    jobs = [bench.job(bench.Mlp, "relu", "gas", seed=seed) for seed in (3, 3, 4)]
    one, two, other = (splitfl.simulate(made, clients=clients, rounds=5) for made in jobs)
    assert bench.difference(one.state, two.state) == 0
    assert one.history.rounds == two.history.rounds
    assert bench.difference(one.state, other.state) > 1e-3


def test_micro_batches_and_a_tail_in_two_stages_change_nothing(bench, clients):
    plain = splitfl.simulate(bench.job(bench.Mlp, "relu", "gas"), clients=clients, rounds=4)
    for cut, micro_batches in (("relu", 2), (["relu", "tanh"], 1)):
        made = bench.job(bench.Mlp, cut, gas(micro_batches=micro_batches))
        other = splitfl.simulate(made, clients=clients, rounds=4)
        assert bench.difference(other.state, plain.state) < 1e-10


def test_what_the_server_trains_on_its_own_takes_time(bench, clients):
    """All arrive together, so its clients begin anew only when it is done."""
    seconds = {}
    for method in (gas(buffer=3), gas(buffer=3, server_epochs=5), splitfl.methods.asynchronous(buffer=3)):
        result = splitfl.simulate(bench.job(bench.Mlp, "relu", method), clients=clients, rounds=3)
        seconds[method.name, method.server_epochs] = sum(record.seconds for record in result.history.rounds)
        assert all(record.train_loss is not None for record in result.history.rounds)
    alone = seconds["gas", 1] - seconds["async", 1]
    assert alone > 0
    assert seconds["gas", 5] - seconds["async", 1] == pytest.approx(5 * alone)


def test_the_same_bits_over_grpc_where_nobody_is_in_a_hurry(bench, clients):
    made = bench.job(bench.Mlp, "relu", gas(buffer=3))
    simulated = splitfl.simulate(made, clients=clients, rounds=3)
    named = {f"c{client}": each for client, each in enumerate(clients)}
    real, words = bench.run(bench.over_grpc(made.blueprint(), named, rounds=3))
    assert bench.difference(real.model, simulated.state) == 0
    assert set(words.values()) == {"training is complete after 3 rounds"}


def test_a_resumed_training_knows_the_labels_that_came_before(bench, clients, tmp_path):
    """With a buffer for all no turn is lost between rounds, so the bits are those of an undisturbed run."""
    made = bench.job(bench.Mlp, "relu", gas(buffer=3))
    straight = splitfl.simulate(made, clients=clients, rounds=4)
    named = {f"c{client}": each for client, each in enumerate(clients)}
    bench.run(bench.over_grpc(made.blueprint(), named, rounds=2, checkpoint=tmp_path))
    resumed, _ = bench.run(bench.over_grpc(made.blueprint(), named, rounds=4, checkpoint=tmp_path, resume=True))
    assert bench.difference(resumed.model, straight.state) == 0


def test_a_lost_client_leaves_nothing_behind(bench, clients):
    made = bench.job(bench.Mlp, "relu", gas(buffer=2))
    named = {f"c{client}": each for client, each in enumerate(clients)}
    blueprint = made.blueprint()
    blueprint = replace(blueprint, deadlines=replace(blueprint.deadlines, rejoin=0.0))
    found, _ = bench.run(bench.over_grpc(blueprint, named, rounds=3, ends={"c2": bench.leaving_at(1)}))
    without = splitfl.simulate(made, clients={name: named[name] for name in ("c0", "c1")}, rounds=3)
    assert [failure.client for record in found.rounds for failure in record.failures] == ["c2"]
    assert bench.difference(found.model, without.state) == 0


def test_a_tail_that_diverges_is_told(bench):
    """A step of each client is too large, but does no harm yet; hundreds of the server's are too many."""

    def linear():
        return nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 1))

    def loss(output, target):
        return ((output.squeeze(1) - target) ** 2).mean()

    optimizer = splitfl.sgd(lr=2.0)
    made = bench.job(linear, "0", gas(server_epochs=300), dtype=torch.float32, optimizer=optimizer)
    made = replace(made, loss=loss, reduction="mean")
    few = [bench.dataset(4, dtype=torch.float32, seed=seed) for seed in (0, 1)]
    with pytest.raises(splitfl.SplitflError, match=r"^round 1: the tail diverged .*: lower the learning rate$"):
        splitfl.simulate(made, clients=few, rounds=1)


class Masked(nn.Module):
    """Where an input is positive crosses the cut beside the activation, as whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        mask = (x > 0).long()
        return self.fc2(self.fc1(x) * mask)


def test_activations_that_cannot_be_drawn_are_refused(bench):
    with pytest.raises(splitfl.JobError, match=r"method = 'gas': .* is torch\.int64, and the server draws"):
        bench.job(Masked, "fc1", "gas").blueprint()
    bench.job(Masked, "fc1", "async").blueprint()
    bench.job(Masked, "fc1", gas(generated=0.0)).blueprint()


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        (torch.rand(8, 3, dtype=torch.float64), r"torch\.float64 of shape \(8, 3\)"),
        (torch.rand(8, dtype=torch.float64), r"torch\.float64 of shape \(8,\)"),
        (torch.ones(8, 3, dtype=torch.int64), r"torch\.int64 of shape \(8, 3\)"),
    ],
)
def test_labels_of_other_kinds_are_refused(bench, labels, found):
    def loss(output, target):
        return ((output - target.double().reshape(len(target), -1)) ** 2).mean()

    x, _ = bench.dataset(8).tensors
    made = replace(bench.job(bench.Mlp, "relu", "gas"), loss=loss, reduction="mean")
    wanted = rf"^method gas: labels are {found}, expected one whole number for each sample, \(samples,\)$"
    with pytest.raises(splitfl.SplitflError, match=wanted):
        splitfl.simulate(made, clients=[TensorDataset(x, labels)] * 2, rounds=1)


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match=r"method gas: generated = -1, expected 0 or more"):
        gas(generated=-1)
    wanted = r"generated = 1\.0, expected 0 unless rounds are buffered and the labels come to the server"
    with pytest.raises(ValueError, match=rf"method pipe-sgd: {wanted}"):
        replace(splitfl.methods.pipe_sgd(), generated=1.0)
    with pytest.raises(ValueError, match=rf"method async: {wanted}"):
        replace(splitfl.methods.asynchronous(split=False), generated=1.0)
    with pytest.raises(ValueError, match=rf"method gas: {wanted}"):
        replace(gas(), head_on_client=True)
