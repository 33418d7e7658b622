"""How many samples of each client are in a mini-batch that is drawn from the data of all."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitfl.data import DataError, global_plan


@given(
    st.dictionaries(st.integers(0, 9), st.integers(0, 40), min_size=1).filter(lambda samples: sum(samples.values())),
    st.integers(1, 50),
    st.integers(1, 3),
    st.integers(0, 2**63 - 1),
)
def test_a_pass_takes_every_sample_once_in_full_mini_batches(samples, batch, epochs, seed):
    drawn = global_plan(samples, batch=batch, epochs=epochs, seed=seed)
    assert drawn == global_plan(samples, batch=batch, epochs=epochs, seed=seed)
    per_pass = len(drawn) // epochs
    for epoch in range(epochs):
        part = drawn[epoch * per_pass : (epoch + 1) * per_pass]
        taken = sum((Counter(step) for step in part), Counter())
        assert taken == Counter({client: count for client, count in samples.items() if count})
        assert [sum(step.values()) for step in part[:-1]] == [batch] * (per_pass - 1)
        assert 0 < sum(part[-1].values()) <= batch
        assert all(count > 0 for step in part for count in step.values())


def test_a_mini_batch_is_a_uniform_draw_of_the_pool():
    """A client's share in the first mini-batch is its share of the data, and varies as such draws do."""
    samples, batch, draws = {0: 30, 1: 10}, 8, 4000
    counts = [global_plan(samples, batch=batch, seed=seed)[0].get(0, 0) for seed in range(draws)]
    mean = sum(counts) / draws
    variance = sum((count - mean) ** 2 for count in counts) / draws
    share, total = 30 / 40, 40
    assert mean == pytest.approx(batch * share, abs=0.06)
    assert variance == pytest.approx(batch * share * (1 - share) * (total - batch) / (total - 1), rel=0.1)


def test_steps_and_full_mini_batches_only():
    assert len(global_plan({0: 5, 1: 6}, batch=4, steps=7, seed=1)) == 7
    assert [sum(step.values()) for step in global_plan({0: 5, 1: 6}, batch=4, drop_last=True, seed=1)] == [4, 4]
    assert global_plan({0: 3}, batch=4, drop_last=True, seed=1) == ()
    with pytest.raises(DataError, match="global_batch = 0: expected 1 or more"):
        global_plan({0: 3}, batch=0, seed=1)
