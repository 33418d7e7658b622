"""What comes from outside is compared with what was probed, tensor by tensor; labels keep their form on the way."""

from __future__ import annotations

import pytest
import torch

import splitfl
from splitfl.run.expectation import verify
from splitfl.run.target import join_target, split_target
from splitfl.schedule.instruction import Kind, Value


@pytest.fixture
def place(bench):
    """A blueprint of two stages, and its topology with five samples in two micro-batches: three and two."""

    def make(method="splitfed-v1"):
        blueprint = bench.job(bench.Mlp, "fc1", method).blueprint()
        return blueprint, blueprint.topology((0, 1), micro_batches=2)

    return make


def check(place, value, tensors, method="splitfed-v1"):
    blueprint, topology = place(method)
    verify(tensors, value, blueprint, topology, samples={0: 5, 1: 5})


ACT = Value(Kind.ACT, 0, 1, 1)
GRAD = Value(Kind.GRAD, 0, 1, 0)
LABELS = {"target:": torch.zeros(2, dtype=torch.long)}


def activation(samples=2, **changed):
    return {"fc1": torch.zeros(samples, 8, dtype=torch.float64), **LABELS, **changed}


def test_what_fits_passes(place):
    check(place, ACT, activation())
    check(place, GRAD, {"fc1": torch.zeros(3, 8, dtype=torch.float64)})
    check(place, GRAD, {})  # an output that nothing depends on has no gradient
    blueprint, _ = place()
    check(place, Value(Kind.PARAMS, 1, 0), blueprint.partition.stages[1].state)


@pytest.mark.parametrize(
    ("value", "tensors", "message"),
    [
        (ACT, activation(3), r"fc1 is float64\[3, 8\], expected float64\[2, 8\]"),
        (ACT, activation(fc1=torch.zeros(2, 8)), r"fc1 is float32\[2, 8\], expected float64"),
        (ACT, activation(extra=torch.zeros(1)), r"unexpected tensors \['extra'\]"),
        (ACT, dict(LABELS), r"missing tensors \['fc1'\]"),
        (ACT, {"fc1": torch.zeros(2, 8, dtype=torch.float64)}, "comes without labels"),
        (ACT, activation(**{"target:": torch.zeros(3)}), r"target: has shape \(3,\), expected 2 samples"),
        (ACT, activation(**{"target:": torch.tensor(1)}), r"target: has shape \(\), expected 2 samples"),
        (ACT, activation(**{"target:#1": torch.zeros(2)}), "labels named target:, target:#1"),
        (GRAD, {"fc2": torch.zeros(3, 8)}, r"unexpected tensors \['fc2'\]"),
        (GRAD, {"fc1": torch.zeros(2, 8, dtype=torch.float64)}, r"expected float64\[3, 8\]"),
        (Value(Kind.PARAMS, 1, 0), {"fc2.weight": torch.zeros(1)}, "missing tensors .*'fc2.bias'"),
        (Value(Kind.ACT, 0), activation(), "names no micro-batch"),
    ],
)
def test_what_does_not_is_named(place, value, tensors, message):
    with pytest.raises(splitfl.SplitflError, match=message):
        check(place, value, tensors)


def test_nan_is_kept_away_from_weights_that_all_share(place):
    spoiled = activation()
    spoiled["fc1"][1, 3] = float("nan")
    check(place, ACT, spoiled)  # its own replica is its own affair: the update is looked at when the round ends
    with pytest.raises(splitfl.SplitflError, match=r"act\[0,1,1\]: fc1 holds NaN"):
        check(place, ACT, spoiled, method="splitfed-v2")
    masked = activation()
    masked["fc1"][0, 0] = float("-inf")
    check(place, ACT, masked, method="splitfed-v2")


@pytest.mark.parametrize(
    "target",
    [
        torch.arange(3),
        (torch.arange(3),),
        (torch.arange(3), torch.ones(3, 2)),
        {"": torch.arange(3)},
        {"0": torch.arange(3), "1": torch.ones(3)},
        {"boxes": torch.ones(3, 4), "#0": torch.arange(3)},
    ],
    ids=["tensor", "one of a tuple", "tuple", "no name", "digits as names", "marks as names"],
)
def test_labels_come_back_as_they_were(target):
    tensors, back = split_target(join_target({"act": torch.zeros(3)}, target))
    assert set(tensors) == {"act"}
    assert type(back) is type(target)
    if isinstance(target, dict):
        assert set(back) == set(target)
    torch.testing.assert_close(back, target)


def test_a_list_of_labels_comes_back_as_a_tuple():
    assert len(split_target(join_target({}, [torch.zeros(1), torch.ones(1)]))[1]) == 2


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (3, "labels of type int"),
        ((torch.zeros(2), 5), "part #1 is int, expected a tensor"),
        ({"a": [torch.zeros(2)]}, r"part \.a is list"),
        ({1: torch.zeros(2)}, "labels of type dict"),
        ((), "an empty tuple"),
        ({}, "an empty dict"),
    ],
)
def test_other_labels_are_refused(target, message):
    with pytest.raises(splitfl.SplitflError, match=message):
        join_target({}, target)


@pytest.mark.parametrize("names", [["target:", "target:#0"], ["target:#1"], ["target:#0", "target:.a"], ["target:x"]])
def test_names_that_nobody_gives_are_refused(names):
    with pytest.raises(splitfl.SplitflError, match="labels named"):
        split_target({name: torch.zeros(1) for name in names})
