"""Jobs with a transform at the cut: what is trained, what travels, what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import splitfl
from splitfl.model import Transform, TransformError

BOTH = Transform(name="both", sent=lambda x: 2 * x, received=torch.tanh)
BOTH_WAYS = Transform(name="both ways", sent=lambda x: 2 * x, received=torch.tanh, both_ways=True)
SAMPLES = (8, 12, 5)


class Wide(nn.Module):
    """Much crosses the cut, few weights do."""

    def __init__(self):
        super().__init__()
        self.fc, self.spread = nn.Linear(6, 1), nn.Conv1d(1, 40, 1)
        self.head = nn.Linear(40, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.spread((x + self.fc(x)).unsqueeze(1))).mean(dim=2))


class Inserted(nn.Module):
    """The model of the tests with the transform's functions where it is cut, at `relu` and, maybe, at `tanh`."""

    def __init__(self, kind, way_back):
        super().__init__()
        model = kind()
        self.fc1, self.fc2, self.fc3, self.way_back = model.fc1, model.fc2, model.fc3, way_back

    def forward(self, x):
        x = torch.tanh(self.fc2(torch.tanh(2 * torch.relu(self.fc1(x)))))
        return self.fc3(torch.tanh(2 * x) if self.way_back else x)


@pytest.fixture
def clients(bench):
    return [bench.dataset(samples, seed=samples) for samples in SAMPLES]


def states(bench, method, cut, clients, kind=None, **options):
    made = bench.job(kind or bench.Mlp, cut, method, **options)
    return splitfl.simulate(made, clients=clients, rounds=2)


@pytest.mark.parametrize("method", ["splitfed-v1", "splitfed-v2", "pipar", "sl", "parallel-sl", "1f1b", "pipe-sgd"])
def test_it_is_part_of_what_is_trained(bench, clients, method):
    """As if its functions were in the model, whoever waits for whom."""
    chosen = splitfl.methods.pipar(order="1f1b") if method == "1f1b" else method
    found = states(bench, chosen, "relu", clients, transform=BOTH)
    wanted = states(bench, chosen, "relu", clients, kind=lambda: Inserted(bench.Mlp, way_back=False))
    assert bench.difference(found.state, wanted.state) < 1e-12


@pytest.mark.parametrize("transform", [BOTH, BOTH_WAYS], ids=lambda each: each.name)
def test_on_the_way_to_a_head_on_the_client_if_it_says_so(bench, clients, transform):
    found = states(bench, "u-shaped", ["relu", "tanh"], clients, transform=transform)
    inserted = lambda: Inserted(bench.Mlp, way_back=transform.both_ways)  # noqa: E731
    wanted = states(bench, "u-shaped", ["relu", "tanh"], clients, kind=inserted)
    assert bench.difference(found.state, wanted.state) < 1e-12


@pytest.mark.parametrize("method", ["local-loss", "cse-fsl", "block-local"])
def test_a_front_with_a_loss_of_its_own_learns_as_without(bench, clients, method):
    chosen = splitfl.methods.cse_fsl(every=2) if method == "cse-fsl" else method
    plain, found = (states(bench, chosen, "relu", clients, transform=each) for each in (None, BOTH))
    front = {name for name in plain.state if name.startswith(("fc1", "auxiliary"))}
    assert all(torch.equal(plain.state[name], found.state[name]) for name in front)
    assert not torch.equal(plain.state["fc2.weight"], found.state["fc2.weight"])


@pytest.mark.parametrize("kind", ["mlp", "cnn", "residual", "dropout"])
@pytest.mark.parametrize("method", ["pipar", "local-loss"])
def test_all_of_the_features_are_the_plain_run_bit_for_bit(bench, clients, kind, method):
    chosen = bench.KINDS[kind]
    plain, whole = (
        states(bench, method, chosen.cuts[-1], clients, kind=chosen.model, transform=each)
        for each in (None, "feature-dropout:1")
    )
    assert all(torch.equal(plain.state[name], whole.state[name]) for name in plain.state)
    assert [each.bytes_up for each in plain.history.rounds] == [each.bytes_up for each in whole.history.rounds]


def test_the_seed_decides_the_bits_over_grpc_too(bench, clients):
    made = bench.job(bench.Cnn, "conv1", "pipar", transform="feature-dropout:0.4")
    torch.manual_seed(1)
    first = splitfl.simulate(made, clients=clients, rounds=2).state
    torch.manual_seed(2)
    named = {f"c{index}": data for index, data in enumerate(clients)}
    trained, words = bench.run(bench.over_grpc(made.blueprint(), named, rounds=2, slots=3))
    assert not any(isinstance(word, BaseException) for word in words.values())
    assert all(torch.equal(trained.state[name], value) for name, value in first.items())
    other = splitfl.simulate(
        bench.job(bench.Cnn, "conv1", "pipar", transform="feature-dropout:0.4", seed=4), clients=clients, rounds=2
    ).state
    assert not torch.equal(first["head.weight"], other["head.weight"])


