"""The life of a replica: forward, backward in one or two halves, step, load."""

from __future__ import annotations

import gc
import weakref
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from splitfl.model import Replica, StateError, partition

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).double()
Y = torch.tensor([0, 1, 1, 0])


class Skips(nn.Module):
    """Cut at `a` and `b`: the value of `a` passes through stage 1, where it is also used."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x):
        a = self.a(x)
        return self.c(self.b(a) + a * 2)


def build(kind=Skips, cuts=("a", "b")):
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = kind().double()
    return model, partition(model, X[:1], cuts)


def test_gradients_of_values_that_pass_through(bench):
    model, parts = build()
    body, tail = (Replica(parts.stages[index], bench.sgd) for index in (1, 2))
    assert [port.name for port in parts.stages[1].outputs] == ["a", "b"]
    given = torch.randn(4, 3).double()
    sent, stash = body.forward({"a": given}, seed=0)
    assert torch.equal(sent["a"], given)
    output, tail_stash = tail.forward(sent, seed=0)
    received = tail.backward(tail_stash, {"output": torch.ones_like(output["output"])})
    result = body.backward(stash, received)["a"]
    leaf = given.clone().requires_grad_()
    model.c(model.b(leaf) + leaf * 2).sum().backward()
    assert torch.allclose(result, leaf.grad, rtol=1e-12)


def test_an_output_without_a_gradient_counts_as_unused(bench):
    model, parts = build()
    body = Replica(parts.stages[1], bench.sgd)
    _, stash = body.forward({"a": X}, seed=0)
    only = body.backward(stash, {"b": torch.ones(4, 3).double()})
    assert torch.allclose(only["a"], torch.ones(4, 3).double() @ model.b.weight, rtol=1e-12)
    _, stash = body.forward({"a": X}, seed=0)
    assert body.backward(stash, None) == {}
    _, stash = body.forward({"a": X}, seed=0)
    assert body.backward_input(stash, {})[0] == {}


def test_two_halves_equal_one_whole_backward(bench):
    _, parts = build()
    for index in (0, 1, 2):
        stage = parts.stages[index]
        whole, halves = (Replica(stage, bench.sgd, loss=F.cross_entropy if stage.last else None) for _ in range(2))
        generator = torch.Generator().manual_seed(5)
        for _ in range(2):  # twice, so that the second adds to the first
            values = {port.name: torch.randn(4, 3, generator=generator).double() for port in stage.inputs}
            upstream = {port.name: torch.randn(4, *port.shape, generator=generator).double() for port in stage.outputs}
            upstream = None if stage.last else upstream
            _, first = whole.forward(values, seed=0, target=Y)
            _, second = halves.forward(values, seed=0, target=Y)
            expected = whole.backward(first, upstream)
            given, rest = halves.backward_input(second, upstream)
            halves.backward_weight(rest)
            assert given.keys() == expected.keys()
            assert all(torch.equal(given[name], expected[name]) for name in expected)
        ours, theirs = bench.gradients(halves.module), bench.gradients(whole.module)
        assert ours.keys() == theirs.keys() == {name for name, _ in stage.module.named_parameters()}
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_weight_gradients_wait_for_the_second_half(bench):
    _, parts = build()
    tail = Replica(parts.stages[2], bench.sgd, loss=F.cross_entropy)
    _, stash = tail.forward({"a": X, "b": X}, seed=0, target=Y)
    _, rest = tail.backward_input(stash)
    assert bench.gradients(tail.module) == {}
    tail.backward_weight(rest)
    assert bench.gradients(tail.module).keys() == {"c.weight", "c.bias"}


def test_loss_value_and_counts(bench):
    model, parts = build(cuts=())
    replica = Replica(parts.stages[0], bench.sgd, loss=F.cross_entropy)
    _, stash = replica.forward({"x": X}, seed=0, target=Y, weight=0.25)
    output = model(X)
    assert stash.loss == pytest.approx(F.cross_entropy(output, Y).item(), rel=1e-12)
    correct = int((output.argmax(1) == Y).sum())
    assert stash.metrics == {"samples": 4, "correct": correct, "predictions": 4}
    replica.backward(stash)
    (0.25 * F.cross_entropy(model(X), Y)).backward()
    assert torch.allclose(replica.module.a.weight.grad, model.a.weight.grad, rtol=1e-12)


def test_local_loss_lets_the_outputs_flow_on_detached(bench):
    _, parts = build(cuts=("a",))

    def local(output, target):
        return F.cross_entropy(output, target)

    front = Replica(parts.stages[0], bench.sgd, loss=local)
    sent, stash = front.forward({"x": X}, seed=0, target=Y)
    assert not sent["a"].requires_grad
    assert stash.loss > 0
    assert front.backward(stash) == {}
    assert bench.gradients(front.module).keys() == {"a.weight", "a.bias"}


def test_the_callers_tensors_are_never_changed_in_place(bench):
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 2)).double()
    parts = partition(model, X[:1], ["0"])
    given = X.clone()
    tail = Replica(parts.stages[1], bench.sgd, loss=F.cross_entropy)
    _, stash = tail.forward({"0": given} if parts.stages[1].inputs[0].name == "0" else {"_0": given}, seed=0, target=Y)
    assert torch.equal(given, X)
    assert not given.requires_grad
    (gradient,) = tail.backward(stash).values()
    assert torch.equal(gradient == 0, (X < 0))
    first = partition(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2)).double(), X[:1], ["0"]).stages[0]
    Replica(first, bench.sgd).forward({"input": given}, seed=0)
    assert torch.equal(given, X)


def test_a_stash_serves_once_and_gradients_must_fit(bench):
    _, parts = build(cuts=("a",))
    front = Replica(parts.stages[0], bench.sgd)
    _, stash = front.forward({"x": X}, seed=0)
    with pytest.raises(StateError, match=r"gradient of 'a' has shape \(2, 3\), expected \(4, 3\)"):
        front.backward(stash, {"a": torch.ones(2, 3)})
    front.backward(stash, {"a": torch.ones(4, 3)})
    with pytest.raises(StateError, match="already run"):
        front.backward(stash, {"a": torch.ones(4, 3)})
    with pytest.raises(StateError, match=r"stage 0 is not given 'x', only \['y'\]"):
        front.forward({"y": X}, seed=0)


def test_stage_without_weights(bench):
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    stage = partition(model, X[:1], ["0", "1"]).stages[1]
    replica = Replica(stage, bench.sgd)
    name, out = stage.inputs[0].name, stage.outputs[0].name
    _, stash = replica.forward({name: X}, seed=0)
    gradient, rest = replica.backward_input(stash, {out: torch.ones(4, 3)})
    replica.backward_weight(rest)
    replica.step()
    assert torch.allclose(gradient[name], 1 - torch.tanh(X) ** 2)
    assert replica.state() == {}
    assert replica.optimizer_state() == {}
    replica.load({}, reset_optimizer=True)
    replica.load_optimizer_state({})


def train(replica, steps=1):
    for _ in range(steps):
        _, stash = replica.forward({"x": X}, seed=0, target=Y)
        replica.backward(stash)
        replica.step()


def test_load_state_and_optimizer(bench):
    _, parts = build(cuts=())
    adam = partial(torch.optim.Adam, lr=0.1)
    one, other = (Replica(parts.stages[0], adam, loss=F.cross_entropy) for _ in range(2))
    train(one, 3)
    kept = one.state()
    train(one)
    assert not torch.equal(kept["a.weight"], one.state()["a.weight"])  # a copy, not a view
    other.load(one.state(), reset_optimizer=True)
    other.load_optimizer_state(one.optimizer_state())
    train(one, 2)
    train(other, 2)
    assert all(torch.equal(value, other.state()[name]) for name, value in one.state().items())
    fresh = Replica(parts.stages[0], adam, loss=F.cross_entropy)
    other.load(parts.stages[0].state, reset_optimizer=True)
    train(fresh)
    train(other)
    assert all(torch.equal(value, other.state()[name]) for name, value in fresh.state().items())
    other.load(parts.stages[0].state, reset_optimizer=False)
    assert other.optimizer_state()["state"][0]["step"] == 1


def test_load_refuses_what_does_not_fit(bench):
    _, parts = build(cuts=("a",))
    replica = Replica(parts.stages[0], bench.sgd)
    with pytest.raises(StateError, match=r"stage 0: missing \['a.bias'\], unknown \['b'\]"):
        replica.load({"a.weight": torch.zeros(3, 3), "b": torch.zeros(1)}, reset_optimizer=True)
    with pytest.raises(StateError, match=r"'a.bias' has shape \(4,\), expected \(3,\)"):
        replica.load({"a.weight": torch.zeros(3, 3), "a.bias": torch.zeros(4)}, reset_optimizer=True)


def test_gradients_are_freed_by_a_step_and_graphs_by_a_backward(bench):
    _, parts = build(cuts=("a",))
    front = Replica(parts.stages[0], bench.sgd)
    _, stash = front.forward({"x": X}, seed=0)
    graph = weakref.ref(stash.outputs["a"])
    front.backward(stash, {"a": torch.ones(4, 3)})
    gc.collect()
    assert graph() is None
    assert stash.outputs == {}
    front.step()
    assert bench.gradients(front.module) == {}


def test_memory_stays_flat_over_many_steps(bench):
    _, parts = build()
    replicas = [Replica(stage, bench.sgd, loss=F.cross_entropy if stage.last else None) for stage in parts.stages]

    def tensors():
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    def step():
        stashes = bench.forward_all(replicas, {"x": X}, seed=0, target=Y, weight=1.0)
        for replica, rest in bench.backward_all(replicas, stashes, halves=True):
            replica.backward_weight(rest)
        for replica in replicas:
            replica.step()

    for _ in range(3):
        step()
    before = tensors()
    for _ in range(10):
        step()
    assert tensors() <= before
