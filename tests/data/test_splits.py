"""Every split deals every sample once, the same way each time, and says what is wrong when it cannot."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset

from splitfl.data import DataError, by_user, dirichlet, iid, load, shards
from splitfl.data.labels import class_labels


def dataset_of(labels):
    target = torch.as_tensor(labels)
    return TensorDataset(torch.arange(len(target), dtype=torch.float32).unsqueeze(1), target)


def dealt(parts):
    return sorted(index for part in parts for index in part.indices)


LABELS = st.lists(st.integers(0, 4), min_size=12, max_size=80)


@given(labels=LABELS, clients=st.integers(1, 12), seed=st.integers(0, 99))
def test_iid_deals_every_sample_once_and_evenly(labels, clients, seed):
    parts = iid(dataset_of(labels), clients, seed=seed)
    assert dealt(parts) == list(range(len(labels)))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@given(
    labels=LABELS,
    clients=st.integers(1, 12),
    alpha=st.floats(0.01, 1000),
    seed=st.integers(0, 99),
)
def test_dirichlet_deals_every_sample_once_and_leaves_nobody_empty(labels, clients, alpha, seed):
    parts = dirichlet(dataset_of(labels), clients, alpha=alpha, seed=seed)
    assert dealt(parts) == list(range(len(labels)))
    assert min(len(part) for part in parts) >= 1


@given(labels=LABELS, clients=st.integers(1, 4), each=st.integers(1, 3), seed=st.integers(0, 99))
def test_shards_deal_every_sample_once(labels, clients, each, seed):
    parts = shards(dataset_of(labels), clients, shards_per_client=each, seed=seed)
    assert dealt(parts) == list(range(len(labels)))


@given(users=st.lists(st.sampled_from(["ann", "bob", "cid"]), min_size=1, max_size=30))
def test_by_user_gives_each_user_exactly_their_samples(users):
    parts = by_user(dataset_of([0] * len(users)), users)
    assert dealt(parts) == list(range(len(users)))
    owners = [{users[index] for index in part.indices} for part in parts]
    assert [len(owner) for owner in owners] == [1] * len(parts)
    assert [owner.pop() for owner in owners] == list(dict.fromkeys(users))


def test_by_user_takes_a_tensor_of_users(tabular):
    parts = by_user(tabular([0, 1, 0, 1]), torch.tensor([7, 7, 3, 7]))
    assert [list(part.indices) for part in parts] == [[0, 1, 3], [2]]


@pytest.mark.parametrize(
    "split",
    [
        lambda data, seed: iid(data, 5, seed=seed),
        lambda data, seed: dirichlet(data, 5, alpha=0.5, seed=seed),
        lambda data, seed: shards(data, 5, shards_per_client=2, seed=seed),
    ],
)
def test_the_seed_decides_the_split(split, tabular):
    data = tabular([index % 10 for index in range(200)])
    state = np.random.get_state()[1].copy()
    first, again, other = ([list(part.indices) for part in split(data, seed)] for seed in (3, 3, 4))
    assert first == again != other
    assert (np.random.get_state()[1] == state).all(), "the global generator was used"


def test_small_alpha_skews_and_large_alpha_does_not():
    digits = load("digits").train
    labels = class_labels(digits)

    def largest_class_share(alpha):
        parts = dirichlet(digits, 8, alpha=alpha, seed=0, min_samples=10)
        counts = [np.bincount(labels[list(part.indices)], minlength=10) for part in parts]
        return np.mean([count.max() / count.sum() for count in counts])

    assert largest_class_share(0.05) > 0.5
    assert largest_class_share(1000) < 0.2


def test_shards_give_each_client_few_classes():
    digits = load("digits").train
    labels = class_labels(digits)
    for part in shards(digits, 10, shards_per_client=2, seed=1):
        assert len(np.unique(labels[list(part.indices)])) <= 4


def test_min_samples_is_met_by_taking_from_the_largest(tabular):
    parts = dirichlet(tabular([0] * 40), 4, alpha=0.01, seed=0, min_samples=10)
    assert [len(part) for part in parts] == [10, 10, 10, 10]


def test_labels_are_found_wherever_a_data_set_keeps_them(pairs, tabular):
    expected = [2, 0, 1]
    with_targets, with_labels = pairs([9, 9, 9]), pairs([9, 9, 9])
    with_targets.targets, with_labels.labels = expected, torch.tensor(expected)
    for data in (with_targets, with_labels, pairs(expected), tabular(expected), tabular([[2], [0], [1]])):
        assert class_labels(data).tolist() == expected
    assert class_labels(tabular([2.0, 0.0, 1.0])).tolist() == expected
    nested = Subset(Subset(tabular([5, 6, 7, 8]), [3, 2, 1]), [0, 2])
    assert class_labels(nested).tolist() == [8, 6]
    assert class_labels(ConcatDataset([tabular([1, 2]), pairs([3])])).tolist() == [1, 2, 3]


def test_labels_in_tensors_are_not_found_by_loading_samples(pairs):
    class Costly(pairs):
        targets = (0, 1, 0, 1)

        def __getitem__(self, index):
            raise AssertionError("loaded a sample to see its label")

    assert len(dirichlet(Costly([0] * 4), 2, alpha=1.0)) == 2


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (lambda data: iid(data, 0), "clients = 0: expected 1 or more"),
        (lambda data: iid(data, 7), "7 clients with one sample each need 7 samples, the data set has 6"),
        (lambda data: dirichlet(data, 2, alpha=0.0), "alpha = 0.0: expected a number above 0"),
        (lambda data: dirichlet(data, 2, alpha=float("inf")), "alpha = inf: expected a number above 0"),
        (lambda data: dirichlet(data, 2, alpha=-1), "alpha = -1: expected a number above 0"),
        (lambda data: dirichlet(data, 2, alpha=1.0, min_samples=4), "2 clients with 4 samples each need 8 samples"),
        (lambda data: shards(data, 2, shards_per_client=0), "shards_per_client = 0: expected 1 or more"),
        (lambda data: shards(data, 2, shards_per_client=4), "2 clients with 4 samples each need 8 samples"),
        (lambda data: by_user(data, ["ann"]), "users has 1 entries for 6 samples: expected one per sample"),
        (lambda _: iid(Stream(), 2), "Stream has no length: expected a map-style data set"),
    ],
)
def test_what_cannot_be_split_is_refused(split, message, tabular):
    with pytest.raises(DataError) as raised:
        split(tabular([0, 1, 2, 0, 1, 2]))
    assert message in str(raised.value)


def test_labels_that_are_no_classes_are_refused(tabular, pairs):
    with pytest.raises(DataError, match="expected whole numbers"):
        dirichlet(tabular([0.5, 1.5]), 1, alpha=1.0)
    with pytest.raises(DataError, match="expected one class per sample"):
        dirichlet(tabular([[0, 1], [1, 0]]), 1, alpha=1.0)
    with pytest.raises(DataError, match="expected a pair"):
        class_labels(Subset(["not a pair"], [0]))
