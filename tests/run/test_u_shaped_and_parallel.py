"""Labels that stay at home, and one step of the tail for the mini-batches of all clients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import splitfl
from splitfl.codecs import frame
from splitfl.data.batches import Batches, plan
from splitfl.data.sampling import global_plan
from splitfl.run.seeds import derive
from splitfl.run.target import is_target

SAMPLES = (8, 12, 5)
ROUNDS = 2


@pytest.fixture
def clients(bench):
    return [bench.dataset(samples, seed=client) for client, samples in enumerate(SAMPLES)]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_u_shaped_is_the_unsplit_model_whatever_returns_to_the_client(bench, clients, shared, micro_batches):
    method = splitfl.methods.u_shaped(shared_body=shared, micro_batches=micro_batches)
    same = "splitfed-v2" if shared else "fedavg"
    cut = ["fc1", "fc2"]
    u_shaped = splitfl.simulate(bench.job(bench.Mlp, cut, method), clients=clients, rounds=ROUNDS)
    if not shared:
        plain = splitfl.simulate(bench.job(bench.Mlp, cut, same), clients=clients, rounds=ROUNDS)
        assert bench.difference(u_shaped.state, plain.state) < 1e-12
    else:  # the head is averaged here, and shared in SplitFed V2: with one client there is no difference
        one = clients[:1]
        alone = splitfl.simulate(bench.job(bench.Mlp, cut, method), clients=one, rounds=ROUNDS)
        plain = splitfl.simulate(bench.job(bench.Mlp, cut, same), clients=one, rounds=ROUNDS)
        assert bench.difference(alone.state, plain.state) < 1e-12


def test_labels_never_leave_the_client(bench, clients):
    blueprint = bench.job(bench.Mlp, ["fc1", "fc2"], "u-shaped").blueprint()
    seen = []

    async def watched(name, data, plain, open_channel):
        async def connecting():
            channel = await open_channel()
            told = channel.send

            async def send(address, payload):
                seen.append((address.value.kind, list(frame.decode(b"".join(payload)))))
                return await told(address, payload)

            channel.send = send
            return channel

        return await plain(name, data, connecting)

    named = {f"c{client}": each for client, each in enumerate(clients)}
    trained, _ = bench.run(bench.over_grpc(blueprint, named, rounds=1, ends=dict.fromkeys(named, watched)))
    assert {str(kind) for kind, _ in seen} == {"act", "grad", "params"}
    assert not [name for _, names in seen for name in names if is_target(name)]
    assert trained.rounds[0].train_loss > 0  # known from the clients' reports


def test_a_u_shape_needs_two_cuts(bench):
    with pytest.raises(splitfl.JobError, match=r"cut = 'fc1': method u-shaped: 2 stages, expected 3 or more: give 2"):
        bench.job(bench.Mlp, "fc1", "u-shaped")


def by_hand(made, clients, *, average_front, sizes_of):
    """Fronts and tail after training in plain PyTorch: one step of the tail for the mini-batches of all clients.

    `sizes_of(round)` are each client's mini-batches; a client sits out where it has 0 samples.
    """
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
            outputs, targets = [], []
            for client in taking:
                x, target = batches[client][step]
                outputs.append(tail[1](torch.tanh(tail[0](torch.relu(fronts[client](x))))))
                targets.append(target)
            made.loss(torch.cat(outputs), torch.cat(targets)).backward()
            for optimizer in (*(steppers[client] for client in taking), shared):
                optimizer.step()
                optimizer.zero_grad()
        if average_front:
            states = [each.state_dict() for each in fronts]
            shares = [len(each) / total for each in clients]
            mean = {name: sum(s[name] * w for s, w in zip(states, shares, strict=True)) for name in states[0]}
            for each in fronts:
                each.load_state_dict(mean)
    return fronts, tail


@pytest.mark.parametrize("average_front", [True, False])
@pytest.mark.parametrize("name", ["parallel-sl", "gpsl"])
def test_one_step_on_all_samples_together(bench, clients, name, average_front):
    options = {"global_batch": 7} if name == "gpsl" else {}
    made = bench.job(bench.Mlp, "fc1", splitfl.methods.METHODS[name](average_front=average_front, **options))

    def sizes_of(number):
        if name == "parallel-sl":
            return [plan(len(each), batch_size=made.batch_size) for each in clients]
        counts = global_plan(dict(enumerate(SAMPLES)), batch=7, seed=derive(made.seed, "sizes", number))
        return [[step.get(client, 0) for step in counts] for client in range(len(clients))]

    fronts, tail = by_hand(made, clients, average_front=average_front, sizes_of=sizes_of)
    result = splitfl.simulate(made, clients=clients, rounds=ROUNDS)
    for client, name in enumerate(result.history.clients):
        state = result.state if average_front else result.states[name]
        ends = [("fc1", fronts[client]), ("fc2", tail[0]), ("fc3", tail[1])]
        expected = {f"{layer}.{key}": value for layer, part in ends for key, value in part.state_dict().items()}
        assert bench.difference(state, expected) < 1e-12
    named = {f"c{client}": each for client, each in enumerate(clients)}
    trained, _ = bench.run(bench.over_grpc(made.blueprint(), named, rounds=ROUNDS))
    assert bench.difference(trained.model, result.state) == 0


def test_global_sampling_takes_a_model_that_a_single_sample_is_enough_for(bench):
    with pytest.raises(splitfl.JobError, match=r"gpsl' draws mini-batches of any size, this model takes 2 samples"):
        bench.job(lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), "0", "gpsl").blueprint()
