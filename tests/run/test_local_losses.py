"""Fronts with losses of their own, against plain loops in PyTorch, and what crosses the line."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import splitfl
from splitfl.data.batches import Batches, plan
from splitfl.run.seeds import derive
from splitfl.run.turn_plan import plan_group
from splitfl.schedule import Kind, Op

SAMPLES = (11, 4, 7)
ROUNDS = 2


def stack():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3))


@pytest.fixture
def clients(bench):
    return [bench.dataset(samples, seed=client) for client, samples in enumerate(SAMPLES)]


class Block(nn.Module):
    """A block of the stack with the head that the job gave it; the last one has none."""

    def __init__(self, made, layers, stage):
        super().__init__()
        self.body = copy.deepcopy(made.build_model())[layers]
        module = made.blueprint().partition.stages[stage].module
        self.head = (
            copy.deepcopy(module.get_submodule(f"auxiliary.{stage}"))
            if "auxiliary" in dict(module.named_children())
            else nn.Identity()
        )

    def forward(self, x):
        after = self.body(x)
        return after.detach(), self.head(after)


def train(made, block, optimizer, x, target):
    after, scored = block(x)
    made.loss(scored, target).backward()
    optimizer.step()
    optimizer.zero_grad()
    return after


def by_hand(made, data, blocks, *, every=1):
    """`blocks`: (on the client, block). The client's blocks are averaged, the server's shared, a step per client."""
    for number in range(1, ROUNDS + 1):
        mine = [[copy.deepcopy(block) for here, block in blocks if here] for _ in data]
        theirs = [block for here, block in blocks if not here]
        steppers = [[made.optimizer(block.parameters()) for block in own] for own in mine]
        shared = [made.optimizer(block.parameters()) for block in theirs]
        batches = [
            Batches(
                each,
                sizes=plan(len(each), batch_size=made.batch_size),
                seed=derive(derive(made.seed, "round", number), "data", client),
                shuffle=True,
            )
            for client, each in enumerate(data)
        ]
        for step in range(max(map(len, batches))):
            for client, own in enumerate(batches):
                if step >= len(own):
                    continue
                x, target = own[step]
                for block, optimizer in zip(mine[client], steppers[client], strict=True):
                    x = train(made, block, optimizer, x, target)
                if (step + 1) % every == 0:
                    for block, optimizer in zip(theirs, shared, strict=True):
                        x = train(made, block, optimizer, x, target)
        total = sum(map(len, data))
        for place, (_, block) in enumerate(each for each in blocks if each[0]):
            states = [own[place].state_dict() for own in mine]
            block.load_state_dict(
                {
                    name: sum(state[name] * (len(each) / total) for state, each in zip(states, data, strict=True))
                    for name in states[0]
                }
            )
    return {name: value for _, block in blocks for name, value in block.body.state_dict().items()}


@pytest.mark.parametrize("auxiliary", ["linear", "mlp", "cnn"])
def test_the_front_learns_from_its_auxiliary_network_and_the_tail_from_what_it_sends(bench, clients, auxiliary):
    made = bench.job(stack, "1", splitfl.methods.local_loss(auxiliary=auxiliary))
    expected = by_hand(made, clients, [(True, Block(made, slice(2), 0)), (False, Block(made, slice(2, 5), 1))])
    result = splitfl.simulate(made, clients=clients, rounds=ROUNDS)
    assert bench.difference(result.state, expected) < 1e-12


def test_activations_are_sent_in_every_second_mini_batch_only(bench, clients):
    made = bench.job(stack, "1", splitfl.methods.cse_fsl(every=2))
    expected = by_hand(made, clients, [(True, Block(made, slice(2), 0)), (False, Block(made, slice(2, 5), 1))], every=2)
    result = splitfl.simulate(made, clients=clients, rounds=ROUNDS)
    assert bench.difference(result.state, expected) < 1e-12


def test_every_block_learns_from_a_head_of_its_own(bench, clients):
    made = bench.job(stack, ["0", "1", "3"], splitfl.methods.block_local(front_blocks=2))
    slices = (slice(0, 1), slice(1, 2), slice(2, 4), slice(4, 5))
    blocks = [(stage < 2, Block(made, layers, stage)) for stage, layers in enumerate(slices)]
    result = splitfl.simulate(made, clients=clients, rounds=ROUNDS)
    assert bench.difference(result.state, by_hand(made, clients, blocks)) < 1e-12


def test_micro_batches_change_nothing(bench, clients):
    whole = splitfl.simulate(bench.job(stack, "1", "local-loss"), clients=clients, rounds=ROUNDS)
    for schedule in ("decoupled", "sequential", "pipar", "gpipe", "1f1b"):
        method = splitfl.methods.local_loss(micro_batches=3, schedule=schedule)
        parts = splitfl.simulate(bench.job(stack, "1", method), clients=clients, rounds=ROUNDS)
        assert bench.difference(whole.state, parts.state) < 1e-12


@pytest.mark.parametrize("method", ["local-loss", "cse-fsl", "block-local"])
def test_no_gradient_comes_back(bench, clients, method):
    """A client receives the average of its front and of its auxiliary network, and nothing else."""
    made = bench.job(stack, "1", method)
    blueprint = made.blueprint()
    sizes = {client: len(each) for client, each in enumerate(clients)}
    plan = plan_group(blueprint, sizes)
    received = [
        at.kind
        for part in (plan.opening, *(step.schedule for step in plan.steps), plan.closing)
        for client in sizes
        for at in part.get(f"c{client}", ())
        if at.op is Op.RECV
    ]
    assert set(received) == {Kind.AVG}
    few = splitfl.simulate(bench.job(stack, "1", method, local_steps=1), clients=clients, rounds=1)
    many = splitfl.simulate(bench.job(stack, "1", method, local_steps=40), clients=clients, rounds=1)
    front = sum(value.nbytes for value in blueprint.partition.stages[0].state.values()) * len(clients)
    least, most = (result.history.rounds[0].bytes_down for result in (few, many))
    assert front <= least <= 1.5 * front + 1000  # names and shapes included: these weights are few
    assert most - least <= 39 * 8 * len(clients)  # the plan of a mini-batch; one activation's gradient has 256 bytes


def test_the_same_bits_over_grpc(bench, clients):
    made = bench.job(stack, "1", splitfl.methods.cse_fsl(every=2))
    simulated = splitfl.simulate(made, clients=clients, rounds=ROUNDS)
    named = {f"c{client}": each for client, each in enumerate(clients)}
    trained, _ = bench.run(bench.over_grpc(made.blueprint(), named, rounds=ROUNDS))
    assert bench.difference(trained.model, simulated.state) == 0


def test_the_trained_model_has_no_auxiliary_network(bench, clients):
    result = splitfl.simulate(bench.job(stack, "1", "local-loss"), clients=clients, rounds=1, test=clients[0])
    assert result.state.keys() == stack().state_dict().keys()
    assert result.model(torch.zeros(1, 6, dtype=torch.float64)).shape == (1, 3)
    assert result.accuracy is not None


def test_a_client_far_ahead_of_the_server_loses_its_line(bench):
    """Nothing holds such a client back; both begin the turn again, and the bits are those of an undisturbed run."""
    data = {"c0": bench.dataset(60, seed=0)}
    made = bench.job(stack, "1", splitfl.methods.local_loss(), batch_size=2)
    blueprint = made.blueprint()
    undisturbed = splitfl.simulate(made, clients=data, rounds=1)
    cut = []

    async def end(name, dataset, plain, open_channel):
        async def connecting():
            channel = await open_channel()
            if cut:
                return channel
            told = channel.send

            async def send(address, payload):
                if address.step == 20 and not cut:
                    cut.append(address.step)
                    await channel.close()
                return await told(address, payload)

            channel.send = send
            return channel

        return await plain(name, dataset, connecting, patience=10.0)

    trained, _ = bench.run(bench.over_grpc(blueprint, data, rounds=1, ends={"c0": end}))
    assert cut == [20]
    assert bench.difference(trained.model, undisturbed.state) == 0
