"""Whole runs written out in plain PyTorch, with what every optimizer remembers, and with clients that get lost."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import splitfl
from splitfl.data.batches import Batches, plan
from splitfl.run.seeds import derive

SAMPLES = (11, 4, 7)  # in batches of 4: trailing batches of 3 and 3, and another number of steps for each client
EVERYBODY = (0, 1, 2)
OPTIMIZERS = {
    "sgd": splitfl.sgd(lr=0.1),
    "momentum": splitfl.sgd(lr=0.1, momentum=0.9, nesterov=True),
    "adam": splitfl.adam(lr=0.01),
}


def stack():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3))


@pytest.fixture
def clients(bench):
    return [bench.dataset(samples, seed=client) for client, samples in enumerate(SAMPLES)]


def made_for(bench, method, **options):
    return bench.job(stack, "1", method, **{"local_epochs": 2, **options})


class ByHand:
    """The global model in two parts, a local one for each client, and the optimizers under the job's rule."""

    def __init__(self, made, clients):
        self.made, self.clients = made, clients
        whole = made.build_model()
        self.front, self.tail = whole[:2], whole[2:]
        self.local = {client: copy.deepcopy(whole) for client in range(len(clients))}
        self._optimizers = {}

    def optimizer(self, key, *modules):
        if key not in self._optimizers or self.made.optimizer_state == "reset":
            self._optimizers[key] = self.made.optimizer([p for module in modules for p in module.parameters()])
        return self._optimizers[key]

    def batches(self, client, number):
        data, seed = self.clients[client], derive(self.made.seed, "round", number)
        sizes = plan(len(data), batch_size=self.made.batch_size, epochs=self.made.local_epochs)
        found = Batches(data, sizes=sizes, seed=derive(seed, "data", client), shuffle=True)
        return [found[step] for step in range(len(found))]

    def train(self, front, tail, optimizers, batch):
        inputs, target = batch
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.made.loss(tail(front(inputs)), target).backward()
        for optimizer in optimizers:
            optimizer.step()

    def mean(self, modules):
        """The mean of the weights of modules by client, by their samples."""
        total = sum(len(self.clients[client]) for client in modules)
        states = [(len(self.clients[client]) / total, each.state_dict()) for client, each in modules.items()]
        return {name: sum(share * state[name] for share, state in states) for name in states[0][1]}

    def state(self, front=None):
        return nn.Sequential(*(front or self.front), *self.tail).state_dict()


def fedavg(hand, rounds):
    """Algorithm 1 of arXiv 1602.05629."""
    for number, present in enumerate(rounds, 1):
        for client in present:
            local = hand.local[client]
            local.load_state_dict(hand.state())
            optimizer = hand.optimizer(client, local)
            for batch in hand.batches(client, number):
                hand.train(local, nn.Identity(), (optimizer,), batch)
        mean = hand.mean({client: hand.local[client] for client in present})
        nn.Sequential(*hand.front, *hand.tail).load_state_dict(mean)
    return hand.state()


def splitfed_v2(hand, rounds):
    """arXiv 2004.12088: one tail, moved by each client's smashed data in turn; the fronts are averaged."""
    for number, present in enumerate(rounds, 1):
        tail_optimizer = hand.optimizer("tail", hand.tail)
        fronts = {client: hand.local[client][:2] for client in present}
        for client in present:
            fronts[client].load_state_dict(hand.front.state_dict())
        optimizers = {client: hand.optimizer(client, fronts[client]) for client in present}
        batches = {client: hand.batches(client, number) for client in present}
        for step in range(max(map(len, batches.values()))):
            for client in present:
                if step < len(batches[client]):
                    hand.train(fronts[client], hand.tail, (optimizers[client], tail_optimizer), batches[client][step])
        hand.front.load_state_dict(hand.mean(fronts))
    return hand.state()


def relay(hand, rounds):
    """arXiv 1810.06060: a client trains on all its data, then hands the front on; the tail stays where it is."""
    for number, present in enumerate(rounds, 1):
        for client in present:
            front = hand.local[client][:2]
            front.load_state_dict(hand.front.state_dict())
            optimizers = (hand.optimizer(client, front), hand.optimizer("tail", hand.tail))
            for batch in hand.batches(client, number):
                hand.train(front, hand.tail, optimizers, batch)
            hand.front.load_state_dict(front.state_dict())
    return hand.state()


