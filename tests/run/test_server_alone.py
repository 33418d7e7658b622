"""Methods in which the server keeps activations and learns from them alone, against plain loops in PyTorch."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import splitfl
from splitfl.data.batches import Batches, order, plan
from splitfl.model import Alignment, gradients_of
from splitfl.run.seeds import derive
from splitfl.run.turn_plan import plan_group
from splitfl.schedule import Op

SAMPLES = (11, 4, 7)


def stack():
    """Dropout, so that a front that only sends must be in evaluation mode to be reproduced."""
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3))


def smooth():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3))


@pytest.fixture
def clients(bench):
    return [bench.dataset(samples, seed=client) for client, samples in enumerate(SAMPLES)]


def batches(made, data, number, *, once=False):
    """The mini-batches of every client in round `number`."""
    return [
        Batches(
            each,
            sizes=plan(len(each), batch_size=made.batch_size, epochs=1 if once else made.local_epochs or 1),
            seed=derive(derive(made.seed, "round", number), "data", client),
            shuffle=True,
        )
        for client, each in enumerate(data)
    ]


def uploaded(made, data, front, number):
    """Activations and labels of all samples, in the order of clients and mini-batches."""
    front = copy.deepcopy(front).eval()
    pairs = [own[step] for own in batches(made, data, number, once=True) for step in range(len(own))]
    return torch.cat([front(x).detach() for x, _ in pairs]), torch.cat([y for _, y in pairs])


def passes(made, kept, words, epochs):
    """The mini-batches of the server's passes over what it keeps."""
    x, y = kept
    for epoch in range(epochs):
        seed = derive(made.seed, *words, epoch)
        rows = order(len(y), seed=seed, shuffle=True)
        for part in torch.split(rows, list(plan(len(y), batch_size=made.batch_size))):
            yield x[part], y[part]