@pytest.mark.parametrize("share", [0.25, 0.6])
@pytest.mark.parametrize(("format", "size"), [("", 4), ("+int8", 1), ("+bf16", 2)])
def test_both_directions_shrink_to_the_share(bench, share, format, size):
    data = bench.dataset(640, dtype=torch.float32)

    def traffic(transform, name):
        made = bench.job(
            Wide,
            "tanh",
            splitfl.methods.pipar(micro_batches=2),
            dtype=torch.float32,
            batch_size=128,
            optimizer=splitfl.sgd(lr=0.01),
            transform=transform,
            codec=splitfl.codec(activation=name, gradient=name),
        )
        (only,) = splitfl.simulate(made, clients=[data], rounds=1).history.rounds
        return only.bytes_up, only.bytes_down

    plain = traffic(None, format.removeprefix("+") or None)
    dropped = traffic(f"feature-dropout:{share}", f"columns{format}")
    crossing = 640 * 40 * 6 * size
    for before, after in zip(plain, dropped, strict=True):
        assert 1 - (before - after) / crossing == pytest.approx(share, abs=0.06)


def test_a_model_learns_with_a_quarter_of_its_features(bench):
    digits = splitfl.load("digits")
    accuracies = []
    for transform in (None, "feature-dropout:0.25"):
        made = splitfl.Job(
            model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
            example_input=digits.example_input,
            cut="2",
            method="pipar",
            loss=nn.functional.cross_entropy,
            optimizer=splitfl.sgd(lr=0.1, momentum=0.9),
            batch_size=64,
            transform=transform,
            codec=splitfl.codec(activation="columns+int8", gradient="columns+int8"),
        )
        result = splitfl.simulate(made, clients=splitfl.iid(digits.train, 2, seed=0), test=digits.test, rounds=3)
        accuracies.append(result.accuracy)
    assert accuracies[1] > accuracies[0] - 0.08
    assert accuracies[1] > 0.8


@pytest.mark.parametrize(
    ("method", "transform", "problem"),
    [
        (
            "fedavg",
            "feature-dropout:0.5",
            r"transform = 'feature-dropout:0.5' with method fedavg: nothing crosses a cut",
        ),
        ("fedavg", BOTH, r"transform = 'both' with method fedavg"),
        ("ampere", BOTH, r"with method ampere: the server also computes on activations that it keeps"),
        ("ecofed", BOTH, r"with method ecofed: the server also"),
        ("fsl-sage", BOTH, r"with method fsl-sage: the server also"),
        ("pipar", "dropout:0.5", r"transform = 'dropout:0.5': expected feature-dropout:SHARE"),
        ("pipar", "feature-dropout:2", r"transform = 'feature-dropout:2': expected the share"),
        ("pipar", 0.25, r"transform = 0.25: expected a splitfl.model.Transform, or the name of one"),
    ],
)
def test_what_cannot_be_is_refused_when_the_job_is_made(bench, method, transform, problem):
    with pytest.raises(splitfl.JobError, match=problem):
        bench.job(bench.Mlp, "relu", method, transform=transform)


def test_where_nothing_crosses_that_it_would_change_it_is_refused(bench):
    made = bench.job(bench.Mlp, "relu", "pipe-bd", transform=BOTH, teacher=bench.Mlp().double())
    with pytest.raises(TransformError, match=r"'both' with method pipe-bd: of what crosses the cut \('relu'\) nothing"):
        made.blueprint()


def test_both_ends_must_have_the_same(bench):
    prints = [
        bench.job(bench.Mlp, "relu", "pipar", transform=each).blueprint().fingerprints()
        for each in (None, "feature-dropout:0.25", "feature-dropout:0.5")
    ]
    for one, other in ((0, 1), (1, 2)):
        assert [name for name in prints[one] if prints[one][name] != prints[other][name]] == ["transform"]


def test_the_report_names_it(bench, clients):
    found = states(bench, "pipar", "relu", clients, transform="feature-dropout:0.5").history
    assert json.loads(json.dumps(found.settings))["transform"] == "feature-dropout:0.5"


def test_the_virtual_clock_knows_what_is_left_out(bench, clients):
    def seconds(transform, name):
        made = bench.job(
            Wide, "tanh", "splitfed-v1", transform=transform, codec=splitfl.codec(activation=name, gradient=name)
        )
        (only,) = splitfl.simulate(made, clients=clients, rounds=1, link="lora-like").history.rounds
        return only.seconds

    whole, half = seconds(None, "columns"), seconds("feature-dropout:0.5", "columns")
    assert seconds("feature-dropout:0.5", None) == whole  # nothing leaves the zeros out
    assert 0.5 < half / whole < 0.6  # on a slow line; weights travel whole
