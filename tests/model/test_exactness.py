"""Split training is the unsplit training: any model, cuts, batch and number of micro-batches."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

NAMES = ["mlp", "cnn", "residual", "attention", "two-inputs", "keyword-inputs", "containers", "tokens", "branching"]


@st.composite
def situations(draw, bench):
    name = draw(st.sampled_from(NAMES))
    places = bench.places_of(name)
    chosen = draw(st.sets(st.integers(0, len(places) - 1), min_size=1, max_size=3))
    cuts = tuple(places[index] for index in sorted(chosen))
    return name, cuts, draw(st.integers(1, 9)), draw(st.integers(1, 8)), draw(st.booleans()), draw(st.integers(0, 99))


def compare(bench, situation, dtype):
    name, cuts, samples, micro_batches, halves, seed = situation
    case = bench.zoo[name]
    batches = [case.batch(samples, dtype=dtype, seed=seed + step) for step in range(3)]
    whole = bench.train_whole(case.model(dtype), batches)
    parts = bench.partition_of(name, cuts, dtype)
    divided = bench.train_split(parts, batches, micro_batches=micro_batches, halves=halves)
    return whole, divided


@settings(max_examples=120, deadline=None, derandomize=True)
@given(drawn=st.data())
def test_double_precision_equals_unsplit_training(bench, drawn):
    whole, divided = compare(bench, drawn.draw(situations(bench)), torch.float64)
    assert bench.distance(divided.gradients, whole.gradients) <= 1e-12
    assert bench.distance(divided.state, whole.state) <= 1e-12
    assert divided.losses == pytest.approx(whole.losses, rel=1e-12)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(drawn=st.data())
def test_single_precision_equals_unsplit_training(bench, drawn):
    whole, divided = compare(bench, drawn.draw(situations(bench)), torch.float32)
    assert bench.distance(divided.gradients, whole.gradients) <= 1e-6
    assert bench.distance(divided.state, whole.state) <= 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_every_single_cut_is_exact(bench, name):
    case = bench.zoo[name]
    batches = [case.batch(5, seed=7)]
    whole = bench.train_whole(case.model(), batches)
    places = bench.places_of(name)
    assert len(places) >= 3
    for place in places:
        divided = bench.train_split(bench.partition_of(name, (place,)), batches, micro_batches=4)
        assert bench.distance(divided.gradients, whole.gradients) <= 1e-12, place


@pytest.mark.parametrize("samples", range(1, 10))
def test_every_batch_size_and_number_of_micro_batches(bench, samples):
    batches = [bench.zoo["mlp"].batch(samples)]
    whole = bench.train_whole(bench.zoo["mlp"].model(), batches)
    for micro_batches in range(1, 9):
        parts = bench.partition_of("mlp", ("fc1",))
        divided = bench.train_split(parts, batches, micro_batches=micro_batches)
        assert bench.distance(divided.gradients, whole.gradients) <= 1e-12


def test_without_cuts_one_micro_batch_gives_the_same_bits(bench):
    case = bench.zoo["cnn"]
    batches = [case.batch(4, dtype=torch.float32, seed=step) for step in range(3)]
    whole = bench.train_whole(case.model(torch.float32), batches)
    divided = bench.train_split(bench.partition_of("cnn", (), torch.float32), batches, micro_batches=1)
    assert all(torch.equal(divided.state[name], value) for name, value in whole.state.items())
