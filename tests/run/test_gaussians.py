"""What is known of each label's activations, against numpy on all of them at once, and what is drawn from it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import splitfl
from splitfl.run.gaussians import Gaussians, missing

SHAPE = (3, 2)


def bundles(*, offset=0.0, dtype=torch.float64):
    """Bundles of two ports, with labels and a weight each; label 4 comes in the last only, label 2 in none."""
    generator = torch.Generator().manual_seed(5)
    found = []
    for samples, weight, highest in ((7, 1.0, 2), (12, 2.0, 2), (1, 3.0, 2), (9, 4.0, 5)):
        labels = torch.randint(0, highest, (samples,), generator=generator)
        labels = torch.where(labels == 2, 4, labels)
        a = offset + torch.randn(samples, *SHAPE, generator=generator, dtype=dtype) * (1 + labels)[:, None, None]
        b = torch.randn(samples, 4, generator=generator, dtype=dtype) + weight
        found.append(({"a": a, "b": b}, labels, weight))
    return found


def observed(found):
    gaussians = Gaussians()
    for activations, labels, weight in found:
        gaussians.observe(activations, labels, weight=weight)
    return gaussians


def expected(found, name, label):
    """Weighted mean and variance of all samples of a label, and the sum of their weights."""
    rows = np.concatenate([each[name].double().numpy()[labels.numpy() == label] for each, labels, _ in found])
    weights = np.concatenate([np.full(int((labels == label).sum()), weight) for _, labels, weight in found])
    mean = np.average(rows, axis=0, weights=weights)
    return mean, np.average((rows - mean) ** 2, axis=0, weights=weights), weights.sum()


def test_mean_and_variance_are_those_of_all_that_came_by_its_weight():
    found = bundles()
    gaussians = observed(found)
    assert gaussians.labels == sorted({int(label) for _, labels, _ in found for label in labels})
    assert 2 not in gaussians.labels
    for label in gaussians.labels:
        for name in ("a", "b"):
            mean, variance, weight = expected(found, name, label)
            np.testing.assert_allclose(gaussians[label].mean[name].numpy(), mean, rtol=1e-12)
            np.testing.assert_allclose(gaussians[label].variance[name].numpy(), variance, rtol=1e-11, atol=1e-13)
            assert gaussians[label].weight == pytest.approx(weight)


def test_a_small_spread_far_from_zero_is_not_lost():
    """Sums of squares would leave nothing of it: 1e8 squared has no digit left for a variance of one."""
    found = bundles(offset=1e8)
    for label in observed(found).labels:
        _, variance, _ = expected(found, "a", label)
        np.testing.assert_allclose(observed(found)[label].variance["a"].numpy(), variance, rtol=1e-6, atol=1e-6)


def test_half_precision_is_widened():
    found = bundles(dtype=torch.bfloat16)
    gaussian = observed(found)[1]
    mean, _, _ = expected(found, "b", 1)
    assert gaussian.mean["b"].dtype == torch.float32
    np.testing.assert_allclose(gaussian.mean["b"].numpy(), mean, rtol=1e-5)


def test_what_is_drawn_has_the_mean_and_the_spread_of_its_label():
    gaussians = observed(bundles())
    count = 40_000
    drawn, labels = gaussians.draw({4: count, 0: 3}, seed=1)
    assert labels.tolist() == [0] * 3 + [4] * count
    assert drawn["a"].shape == (count + 3, *SHAPE)
    rows, spread = drawn["a"][3:], gaussians[4].variance["a"].sqrt()
    assert bool(((rows.mean(dim=0) - gaussians[4].mean["a"]).abs() < 5 * spread / count**0.5).all())
    torch.testing.assert_close(rows.std(dim=0), spread, rtol=0.02, atol=0)


def test_the_seed_decides_what_is_drawn_of_a_label_whatever_else_is():
    gaussians = observed(bundles())
    both, labels = gaussians.draw({0: 2, 1: 5}, seed=3)
    one, _ = gaussians.draw({1: 5}, seed=3)
    other, _ = gaussians.draw({1: 5}, seed=4)
    assert all(torch.equal(one[name], both[name][labels == 1]) for name in one)
    assert not torch.equal(one["a"], other["a"])


def test_a_label_that_came_once_is_drawn_as_it_came():
    gaussians = Gaussians()
    gaussians.observe({"a": torch.tensor([[1.5, -2.0]])}, torch.tensor([7]), weight=1.0)
    drawn, labels = gaussians.draw({7: 3}, seed=0)
    assert torch.equal(drawn["a"], torch.tensor([[1.5, -2.0]] * 3))
    assert labels.tolist() == [7, 7, 7]


def test_a_label_that_never_came_cannot_be_drawn():
    with pytest.raises(splitfl.SplitflError, match=r"label 2 never came: expected one of \[0, 1, 3, 4\]"):
        observed(bundles()).draw({0: 1, 2: 1}, seed=0)


def test_what_a_checkpoint_holds_is_all_of_it():
    gaussians, again = observed(bundles()), observed(bundles()[:1])
    again.restore(gaussians.joined())
    assert again.labels == gaussians.labels
    for label in again.labels:
        assert again[label].weight == gaussians[label].weight
        for name in ("a", "b"):
            assert torch.equal(again[label].mean[name], gaussians[label].mean[name])
            assert torch.equal(again[label].variance[name], gaussians[label].variance[name])
    again.restore(Gaussians().joined())
    assert again.labels == []


@pytest.mark.parametrize(
    ("counts", "most", "added"),
    [
        ({0: 5, 1: 5}, 100, {}),
        ({0: 5, 1: 2, 2: 0}, 100, {1: 3, 2: 5}),
        ({0: 5, 1: 2, 2: 0}, 2, {2: 2}),
        ({0: 5, 1: 2, 2: 0}, 5, {1: 2, 2: 3}),
        ({3: 0, 1: 0, 7: 4}, 3, {1: 2, 3: 1}),
        ({0: 1}, 100, {}),
        ({}, 100, {}),
        ({0: 5, 1: 2}, 0, {}),
    ],
)
def test_the_fewest_are_filled_up_first_and_never_above_the_most_frequent(counts, most, added):
    assert missing(counts, most=most) == added


def test_enough_of_them_make_the_labels_even():
    counts = dict(enumerate(torch.randint(0, 60, (20,)).tolist()))
    added = missing(counts, most=10_000)
    assert {count + added.get(label, 0) for label, count in counts.items()} == {max(counts.values())}
    some = missing(counts, most=100)
    assert sum(some.values()) == min(100, sum(added.values()))
    filled = [counts[label] + count for label, count in some.items()]
    assert max(filled) - min(filled) <= 1
