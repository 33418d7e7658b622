"""Each method against a plain loop that does what its paper says."""

from __future__ import annotations

import copy

import pytest
import torch

import splitfl
from splitfl.data.batches import Batches, plan
from splitfl.run.seeds import derive


def batches(made, data, client, round_number):
    planned = plan(len(data), batch_size=made.batch_size)
    seed = derive(derive(made.seed, "round", round_number), "data", client)
    return Batches(data, sizes=planned, seed=seed, shuffle=True)


def train_step(made, front, tail, optimizers, inputs, target):
    made.loss(tail(front(inputs)), target).backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def average(models, samples):
    total = sum(samples)
    states = [model.state_dict() for model in models]
    return {
        name: sum(state[name] * (count / total) for state, count in zip(states, samples, strict=True))
        for name in states[0]
    }


def halves(bench, made):
    """The front and the tail of the model, with the whole model's weights."""
    whole = made.build_model()

    class Front(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1 = copy.deepcopy(whole.fc1)

        def forward(self, x):
            return torch.relu(self.fc1(x))

    class Tail(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc2, self.fc3 = copy.deepcopy(whole.fc2), copy.deepcopy(whole.fc3)

        def forward(self, x):
            return self.fc3(torch.tanh(self.fc2(x)))

    return Front(), Tail()


@pytest.fixture
def clients(bench):
    return [bench.dataset(samples, seed=samples) for samples in (8, 12, 5)]


def made_for(bench, method):
    return bench.job(bench.Mlp, "relu", method, batch_size=4)


ROUNDS = 2


def test_splitfed_v2_serves_the_clients_one_after_the_other_on_one_tail(bench, clients):
    made = made_for(bench, "splitfed-v2")
    front, tail = halves(bench, made)
    for number in range(1, ROUNDS + 1):
        fronts = [copy.deepcopy(front) for _ in clients]
        data = [batches(made, each, client, number) for client, each in enumerate(clients)]
        # Fresh optimizers every round, for the fronts and for the tail alike.
        steppers, shared = [made.optimizer(each.parameters()) for each in fronts], made.optimizer(tail.parameters())
        for step in range(max(map(len, data))):
            for client, own in enumerate(data):
                if step < len(own):
                    train_step(made, fronts[client], tail, (steppers[client], shared), *own[step])
        front.load_state_dict(average(fronts, [len(each) for each in clients]))
    result = splitfl.simulate(made, clients=clients, rounds=ROUNDS)
    assert bench.difference(result.state, {**front.state_dict(), **tail.state_dict()}) < 1e-12


def test_relay_hands_the_front_from_client_to_client(bench, clients):
    made = made_for(bench, "sl")
    front, tail = halves(bench, made)
    for number in range(1, ROUNDS + 1):
        for client, each in enumerate(clients):
            steppers = made.optimizer(front.parameters()), made.optimizer(tail.parameters())
            own = batches(made, each, client, number)
            for step in range(len(own)):
                train_step(made, front, tail, steppers, *own[step])
    result = splitfl.simulate(made, clients=clients, rounds=ROUNDS)
    assert bench.difference(result.state, {**front.state_dict(), **tail.state_dict()}) < 1e-12


def test_splitfed_v3_keeps_a_front_for_every_client_and_averages_the_tails(bench, clients):
    made = made_for(bench, "splitfed-v3")
    front, tail = halves(bench, made)
    fronts = [copy.deepcopy(front) for _ in clients]
    for number in range(1, ROUNDS + 1):
        tails = [copy.deepcopy(tail) for _ in clients]
        for client, each in enumerate(clients):
            steppers = made.optimizer(fronts[client].parameters()), made.optimizer(tails[client].parameters())
            own = batches(made, each, client, number)
            for step in range(len(own)):
                train_step(made, fronts[client], tails[client], steppers, *own[step])
        tail.load_state_dict(average(tails, [len(each) for each in clients]))
    result = splitfl.simulate(made, clients=clients, rounds=ROUNDS)
    for client, name in enumerate(result.history.clients):
        expected = {**fronts[client].state_dict(), **tail.state_dict()}
        assert bench.difference(result.states[name], expected) < 1e-12
    with pytest.raises(splitfl.SplitflError, match=r"result.models\[name\]"):
        _ = result.model
    assert set(result.models) == {"c0", "c1", "c2"}


def test_a_schedule_of_the_users_own_and_one_from_a_file_run_like_built_in_ones(bench, clients, tmp_path):
    from splitfl.schedule import Instruction, Op, Topology, build, text

    def backwards_last(topology: Topology):
        """Every forward of a client, then every backward, in the reverse order of micro-batches."""
        programs = {actor: [] for actor in topology.actors}
        for client in topology.clients:
            micros = topology.micro(client)
            for op, order in ((Op.FORWARD, micros), (Op.BACKWARD, micros[::-1])):
                stages = range(topology.stages) if op is Op.FORWARD else reversed(range(topology.stages))
                for stage in stages:
                    programs[topology.actor(stage, client)] += [Instruction(op, stage, client, m) for m in order]
            for stage in range(topology.stages):
                programs[topology.actor(stage, client)].append(Instruction(Op.STEP, stage, client))
        return programs

    reference = splitfl.simulate(made_for(bench, splitfl.methods.pipar(micro_batches=3)), clients=clients, rounds=1)
    own = splitfl.methods.pipar(micro_batches=3, schedule=backwards_last)
    assert (
        bench.difference(splitfl.simulate(made_for(bench, own), clients=clients, rounds=1).state, reference.state)
        < 1e-12
    )
    path = tmp_path / "mine.sched"
    # A file for three clients: mini-batches without one of them, or with fewer micro-batches, leave its part out.
    topology = own.topology((0, 1, 2), stages=2, micro_batches=3)
    path.write_text(text(build(backwards_last, topology)))
    filed = splitfl.methods.pipar(micro_batches=3, schedule=path)
    assert (
        bench.difference(splitfl.simulate(made_for(bench, filed), clients=clients, rounds=1).state, reference.state)
        < 1e-12
    )