def train(made, model, optimizer, x, y):
    made.loss(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


def train_tail(made, tail, kept, number, epochs):
    optimizer = made.optimizer(tail.parameters())
    for x, y in passes(made, kept, ("server", number), epochs):
        train(made, tail, optimizer, x, y)


def head_of(made):
    return copy.deepcopy(made.blueprint().partition.stages[0].module.get_submodule("auxiliary.0")).requires_grad_(True)


def average(models, data):
    total = sum(map(len, data))
    states = [model.state_dict() for model in models]
    return {
        name: sum(state[name] * (len(each) / total) for state, each in zip(states, data, strict=True))
        for name in states[0]
    }


def whole(front, tail):
    """The state of the model of which `front` and `tail` are the halves."""
    return {**front.state_dict(), **tail.state_dict()}


@pytest.mark.parametrize("epochs", [1, 3])
def test_ampere_trains_the_fronts_first_and_then_the_tail_on_what_came_once(bench, clients, epochs):
    made = bench.job(smooth, "1", splitfl.methods.ampere(server_epochs=epochs))
    model = made.build_model()
    front, tail, head = copy.deepcopy(model[:2]), copy.deepcopy(model[2:]), head_of(made)
    for number in (1, 2):
        own = [copy.deepcopy(nn.Sequential(front, head)) for _ in clients]
        for each, mine in zip(own, batches(made, clients, number), strict=True):
            optimizer = made.optimizer(each.parameters())
            for step in range(len(mine)):
                train(made, each, optimizer, *mine[step])
        nn.Sequential(front, head).load_state_dict(average(own, clients))
    train_tail(made, tail, uploaded(made, clients, front, 3), 3, epochs)
    result = splitfl.simulate(made, clients=clients, rounds=3, test=clients[0])
    assert bench.difference(result.state, whole(front, tail)) < 1e-12
    up = [record.bytes_up for record in result.history.rounds]
    assert up[0] == up[1]


def test_ampere_sends_activations_in_the_last_round_only(bench, clients):
    sizes = {client: len(each) for client, each in enumerate(clients)}
    blueprint = bench.job(smooth, "1", "ampere", local_epochs=3).blueprint()
    sent = {
        phase: [
            str(at)
            for step in plan_group(blueprint, sizes, phase=phase).steps
            for program in step.schedule.values()
            for at in program
            if at.op is Op.SEND
        ]
        for phase in (blueprint.method.phase(1, 2), blueprint.method.phase(2, 2))
    }
    fronts, upload = sent.values()
    assert fronts == []
    assert len(upload) == sum(len(plan(size, batch_size=4)) for size in sizes.values())  # each sample once


def test_a_frozen_front_sends_now_and_then_and_the_tail_learns_in_every_round(bench, clients):
    made = bench.job(stack, "2", splitfl.methods.ecofed(transfer_every=2, server_epochs=2))
    model = made.build_model()
    front, tail = copy.deepcopy(model[:3]), copy.deepcopy(model[3:])
    kept = None
    for number in (1, 2, 3):
        if number != 2:
            kept = uploaded(made, clients, front, number)
        train_tail(made, tail, kept, number, 2)
    result = splitfl.simulate(made, clients=clients, rounds=3)
    assert bench.difference(result.state, whole(front, tail)) < 1e-12
    first, second, third = result.history.rounds
    assert first.bytes_up > 20 * 8 * sum(SAMPLES) / 4
    assert second.bytes_up == second.bytes_down == 0
    assert third.bytes_up == first.bytes_up
    assert second.participants == ()
    assert all(record.train_loss for record in result.history.rounds)


def test_what_the_server_keeps_is_in_its_checkpoint(bench, clients, tmp_path):
    made = bench.job(stack, "2", splitfl.methods.ecofed(transfer_every=4))
    named = {f"c{client}": each for client, each in enumerate(clients)}
    straight = splitfl.simulate(made, clients=clients, rounds=4)
    bench.run(bench.over_grpc(made.blueprint(), named, rounds=2, checkpoint=tmp_path))
    resumed, _ = bench.run(bench.over_grpc(made.blueprint(), named, rounds=4, checkpoint=tmp_path, resume=True))
    assert bench.difference(resumed.model, straight.state) == 0
    assert [record.bytes_up > 1000 for record in resumed.rounds] == [True, False, False, False]


def align(made, head, tail, kept, number, epochs=1):
    """Move the head's gradients of the activations towards those of the tail: squared distance, by both lengths."""
    optimizer = made.optimizer(head.parameters())
    for x, y in passes(made, kept, ("align", number), epochs):
        x = x.detach().requires_grad_()
        (wanted,) = torch.autograd.grad(made.loss(tail(x), y), [x])
        (found,) = torch.autograd.grad(made.loss(head(x), y), [x], create_graph=True)
        both = (wanted**2).sum() + (found.detach() ** 2).sum()
        (((found - wanted) ** 2).sum() / both).backward()
        length = torch.stack([each.grad.norm() for each in head.parameters()]).norm()
        for each in head.parameters():
            each.grad *= min(1.0, 1.0 / (float(length) + 1e-6))
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(("every", "aligned"), [(1, 1), (2, 2)])
def test_the_auxiliary_network_is_fitted_to_the_tails_gradients(bench, clients, every, aligned):
    made = bench.job(smooth, "1", splitfl.methods.fsl_sage(every=every, align_every=aligned, align_epochs=2))
    model = made.build_model()
    front, tail, head = copy.deepcopy(model[:2]), copy.deepcopy(model[2:]), head_of(made)
    started = copy.deepcopy(head.state_dict())
    for number in (1, 2, 3):
        own = [copy.deepcopy(front) for _ in clients]
        steppers, shared = [made.optimizer(each.parameters()) for each in own], made.optimizer(tail.parameters())
        mine = batches(made, clients, number)
        sent: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        for step in range(max(map(len, mine))):
            for client, each in enumerate(mine):
                if step >= len(each):
                    continue
                x, y = each[step]
                after = own[client](x)
                made.loss(head(after), y).backward()
                head.zero_grad()
                steppers[client].step()
                steppers[client].zero_grad()
                if (step + 1) % every == 0:
                    sent[client, step] = after.detach(), y
                    train(made, tail, shared, after.detach(), y)
        front.load_state_dict(average(own, clients))
        if number % aligned == 0:
            kept = [torch.cat(part) for part in zip(*[sent[key] for key in sorted(sent)], strict=True)]
            align(made, head, tail, kept, number, epochs=2)
    result = splitfl.simulate(made, clients=clients, rounds=3)
    assert bench.difference(result.state, whole(front, tail)) < 1e-12
    assert any(not torch.equal(value, started[name]) for name, value in head.state_dict().items())


def test_a_network_that_can_become_the_tail_comes_to_give_its_gradients():
    """The head has the tail's own form, so that the distance can vanish."""

    def model():
        return nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)).double()

    made = splitfl.Job(
        model=model,
        example_input=torch.zeros(2, 6, dtype=torch.float64),
        cut="0",
        method=splitfl.methods.fsl_sage(auxiliary="linear"),
        batch_size=4,
        loss=nn.functional.cross_entropy,
        optimizer=splitfl.adam(lr=0.03),
    )
    blueprint = made.blueprint()
    front, tail = blueprint.partition.stages
    fitted = Alignment(front, front.state, blueprint.loss, blueprint.optimizer)
    generator = torch.Generator().manual_seed(0)
    values = {front.outputs[0].name: torch.randn(40, 5, generator=generator, dtype=torch.float64)}
    labels = torch.randint(0, 3, (40,), generator=generator)
    wanted = gradients_of([(tail, tail.module)], values, labels, blueprint.loss)
    assert wanted.keys() == values.keys()
    distances = [fitted.step(values, labels, wanted) for _ in range(300)]
    assert distances[0] > 0.1
    assert distances[-1] < 1e-4


