"""Blockwise distillation against the serial computation, over processes' channels, and what it refuses."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
from torch import nn

import splitfl
from splitfl.codecs import frame
from splitfl.data.batches import Batches, plan
from splitfl.model.distillation import Frozen
from splitfl.run.seeds import derive
from splitfl.run.target import is_target

SAMPLES = (11, 4, 7)
ROUNDS = 2
SLICES = (slice(0, 2), slice(2, 4), slice(4, 5))


def student():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3))


def teacher():
    """Deeper blocks with the same shapes at the cuts; dropout and BatchNorm show whether it is in evaluation mode."""
    torch.manual_seed(17)
    made = nn.Sequential(
        nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.BatchNorm1d(20), nn.Linear(20, 8)),
        nn.Tanh(),
        nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 5)),
        nn.Tanh(),
        nn.Linear(5, 3),
    ).double()
    made[0][2].running_mean += 0.3
    return made


@pytest.fixture
def clients(bench):
    return [bench.dataset(samples, seed=client) for client, samples in enumerate(SAMPLES)]


def made_for(bench, method=None, **options):
    return bench.job(student, ["1", "3"], method or splitfl.methods.pipe_bd(), teacher=teacher(), **options)


def serially(made, data, *, front=1):
    """Each block in turn, for each client in turn: the teacher's prefix is run anew for every block."""
    whole, guide = made.build_model(), teacher().eval()
    blocks, guides = [whole[part] for part in SLICES], [guide[part] for part in SLICES]
    for number in range(1, ROUNDS + 1):
        fronts = [[copy.deepcopy(block) for block in blocks[:front]] for _ in data]
        steppers = [[made.optimizer(block.parameters()) for block in own] for own in fronts]
        shared = [made.optimizer(block.parameters()) for block in blocks[front:]]
        seeds = [derive(derive(made.seed, "round", number), "data", client) for client in range(len(data))]
        batches = [
            Batches(each, sizes=plan(len(each), batch_size=made.batch_size), seed=seed, shuffle=True)
            for each, seed in zip(data, seeds, strict=True)
        ]
        for step in range(max(map(len, batches))):
            for client, own in enumerate(batches):
                if step >= len(own):
                    continue
                optimizers = [*steppers[client], *shared]
                for index, block in enumerate([*fronts[client], *blocks[front:]]):
                    with torch.no_grad():
                        x = own[step][0]
                        for before in guides[:index]:
                            x = before(x)
                        wanted = guides[index](x)
                    nn.functional.mse_loss(block(x), wanted).backward()
                    optimizers[index].step()
                    optimizers[index].zero_grad()
        shares = [len(each) / sum(map(len, data)) for each in data]
        for index, block in enumerate(blocks[:front]):
            states = [own[index].state_dict() for own in fronts]
            block.load_state_dict(
                {name: sum(s[name] * w for s, w in zip(states, shares, strict=True)) for name in states[0]}
            )
    return whole.state_dict()


@pytest.mark.parametrize("front", [1, 2])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_it_is_the_serial_computation(bench, clients, front, micro_batches):
    method = splitfl.methods.pipe_bd(front_blocks=front, micro_batches=micro_batches)
    made = made_for(bench, method)
    result = splitfl.simulate(made, clients=clients, rounds=ROUNDS)
    assert result.state.keys() == student().state_dict().keys()
    assert bench.difference(result.state, serially(made, clients, front=front)) < 1e-12


def test_the_student_comes_to_do_what_the_teacher_does(bench, clients):
    made = made_for(bench, local_epochs=5)
    losses = [record.train_loss for record in splitfl.simulate(made, clients=clients, rounds=15).history.rounds]
    assert losses[-1] < 0.2 * losses[0]


def test_each_block_of_the_teacher_runs_once_for_a_mini_batch(bench, clients, monkeypatch):
    """The serial computation runs the first block three times, and the second twice."""
    runs = Counter()
    usual = Frozen.forward

    def counted(self, values):
        runs[id(self._held[0])] += 1
        return usual(self, values)

    blueprint = made_for(bench).blueprint()
    monkeypatch.setattr(Frozen, "forward", counted)
    bench.run(bench.over_grpc(blueprint, {"c0": clients[0]}, rounds=1))
    steps = len(plan(len(clients[0]), batch_size=4))
    assert sorted(runs.values()) == [steps] * 3


def test_neither_labels_nor_the_teacher_travel(bench, clients):
    blueprint = made_for(bench).blueprint()
    seen = []

    async def watched(name, data, plain, open_channel):
        async def connecting():
            channel = await open_channel()
            told, heard = channel.send, channel.receive

            async def send(address, payload):
                seen.append((str(address.value.kind), frame.decode(b"".join(payload))))
                return await told(address, payload)

            async def receive(address, *, timeout):
                payload = await heard(address, timeout=timeout)
                seen.append((str(address.value.kind), frame.decode(payload)))
                return payload

            channel.send, channel.receive = send, receive
            return channel

        return await plain(name, data, connecting)

    named = {f"c{client}": each for client, each in enumerate(clients)}
    trained, _ = bench.run(bench.over_grpc(blueprint, named, rounds=1, ends=dict.fromkeys(named, watched)))
    assert {kind for kind, _ in seen} == {"avg", "act", "params"}
    names = {name for kind, tensors in seen for name in tensors if kind != "act"}
    assert names == {"0.weight", "0.bias"}
    assert not [name for _, tensors in seen for name in tensors if is_target(name)]
    simulated = splitfl.simulate(made_for(bench), clients=clients, rounds=1)
    assert bench.difference(trained.model, simulated.state) == 0


def test_both_ends_must_have_the_same_teacher(bench):
    other = teacher()
    with torch.no_grad():
        other[4].bias[0] += 1e-6
    one = made_for(bench).blueprint().fingerprints()
    two = bench.job(student, ["1", "3"], "pipe-bd", teacher=other).blueprint().fingerprints()
    assert {name for name in one if one[name] != two[name]} == {"teacher"}


def test_what_cannot_be_distilled_is_refused(bench):
    with pytest.raises(splitfl.JobError, match="teacher = None with method pipe-bd: expected a model to learn from"):
        bench.job(student, ["1", "3"], "pipe-bd")
    with pytest.raises(splitfl.JobError, match="teacher = a model with method pipar: expected none"):
        bench.job(student, "1", "pipar", teacher=teacher())
    with pytest.raises(splitfl.SplitflError, match="the teacher is cut in 2 blocks, and the student in 3"):
        bench.job(student, ["1", "3"], "pipe-bd", teacher=teacher(), teacher_cut="1").blueprint()
    with pytest.raises(splitfl.SplitflError, match=r"the student's block 0 gives \[8\], the teacher's \[5\]"):
        bench.job(student, ["1", "3"], "pipe-bd", teacher=teacher(), teacher_cut=["2", "3"]).blueprint()
