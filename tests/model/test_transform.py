"""A transform in the forward of a replica: gradients, draws, what it is given, and what it may not do."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from splitfl.model import Replica, Transform, TransformError, parse_transform, partition
from splitfl.model.feature_dropout import keep_probabilities
from splitfl.model.transform import RECEIVED, SENT

X = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).double()
Y = torch.tensor([0, 1, 1, 0, 1])
BOTH = Transform(name="both", sent=lambda x: 2 * x, received=torch.tanh)
NOISE = Transform(name="noise", sent=lambda x: x + torch.randn_like(x), received=lambda x: x * torch.rand(()))


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.drop, self.b = nn.Linear(3, 12), nn.Dropout(0.5), nn.Linear(12, 2)

    def forward(self, x):
        return self.b(self.drop(self.a(x)))


class Several(nn.Module):
    """What crosses: an activation, a mask, positions, a vector without samples, and floats that need no gradient."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)
        self.shift = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        positive, most, shift, plain = x > 0, x.argmax(dim=1), self.shift * 2, x * 3
        y = self.a(x)
        return self.b(y * positive.any(1, keepdim=True) + most.unsqueeze(1) + shift + plain.sum(1, keepdim=True))


def stages(kind=Chain, cut="a"):
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = kind().double()
    return model, partition(model, X[:2], [cut]).stages


def pair(bench, transform, kind=Chain, cut="a"):
    model, (first, second) = stages(kind, cut)
    front = Replica(first, bench.sgd, sends=transform)
    return model, front, Replica(second, bench.sgd, loss=F.cross_entropy, receives=transform)


@pytest.mark.parametrize("halves", [False, True])
def test_gradients_go_through_both_functions(bench, halves):
    model, front, tail = pair(bench, BOTH, cut="drop")
    sent, stash = front.forward({"x": X}, seed=1)
    assert not any(tensor.requires_grad for tensor in sent.values())
    _, tail_stash = tail.forward(sent, seed=2, target=Y)
    if halves:
        below, rest = tail.backward_input(tail_stash)
        _, front_rest = front.backward_input(stash, below)
        tail.backward_weight(rest)
        front.backward_weight(front_rest)
    else:
        front.backward(stash, tail.backward(tail_stash))
    torch.manual_seed(1)
    F.cross_entropy(model.b(torch.tanh(2 * model.drop(model.a(X)))), Y).backward()
    found = dict([*front.module.named_parameters(), *tail.module.named_parameters()])
    for name, parameter in model.named_parameters():
        assert torch.allclose(found[name].grad, parameter.grad, rtol=1e-12)


def test_feature_dropout_of_a_front_is_a_mask_on_its_gradient(bench):
    _, front, tail = pair(bench, parse_transform("feature-dropout:0.5"))
    sent, stash = front.forward({"x": X}, seed=7)
    keep = keep_probabilities(front.module.a(X).detach(), 0.5)
    torch.manual_seed(7 ^ SENT)
    kept = torch.rand(12, dtype=torch.float64) < keep
    assert 0 < int(kept.sum()) < 12
    scale = torch.where(kept, 1 / keep, 0.0)
    assert torch.equal(sent["a"], front.module.a(X).detach() * scale)
    _, tail_stash = tail.forward(sent, seed=3, target=Y)
    below = tail.backward(tail_stash)["a"]
    assert torch.equal((below != 0).any(dim=0), kept & (below != 0).any(dim=0))  # nothing comes back for the others
    front.backward(stash, {"a": below})
    assert torch.allclose(front.module.a.weight.grad, (below * scale).T @ X, rtol=1e-12)


def test_the_seed_decides_the_draws_and_no_generator_moves(bench):
    _, front, tail = pair(bench, NOISE)
    before = torch.get_rng_state()
    first, again, other = (front.forward({"x": X}, seed=seed)[0]["a"] for seed in (5, 5, 6))
    losses = [tail.forward({"a": X @ torch.ones(3, 12).double()}, seed=seed, target=Y)[1].loss for seed in (5, 5, 6)]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert losses[0] == losses[1] != losses[2]


def test_draws_of_the_stage_itself_are_not_disturbed(bench):
    """Dropout's masks are those of a stage without a transform, before which or after which something is drawn."""
    _, (first, second) = stages(cut="a")
    drawing = Transform(name="draws", received=lambda x: x + 0 * torch.rand(()))
    values = {"a": X @ torch.ones(3, 12).double()}
    plain, other = (Replica(second, bench.sgd, loss=F.cross_entropy, receives=each) for each in (None, drawing))
    losses = [replica.forward(values, seed=4, target=Y)[1].loss for replica in (plain, other)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    assert first.state.keys() | second.state.keys() == {"a.weight", "a.bias", "b.weight", "b.bias"}
    assert SENT != RECEIVED


def test_an_evaluation_does_without(bench):
    model, front, tail = pair(bench, BOTH)
    model.eval()
    found = tail.infer(front.infer({"x": X}))["output"]
    assert torch.allclose(found, model(X), rtol=1e-12)


def test_the_state_has_the_names_of_the_model(bench):
    model, front, tail = pair(bench, BOTH)
    assert {*front.state(), *tail.state()} == set(model.state_dict())


def test_only_floats_with_samples_and_a_gradient_are_transformed(bench):
    given = []

    def note(tensor):
        given.append(tensor.shape)
        return 2 * tensor

    transform = Transform(name="notes", sent=note, received=note)
    _, plain, _ = pair(bench, None, Several)
    _, front, tail = pair(bench, transform, Several)
    values, wanted = front.forward({"x": X}, seed=0)[0], plain.forward({"x": X}, seed=0)[0]
    assert given == [(5, 4)]
    assert list(values) == list(wanted)
    for name, tensor in values.items():
        assert torch.equal(tensor, 2 * wanted[name] if name == "a" else wanted[name])
    assert {tensor.dtype for tensor in values.values()} >= {torch.bool, torch.int64, torch.float64}
    tail.forward(values, seed=0, target=Y)
    assert given == [(5, 4), (5, 4)]


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (
            Transform(name="cuts", sent=lambda x: x[:, :2]),
            r"transform = 'cuts': sent gives float64\[5, 2\] of 'a', exp",
        ),
        (Transform(name="casts", sent=lambda x: x.float()), r"float32\[5, 12\] of 'a', expected float64\[5, 12\]"),
        (Transform(name="none", received=lambda _: None), r"transform = 'none': received gives NoneType of 'a'"),
    ],
)
def test_another_shape_or_dtype_is_refused(bench, transform, message):
    _, front, tail = pair(bench, transform)
    with pytest.raises(TransformError, match=message):
        tail.forward(front.forward({"x": X}, seed=0)[0], seed=0, target=Y)
