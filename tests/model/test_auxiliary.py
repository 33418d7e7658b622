"""Auxiliary networks: made for any cut, with a budget, and refused where none fits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from splitfl.model import CutError, partition, with_auxiliaries


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(16), nn.Linear(16 * 64, 10)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        return self.head(self.norm(self.conv2(x)).flatten(1))


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layer, self.head = nn.Embedding(20, 12), nn.Linear(12, 12), nn.Linear(12, 20)

    def forward(self, x):
        return self.head(torch.relu(self.layer(self.embed(x))))


class Skip(nn.Module):
    """Two tensors cross a cut after `a`."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.c(x + self.b(torch.tanh(self.a(x))))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 3), nn.Linear(6, 1)

    def forward(self, x):
        x = torch.relu(self.a(x))
        return self.b(x), self.c(x)


IMAGE, SERIES, ROW = torch.zeros(2, 1, 8, 8), torch.zeros(2, 12, 7), torch.zeros(2, 6)
WORDS = torch.zeros(2, 5, dtype=torch.long)


def headed(model, example, cuts, *, build="mlp", share=0.1, stages=(0,)):
    parts = partition(model, example, cuts)
    return parts, with_auxiliaries(parts, stages, build=build, share=share, seeds=lambda stage: stage)


@pytest.mark.parametrize("kind", ["linear", "mlp", "cnn"])
@pytest.mark.parametrize(
    ("model", "example", "cut", "shape"),
    [
        (Cnn, IMAGE, "conv1", (10,)),
        (Cnn, IMAGE, "norm", (10,)),
        (Tokens, WORDS, "embed", (5, 20)),
        (Skip, ROW, "a", (3,)),
        (lambda: nn.Sequential(nn.Conv1d(12, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(30, 4)), SERIES, "1", (4,)),
    ],
)
def test_a_head_for_any_cut(kind, model, example, cut, shape):
    model = model()
    parts, made = headed(model, example, [cut], build=kind)
    plain, stage = parts.stages[0], made.stages[0]
    values = {port.name: torch.zeros(3, *port.shape, dtype=port.dtype) for port in stage.inputs}
    result = stage.apply(stage.module, values)
    assert stage.scored(result).shape == (3, *shape)
    sent = stage.name_outputs(result)
    assert sent.keys() == {port.name for port in plain.outputs}
    assert {name for name in stage.state_names if not name.startswith("auxiliary.0.")} == set(plain.state_names)
    assert made.join([each.state for each in made.stages]).keys() == model.state_dict().keys()


def test_the_share_of_parameters_is_a_setting():
    counts = []
    for share in (0.5, 2.0):
        parts, made = headed(Cnn(), IMAGE, ["norm"], share=share)
        own = sum(each.numel() for each in parts.stages[0].module.parameters())
        counts.append(sum(each.numel() for each in made.stages[0].module.parameters()) - own)
        assert counts[-1] == pytest.approx(share * own, rel=0.15)
    assert counts[0] < counts[1]


def test_every_block_but_the_last_gets_a_head_and_the_seed_decides_its_weights():
    _, made = headed(Cnn(), IMAGE, ["conv1", "conv2"], stages=(0, 1, 2))
    heads = [{name for name in stage.state_names if name.startswith("auxiliary.")} for stage in made.stages]
    assert [bool(names) for names in heads] == [True, True, False]
    assert not heads[0] & heads[1]
    torch.manual_seed(99)
    _, again = headed(Cnn(), IMAGE, ["conv1", "conv2"], stages=(0, 1, 2))
    for name in heads[0]:
        assert torch.equal(made.stages[0].state[name], again.stages[0].state[name])


def test_a_head_of_the_users_own():
    given = []

    def build(activation, output):
        given.append((activation.shape, output.shape))
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(8 * 64, 10))

    _, made = headed(Cnn(), IMAGE, ["conv1"], build=build)
    assert given == [((2, 8, 8, 8), (2, 10))]
    assert "auxiliary.0.2.weight" in made.stages[0].state_names
    assert made.stages[0].random


def test_what_fits_nowhere_is_refused():
    with pytest.raises(CutError, match="auxiliary = 'mlp': the model's output is no single tensor; give a function"):
        headed(Two(), ROW, ["a"])
    with pytest.raises(CutError, match=r"auxiliary network of stage 0 gives \(2, 3\), expected \(2, 10\)"):
        headed(Cnn(), IMAGE, ["conv1"], build=lambda *_: nn.Sequential(nn.Flatten(), nn.Linear(512, 3)))
    with pytest.raises(CutError, match=r"auxiliary network of stage 0 fails on \(2, 8, 8, 8\)"):
        headed(Cnn(), IMAGE, ["conv1"], build=lambda *_: nn.Linear(3, 3))
    with pytest.raises(CutError, match="the function gives int, expected a torch"):
        headed(Cnn(), IMAGE, ["conv1"], build=lambda *_: 3)
    with pytest.raises(CutError, match="auxiliary = 'mpl', expected one of linear, mlp, cnn, or a function"):
        headed(Cnn(), IMAGE, ["conv1"], build="mpl")
    taken = nn.Sequential()
    taken.add_module("auxiliary", nn.Linear(6, 6))
    taken.add_module("head", nn.Linear(6, 3))
    with pytest.raises(CutError, match=r"'auxiliary.weight': the model has a part named 'auxiliary'"):
        headed(taken, ROW, ["auxiliary"])