def test_a_step_is_bounded_where_next_to_nothing_is_wanted():
    """A tail that has learned sends back next to nothing; a share of that must not become a step without bound."""
    made = splitfl.Job(
        model=lambda: nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)).double(),
        example_input=torch.zeros(2, 6, dtype=torch.float64),
        cut="0",
        method="fsl-sage",
        batch_size=4,
        loss=nn.functional.cross_entropy,
        optimizer=splitfl.sgd(lr=1.0),
    )
    front = made.blueprint().partition.stages[0]
    fitted = Alignment(front, front.state, made.loss, made.optimizer)
    before = fitted.state()
    values = {front.outputs[0].name: torch.ones(8, 5, dtype=torch.float64)}
    wanted = {name: torch.full_like(value, 1e-9) for name, value in values.items()}
    assert fitted.step(values, torch.zeros(8, dtype=torch.int64), wanted) > 1e6
    moved = torch.stack([(value - before[name]).norm() for name, value in fitted.state().items()]).norm()
    assert 0 < moved <= 1.0


@pytest.mark.parametrize(
    "method",
    [
        splitfl.methods.fsl_sage(every=2),
        splitfl.methods.ampere(server_epochs=2),
        splitfl.methods.ecofed(transfer_every=2),
    ],
    ids=["fsl-sage", "ampere", "ecofed"],
)
def test_the_same_bits_over_grpc(bench, clients, method):
    made = bench.job(stack, "2", method)
    simulated = splitfl.simulate(made, clients=clients, rounds=3)
    named = {f"c{client}": each for client, each in enumerate(clients)}
    trained, _ = bench.run(bench.over_grpc(made.blueprint(), named, rounds=3))
    assert bench.difference(trained.model, simulated.state) == 0


def test_a_tail_of_several_stages_is_trained_and_looked_at_as_one(bench, clients):
    """Two stages on the server: what they learn and what the head is fitted to is that of one."""
    for method in (splitfl.methods.fsl_sage(every=1), splitfl.methods.ampere(), splitfl.methods.ecofed()):
        one = splitfl.simulate(bench.job(smooth, "1", method), clients=clients, rounds=2)
        two = splitfl.simulate(bench.job(smooth, ["1", "3"], method), clients=clients, rounds=2)
        assert bench.difference(one.state, two.state) < 1e-12


def test_a_client_that_is_lost_in_the_upload_leaves_nothing_behind(bench, clients):
    made = bench.job(smooth, "1", splitfl.methods.ecofed())
    named = {f"c{client}": each for client, each in enumerate(clients)}

    blueprint = made.blueprint()
    blueprint = replace(blueprint, deadlines=replace(blueprint.deadlines, rejoin=0.0))
    trained, _ = bench.run(bench.over_grpc(blueprint, named, rounds=1, ends={"c2": bench.leaving_at(1)}))
    without = splitfl.simulate(made, clients={name: named[name] for name in ("c0", "c1")}, rounds=1)
    assert bench.difference(trained.model, without.state) == 0
    assert [failure.client for failure in trained.rounds[0].failures] == ["c2"]


def test_a_tail_that_diverges_is_told(bench):
    clients = [bench.dataset(20, dtype=torch.float32)]
    made = bench.job(smooth, "1", "ecofed", dtype=torch.float32, optimizer=splitfl.sgd(lr=1e38))
    with pytest.raises(splitfl.SplitflError, match=r"round 1: the tail diverged .*: lower the learning rate"):
        splitfl.simulate(made, clients=clients, rounds=1)


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match=r"method ecofed: transfer_every = 0, expected 1 or more"):
        splitfl.methods.ecofed(transfer_every=0)
    with pytest.raises(ValueError, match=r"method ampere: server_epochs = 0, expected 1 or more"):
        splitfl.methods.ampere(server_epochs=0)
    with pytest.raises(ValueError, match=r"method fsl-sage: align_every = -1, expected 0 or more"):
        splitfl.methods.fsl_sage(align_every=-1)


def test_what_is_averaged_says_whether_a_strategy_has_work():
    assert not splitfl.methods.ecofed().takes_strategy
    assert splitfl.methods.ampere().takes_strategy
