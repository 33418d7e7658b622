"""Records of one sample at several holders."""

from __future__ import annotations

import hashlib
import hmac

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Subset, TensorDataset

import splitfl
from splitfl.data import DataError, Holding, by_columns, columns, vertical
from splitfl.data.linkage import common
from splitfl.errors import SplitflError
from splitfl.run.linkage import link, pack, unpack

KEY = b"a secret of holders"


def holding(ids, **options):
    return Holding(torch.arange(len(ids), dtype=torch.float32).reshape(-1, 1), ids, **options)


@given(held=st.lists(st.sets(st.integers(0, 30), max_size=20), min_size=1, max_size=4))
def test_what_all_have_is_linked_and_nothing_else(held):
    holdings = [holding(sorted(ids, reverse=number % 2)) for number, ids in enumerate(held)]
    expected = set.intersection(*held)
    shared = common([each.digests(KEY) for each in holdings])
    assert len(shared) == len(expected)
    assert shared == sorted(shared)
    rows = [each.aligned(shared, KEY).tensors[0].flatten().long().tolist() for each in holdings]
    linked = [[each.ids[row] for row in chosen] for each, chosen in zip(holdings, rows, strict=True)]
    assert all(ids == linked[0] for ids in linked)
    assert {int(each) for each in linked[0]} == expected


def test_a_digest_is_a_keyed_hash_of_the_id_as_text():
    (digest,) = holding(["anna"]).digests(KEY)
    assert digest == hmac.new(KEY, b"anna", hashlib.sha256).digest()[:16]
    assert holding(["anna"]).digests(KEY + b"!") != [digest]
    assert holding([7]).digests(KEY) == holding(["7"]).digests(KEY) == holding(torch.tensor([7])).digests(KEY)


def test_labels_stay_with_their_samples():
    ids = ["c", "a", "b"]
    own = holding(ids, labels=torch.tensor([2, 0, 1]))
    _, labels = own.aligned([digest for digest in own.digests(KEY) if digest != own.digests(KEY)[1]], KEY).tensors
    assert labels.tolist() == [2, 1]
    assert holding(ids).aligned(own.digests(KEY), KEY).tensors[1].tolist() == [0, 0, 0]
    assert own[0][1] == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: holding(["a", "b", "a"]), "id 'a' comes twice"),
        (lambda: Holding(torch.zeros(2, 1), ["a"]), "a holding of 2 samples has 1 ids"),
        (lambda: holding(["a"], labels=torch.zeros(3)), "a holding of 1 samples has 3 labels"),
        (lambda: holding(["a"]).digests(b"short"), "a linkage key of 5 bytes, expected 16 or more"),
        (lambda: holding(["a"]).aligned([b"x" * 16], KEY), "a record 7878.* that this holder does not have"),
    ],
)
def test_holdings_that_cannot_be_linked(make, message):
    with pytest.raises(DataError, match=message):
        make()


@given(st.lists(st.binary(min_size=16, max_size=16), unique=True))
def test_digests_travel_as_text(digests):
    assert unpack(pack(digests)) == digests


@pytest.mark.parametrize("text", ["?", "AAAA", "A" * 22 + "==" + "A" * 22 + "==", "\u00e9", pack([b"x" * 16] * 2)])
def test_other_text_is_refused(text):
    with pytest.raises(SplitflError, match="the digests of the records are not"):
        unpack(text)


def test_nothing_in_common_says_what_to_look_at():
    one, other = (pack(holding(ids).digests(KEY)) for ids in (["a"], ["b", "c"]))
    with pytest.raises(
        SplitflError,
        match=r"at all 2 holders \(bank: 1, shop: 2; bank and shop share 0\): .* linkage key",
    ):
        link([("bank", one), ("shop", other)])
    with pytest.raises(SplitflError, match="a holding of 390001 samples, expected at most 390000"):
        pack([b""] * 390_001)


def test_a_data_set_is_divided_by_columns():
    features, labels = torch.arange(40.0).reshape(4, 10), torch.tensor([0, 1, 1, 0])
    held = vertical(TensorDataset(features, labels), 3, labels_at=1)
    assert [each.features.shape[1] for each in held] == [4, 3, 3]
    assert [each.labels is None for each in held] == [True, False, True]
    linked = [each.aligned(common([h.digests(KEY) for h in held]), KEY) for each in held]
    whole = torch.cat([each.tensors[0] for each in linked], dim=1)
    assert sorted(whole[:, 0].tolist()) == [0.0, 10.0, 20.0, 30.0]
    assert linked[1].tensors[1].tolist() == [int(labels[int(row // 10)]) for row in whole[:, 0]]
    assert torch.equal(
        torch.cat(by_columns(Subset(TensorDataset(features, labels), [2, 0]), 3).tensors[:3], 1), features[[2, 0]]
    )
    assert [part.shape for part in columns(torch.zeros(2, 1, 8, 8), 2)] == [(2, 1, 8, 4)] * 2


def test_some_holders_lack_some_samples():
    held = splitfl.vertical(TensorDataset(torch.zeros(100, 4), torch.zeros(100)), 2, shared=0.8, seed=3)
    assert [len(each) for each in held] == [80, 80]
    assert 60 <= len(common([each.digests(KEY) for each in held])) < 80


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"holders": 5}, "holders = 5: expected 1 to 4"),
        ({"holders": 2, "shared": 0.0}, "shared = 0.0: expected a share above 0"),
        ({"holders": 2, "labels_at": 2}, "labels_at = 2: expected 0 to 1"),
    ],
)
def test_divisions_that_cannot_be(options, message):
    with pytest.raises(DataError, match=message):
        vertical(TensorDataset(torch.zeros(6, 4), torch.zeros(6)), **options)
