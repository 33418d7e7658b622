"""No sample is lost, doubled or moved, whatever the numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitfl.errors import SplitflError
from splitfl.model import effective, sizes, split, weight


@given(st.integers(1, 500), st.data())
def test_sizes(samples, drawn):
    count = drawn.draw(st.integers(1, samples))
    parts = sizes(samples, count)
    assert len(parts) == count
    assert sum(parts) == samples
    assert max(parts) - min(parts) <= 1
    assert list(parts) == sorted(parts, reverse=True)


def test_the_examples_that_others_got_wrong():
    assert sizes(5, 4) == (2, 1, 1, 1)
    assert sizes(100, 3) == (34, 33, 33)
    with pytest.raises(SplitflError, match="micro_batches = 4 for a batch of 3: expected 1 to 3"):
        sizes(3, 4)
    with pytest.raises(SplitflError, match="micro_batches = 0"):
        sizes(3, 0)


@given(st.integers(1, 50), st.integers(1, 20), st.integers(1, 3))
def test_effective_count_respects_the_minimum_wherever_that_can_be(samples, wanted, minimum):
    count = effective(samples, wanted, minimum=minimum)
    assert 1 <= count <= max(1, wanted)
    assert min(sizes(samples, count)) >= min(minimum, samples)
    larger = count + 1
    assert larger > wanted or larger > samples or min(sizes(samples, larger)) < minimum


def test_split_slices_every_tensor_of_a_batch():
    x = torch.arange(5)
    first, second = split({"x": x, "rest": (x * 2, [x * 3])}, (3, 2))
    assert torch.equal(torch.cat([first["x"], second["x"]]), x)
    assert torch.equal(second["rest"][0], torch.tensor([6, 8]))
    assert torch.equal(second["rest"][1][0], torch.tensor([9, 12]))
    with pytest.raises(SplitflError, match=r"shape \(5,\), expected 4 samples"):
        split(x, (2, 2))
    with pytest.raises(SplitflError, match="a part of the batch is a str"):
        split("abc", (2, 1))


@given(st.integers(1, 9), st.data())
def test_weights_add_up_to_one_for_a_mean(samples, drawn):
    parts = sizes(samples, drawn.draw(st.integers(1, samples)))
    assert sum(weight(part, samples, "mean") for part in parts) == pytest.approx(1)
    assert {weight(part, samples, "sum") for part in parts} == {1.0}