def splitfed_v3(hand, rounds):
    """arXiv 2012.12591: every client keeps its front; the tails, one for each client, are averaged."""
    for number, present in enumerate(rounds, 1):
        for client in present:
            front, tail = hand.local[client][:2], hand.local[client][2:]
            tail.load_state_dict(hand.tail.state_dict())
            optimizers = (hand.optimizer(("front", client), front), hand.optimizer(("tail", client), tail))
            for batch in hand.batches(client, number):
                hand.train(front, tail, optimizers, batch)
        hand.tail.load_state_dict(hand.mean({client: hand.local[client][2:] for client in present}))
    return {f"c{client}": hand.state(local[:2]) for client, local in hand.local.items()}


@pytest.mark.parametrize("rule", ["reset", "keep"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    ("method", "reference"),
    [("fedavg", fedavg), ("splitfed-v1", fedavg), ("pipar", fedavg), ("splitfed-v2", splitfed_v2), ("sl", relay)],
)
def test_three_rounds(bench, clients, method, reference, optimizer, rule):
    made = made_for(bench, method, optimizer=OPTIMIZERS[optimizer], optimizer_state=rule)
    trained = splitfl.simulate(made, clients=clients, rounds=3).state
    assert bench.difference(trained, reference(ByHand(made, clients), [EVERYBODY] * 3)) <= 1e-12


@pytest.mark.parametrize("rule", ["reset", "keep"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_personal_fronts(bench, clients, optimizer, rule):
    made = made_for(bench, "splitfed-v3", optimizer=OPTIMIZERS[optimizer], optimizer_state=rule)
    result = splitfl.simulate(made, clients=clients, rounds=3)
    expected = splitfed_v3(ByHand(made, clients), [EVERYBODY] * 3)
    assert set(result.states) == set(expected)
    for name, state in expected.items():
        assert bench.difference(result.states[name], state) <= 1e-12


def test_a_loss_that_is_a_sum(bench, clients):
    def total(output, target):
        return functional.cross_entropy(output, target, reduction="sum")

    def job(method):
        return splitfl.Job(
            model=lambda: stack().double(),
            example_input=torch.zeros(1, 6, dtype=torch.float64),
            cut="1",
            method=method,
            loss=total,
            optimizer=splitfl.sgd(lr=0.02),
            batch_size=4,
        )

    whole, split = (splitfl.simulate(job(method), clients=clients, rounds=2) for method in ("fedavg", "pipar"))
    assert bench.difference(split.state, whole.state) <= 1e-12
    assert split.history.rounds[-1].train_loss == pytest.approx(whole.history.rounds[-1].train_loss, rel=1e-12)


class Leaving(torch.utils.data.Dataset):
    """A data set that can be read a number of times."""

    def __init__(self, data, reads):
        self.data, self.reads = data, reads

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        self.reads -= 1
        if self.reads < 0:
            raise OSError("the disk is gone")
        return self.data[index]


@pytest.mark.parametrize("rule", ["reset", "keep"])
@pytest.mark.parametrize(("reads", "lost"), [(4, 1), (2 * SAMPLES[1] + 3, 2)], ids=["first round", "second round"])
def test_a_lost_client_leaves_no_trace_on_a_shared_tail(bench, clients, reads, lost, rule):
    """The round is repeated without it from the same weights, and from what the optimizers remembered before it."""
    made = made_for(bench, "splitfed-v2", optimizer=OPTIMIZERS["momentum"], optimizer_state=rule)
    result = splitfl.simulate(made, clients=[clients[0], Leaving(clients[1], reads), clients[2]], rounds=3)
    present = [EVERYBODY if number < lost else (0, 2) for number in (1, 2, 3)]
    assert bench.difference(result.state, splitfed_v2(ByHand(made, clients), present)) <= 1e-12
    for number, record in enumerate(result.history.rounds, 1):
        assert record.participants == tuple(f"c{client}" for client in present[number - 1])
        failures = [(failure.client, failure.reason) for failure in record.failures]
        assert failures == ([("c1", "OSError: the disk is gone")] if number == lost else [])


@pytest.mark.parametrize("rule", ["reset", "keep"])
def test_a_relay_goes_on_without_a_lost_client(bench, clients, rule):
    made = made_for(bench, "sl", optimizer=OPTIMIZERS["momentum"], optimizer_state=rule)
    result = splitfl.simulate(made, clients=[Leaving(clients[0], 6), *clients[1:]], rounds=2)
    assert bench.difference(result.state, relay(ByHand(made, clients), [(1, 2), (1, 2)])) <= 1e-12
    assert [record.participants for record in result.history.rounds] == [("c1", "c2")] * 2
