"""Which samples make up which mini-batch."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import Subset, TensorDataset

from splitfl.data import Batches, DataError, order, plan

SAMPLES = st.integers(0, 40)
BATCH = st.integers(1, 12)


@given(samples=SAMPLES, batch_size=BATCH, minimum=st.integers(1, 4), epochs=st.integers(1, 3))
def test_a_plan_uses_every_sample_once_per_pass(samples, batch_size, minimum, epochs):
    if batch_size < minimum:
        return
    sizes = plan(samples, batch_size=batch_size, epochs=epochs, minimum=minimum)
    assert sum(sizes) == (samples * epochs if samples >= minimum else 0)
    assert all(minimum <= size < batch_size + minimum for size in sizes)


@given(samples=SAMPLES, batch_size=BATCH)
def test_drop_last_leaves_full_batches_only(samples, batch_size):
    sizes = plan(samples, batch_size=batch_size, drop_last=True)
    assert sizes == (batch_size,) * (samples // batch_size)


@given(samples=SAMPLES, batch_size=BATCH, steps=st.integers(1, 9))
def test_steps_go_round_the_data_until_they_are_done(samples, batch_size, steps):
    sizes = plan(samples, batch_size=batch_size, steps=steps)
    one_pass = plan(samples, batch_size=batch_size)
    assert sizes == (one_pass * steps)[:steps]
    assert len(sizes) == (steps if samples else 0)


def test_a_client_without_a_batch_takes_no_part():
    assert plan(0, batch_size=4) == ()
    assert plan(3, batch_size=4, drop_last=True) == ()
    assert plan(3, batch_size=4, drop_last=True, steps=5) == ()
    assert plan(1, batch_size=4, minimum=2) == ()


def test_one_left_over_sample_joins_the_batch_before_it():
    sizes = plan(5, batch_size=4, minimum=2)
    assert sizes == (5,)
    data = TensorDataset(torch.randn(5, 3), torch.zeros(5))
    for inputs, _ in Batches(data, sizes=sizes, seed=0, shuffle=True):
        assert nn.BatchNorm1d(3)(inputs).shape == (5, 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size = 0: expected 1 or more"),
        ({"batch_size": 4, "epochs": 0}, "epochs = 0: expected 1 or more"),
        ({"batch_size": 4, "steps": 0}, "steps = 0: expected 1 or more"),
        ({"batch_size": 1, "minimum": 2}, "batch_size = 1: expected 2 or more"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(DataError) as raised:
        plan(10, **settings)
    assert message in str(raised.value)


@given(samples=SAMPLES, seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 5))
def test_an_order_holds_every_index_once(samples, seed, epoch):
    state = torch.get_rng_state()
    drawn = order(samples, seed=seed, shuffle=True, epoch=epoch)
    assert sorted(drawn.tolist()) == list(range(samples))
    assert torch.equal(drawn, order(samples, seed=seed, shuffle=True, epoch=epoch))
    assert torch.equal(torch.get_rng_state(), state)


def test_every_pass_is_shuffled_anew_and_the_seed_decides():
    orders = [order(50, seed=seed, shuffle=True, epoch=epoch).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert all(one != other for index, one in enumerate(orders) for other in orders[:index])
    assert order(5, seed=9, shuffle=False, epoch=3).tolist() == [0, 1, 2, 3, 4]


@given(samples=st.integers(1, 30), batch_size=BATCH, epochs=st.integers(1, 3), drop_last=st.booleans())
def test_no_sample_comes_twice_in_one_pass(samples, batch_size, epochs, drop_last):
    sizes = plan(samples, batch_size=batch_size, epochs=epochs, drop_last=drop_last)
    data = TensorDataset(torch.arange(samples), torch.arange(samples) * 10)
    batches = Batches(data, sizes=sizes, seed=4, shuffle=True)
    assert tuple(len(inputs) for inputs, _ in batches) == sizes
    per_pass = len(sizes) // epochs
    for epoch in range(epochs):
        seen = [i for step in range(per_pass) for i in batches[epoch * per_pass + step][0].tolist()]
        assert len(seen) == len(set(seen)) == (samples // batch_size * batch_size if drop_last else samples)


def test_inputs_and_targets_stay_together_in_every_kind_of_data_set(pairs, tabular):
    labels = list(range(100, 120))
    rows = [17, 3, 3, 9, 12, 0]
    subset = Subset(Subset(tabular(labels), rows), [5, 4, 3, 1])
    for data, count in ((tabular(labels), 20), (pairs(labels), 20), (subset, 4), (Subset(pairs(labels), rows), 6)):
        batches = Batches(data, sizes=plan(count, batch_size=3), seed=1, shuffle=True)
        seen = []
        for inputs, target in batches:
            assert torch.equal(inputs.squeeze(1).long() + 100, target)
            seen += target.tolist()
        assert sorted(seen) == sorted(int(data[index][1]) for index in range(count))


def test_the_fast_path_gives_what_collating_gives(pairs, tabular):
    labels = [3, 1, 4, 1, 5, 9, 2]
    sizes = plan(7, batch_size=3, epochs=2)
    fast = Batches(tabular(labels), sizes=sizes, seed=8, shuffle=True)
    slow = Batches(pairs(labels), sizes=sizes, seed=8, shuffle=True)
    for (inputs, target), (other_inputs, other_target) in zip(fast, slow, strict=True):
        assert torch.equal(inputs, other_inputs)
        assert torch.equal(target, other_target)


def test_batches_are_the_same_whatever_order_they_are_asked_for(tabular):
    def make():
        return Batches(tabular(list(range(9))), sizes=plan(9, batch_size=2, epochs=2), seed=5, shuffle=True)

    forwards = [batch[1] for batch in make()]
    backwards = make()
    for step in reversed(range(len(forwards))):
        assert torch.equal(backwards[step][1], forwards[step])


def test_several_inputs_come_as_a_tuple():
    data = TensorDataset(torch.zeros(4, 2), torch.ones(4, 3), torch.arange(4))
    (first, second), target = Batches(data, sizes=(4,), seed=0, shuffle=False)[0]
    assert first.shape == (4, 2)
    assert second.shape == (4, 3)
    assert target.tolist() == [0, 1, 2, 3]


def test_samples_that_are_no_pairs_are_refused():
    with pytest.raises(DataError, match=r"made of 1 part\(s\): expected a pair"):
        Batches(TensorDataset(torch.zeros(4, 2)), sizes=(4,), seed=0, shuffle=False)[0]
    with pytest.raises(DataError, match="made of Tensor: expected a pair"):
        Batches(Subset(torch.zeros(4, 2), [0, 1]), sizes=(2,), seed=0, shuffle=False)[0]


def test_a_batch_larger_than_the_data_is_refused(tabular):
    with pytest.raises(DataError, match="a mini-batch of 5 samples was planned, the data set has 4"):
        Batches(tabular([0] * 4), sizes=(5,), seed=0, shuffle=False)


def test_steps_shuffle_over_the_whole_data(tabular):
    batches = Batches(tabular(list(range(6))), sizes=plan(6, batch_size=2, steps=9), seed=2, shuffle=True)
    passes = [[int(i) for step in range(at, at + 3) for i in batches[step][1]] for at in (0, 3, 6)]
    assert all(sorted(each) == list(range(6)) for each in passes)
    assert all(one != other for one, other in pairwise(passes))
