"""Dropout sees one mask per micro-batch, BatchNorm counts each micro-batch once, and global generators stand still."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from splitfl.model import Replica, minimum_micro_batch, partition, profile


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.drop, self.fc2 = nn.Linear(6, 40), nn.Dropout(0.5), nn.Linear(40, 40)
        self.fc3, self.late, self.head = nn.Linear(40, 40), nn.Dropout(0.3), nn.Linear(40, 3)

    def forward(self, x):
        x = self.fc2(self.drop(torch.relu(self.fc1(x))))
        return self.head(self.late(F.dropout(self.fc3(x), 0.2, self.training)))


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.bn1, self.fc2, self.bn2 = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 5), nn.BatchNorm1d(5)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(torch.relu(self.bn2(self.fc2(torch.relu(self.bn1(self.fc1(x)))))))


def build(kind):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return kind().double()


def batches(count, samples):
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(samples, 6, generator=generator).double(), torch.randint(3, (samples,), generator=generator))
        for _ in range(count)
    ]


def seed_before(module, seed):
    """Seed the global generator whenever `module` is about to run."""

    def hook(*_):
        torch.manual_seed(seed)

    return module.register_forward_pre_hook(hook)


@pytest.mark.parametrize("halves", [False, True])
def test_dropout_equals_the_unsplit_model_under_the_same_seeds(bench, halves):
    model = build(Noisy)
    micro = batches(2, 4)
    stages = partition(model, micro[0][0], ["relu", "fc2"]).stages
    assert [stage.random for stage in stages] == [False, True, True]
    replicas = [Replica(stage, bench.sgd, loss=F.cross_entropy if stage.last else None) for stage in stages]
    flight = []
    for number, (x, y) in enumerate(micro):  # both forwards before either backward
        flight.append(bench.forward_all(replicas, {"x": x}, seed=100 + number, target=y, weight=0.5))
    for stashes in reversed(flight):
        for replica, rest in bench.backward_all(replicas, stashes, halves=halves):
            replica.backward_weight(rest)
    whole = copy.deepcopy(model)
    with torch.random.fork_rng():
        for number, (x, y) in enumerate(micro):
            handles = [seed_before(whole.drop, 100 + number), seed_before(whole.fc3, 100 + number)]
            (0.5 * F.cross_entropy(whole(x), y)).backward()
            for handle in handles:
                handle.remove()
    ours = {name: g for replica in replicas for name, g in bench.gradients(replica.module).items()}
    assert bench.distance(ours, {name: ours[name] * 0 + g for name, g in bench.gradients(whole).items()}) <= 1e-12


def test_same_seed_same_mask_and_another_seed_another(bench):
    parts = partition(build(Noisy), torch.zeros(1, 6).double(), ["fc1"])
    replica = Replica(parts.stages[1], bench.sgd)
    values = {"fc1": torch.ones(4, 40).double()}
    first, again, other = (replica.forward(values, seed=seed)[0]["output"] for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_global_generators_buffers_and_model_stay_as_they_were(bench):
    model = nn.Sequential(build(Normed), nn.Dropout(0.5))
    before, state = torch.get_rng_state(), copy.deepcopy(model.state_dict())
    parts = partition(model, torch.zeros(1, 6).double(), ["0.fc1"])
    profile(parts)
    Replica(parts.stages[1], bench.sgd).forward({parts.stages[1].inputs[0].name: torch.randn(3, 5).double()}, seed=9)
    torch.randn(0)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(value, state[name]) for name, value in parts.original.items())
    assert all(torch.equal(value, state[name]) for stage in parts.stages for name, value in stage.state.items())
    torch.set_rng_state(before)
    expected = torch.rand(3)
    torch.set_rng_state(before)
    partition(model, torch.zeros(1, 6).double(), ["0.fc1"])
    assert torch.equal(torch.rand(3), expected)


def test_threads_do_not_mix_their_masks(bench):
    stage = partition(build(Noisy), torch.zeros(1, 6).double(), ["fc1"]).stages[1]
    values = {"fc1": torch.ones(64, 40).double()}
    expected = {seed: Replica(stage, bench.sgd).forward(values, seed=seed)[0]["output"] for seed in range(4)}
    wrong = []

    def work(seed):
        replica = Replica(stage, bench.sgd)
        for _ in range(30):
            if not torch.equal(replica.forward(values, seed=seed)[0]["output"], expected[seed]):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert wrong == []


@pytest.mark.parametrize("cut", ["fc1", "bn1", "fc2"])
def test_batch_norm_statistics_move_once_per_micro_batch(bench, cut):
    model, micro = build(Normed), batches(3, 4)
    whole = copy.deepcopy(model)
    for x, y in micro:
        (F.cross_entropy(whole(x), y) / 3).backward()
    bench.sgd(whole.parameters()).step()
    parts = partition(model, micro[0][0][:1], [cut])
    replicas = [Replica(stage, bench.sgd, loss=F.cross_entropy if stage.last else None) for stage in parts.stages]
    flight = [bench.forward_all(replicas, {"x": x}, seed=0, target=y, weight=1 / 3) for x, y in micro]
    for stashes in flight:
        bench.backward_all(replicas, stashes)
    for replica in replicas:
        replica.step()
    state = parts.join([replica.state() for replica in replicas])
    assert state["bn1.num_batches_tracked"] == state["bn2.num_batches_tracked"] == 3
    assert state["bn1.num_batches_tracked"].dtype == torch.int64
    assert bench.distance(state, whole.state_dict()) <= 1e-12


def test_frozen_batch_norm_stays_frozen(bench):
    model = build(Normed)
    model.bn1.eval()
    parts = partition(model, torch.zeros(2, 6).double(), ["bn1"])
    front = Replica(parts.stages[0], bench.sgd)
    front.forward({"x": torch.randn(4, 6).double()}, seed=0)
    assert front.state()["bn1.num_batches_tracked"] == 0
    assert minimum_micro_batch(model) == 2
    model.bn2.eval()
    assert minimum_micro_batch(model) == 1
    assert minimum_micro_batch(model.eval()) == 2  # as a whole in evaluation mode: it will be put in training mode
    assert minimum_micro_batch(nn.Sequential(nn.GroupNorm(1, 2), nn.InstanceNorm2d(2))) == 1
