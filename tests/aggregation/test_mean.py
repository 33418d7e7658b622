"""The mean over holders: its value, its bits, its dtypes."""

from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitfl.aggregation import AggregationError, Update, mean

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64]


def update(client, samples, **state):
    return Update(client, f"c{client}", samples, state)


@given(
    samples=st.lists(st.integers(1, 1000), min_size=1, max_size=6),
    seed=st.integers(0, 999),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_it_is_the_weighted_mean(samples, seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(3, 2, generator=generator, dtype=dtype) for _ in samples]
    updates = [update(client, n, w=value) for client, (n, value) in enumerate(zip(samples, values, strict=True))]
    expected = sum(n * value.double() for n, value in zip(samples, values, strict=True)) / sum(samples)
    result = mean(updates, {"w": values[0]})["w"]
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), expected, rtol=1e-12 if dtype == torch.float64 else 1e-6, atol=1e-9)


def test_the_order_of_arrival_does_not_change_a_bit():
    generator = torch.Generator().manual_seed(3)
    updates = [update(c, 7 * c + 1, w=torch.randn(50, generator=generator)) for c in range(4)]
    template = {"w": torch.zeros(50)}
    results = [mean(each, template)["w"] for each in permutations(updates)]
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("dtype", FLOATS)
@given(samples=st.lists(st.integers(1, 10**6), min_size=1, max_size=9))
def test_what_no_client_changed_comes_back_bit_for_bit(dtype, samples):
    if dtype is torch.float64:
        return  # nothing is wider: the rounding of the weights themselves remains
    value = torch.tensor([0.1, -3.3, 1e-5, 77.7]).to(dtype)
    result = mean([update(c, n, w=value.clone()) for c, n in enumerate(samples)], {"w": value})["w"]
    assert result.dtype == dtype
    assert torch.equal(result.float(), value.float())


@pytest.mark.parametrize("dtype", INTEGERS)
def test_counters_take_the_largest_and_keep_their_dtype(dtype):
    updates = [update(c, 1, n=torch.tensor(value, dtype=dtype)) for c, value in enumerate((3, 100, 7))]
    result = mean(updates, {"n": torch.tensor(0, dtype=dtype)})["n"]
    assert (result.item(), result.dtype, result.shape) == (100, dtype, torch.Size([]))


def test_large_counters_are_exact():
    updates = [update(c, 1, n=torch.tensor([2**60 + c, c])) for c in range(2)]
    assert mean(updates, {"n": torch.zeros(2, dtype=torch.int64)})["n"].tolist() == [2**60 + 1, 1]


def test_masks_are_true_where_any_holder_says_so():
    updates = [
        update(c, 1, m=torch.tensor(mask)) for c, mask in enumerate(([True, False, False], [False, True, False]))
    ]
    assert mean(updates, {"m": torch.zeros(3, dtype=torch.bool)})["m"].tolist() == [True, True, False]


def test_complex_numbers_are_averaged_as_such():
    updates = [update(c, 1, w=torch.tensor([1 + 2j * c], dtype=torch.complex64)) for c in range(2)]
    result = mean(updates, {"w": torch.zeros(1, dtype=torch.complex64)})["w"]
    assert result.tolist() == [1 + 1j]
    assert result.dtype == torch.complex64


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_one_update_comes_through_bit_for_bit(dtype, shape):
    value = (torch.arange(6).reshape(2, 3) % 5 if shape == (2, 3) else torch.ones(shape)).to(dtype)
    result = mean([update(0, 3, w=value)], {"w": value})["w"]
    assert (result.dtype, result.shape) == (dtype, torch.Size(shape))
    assert torch.equal(result.to(torch.float64), value.to(torch.float64))


def test_a_transposed_view_is_read_as_it_looks():
    value = torch.arange(6.0).reshape(2, 3).T
    assert torch.equal(mean([update(0, 1, w=value)], {"w": torch.zeros(3, 2)})["w"], value)


def test_each_layer_is_averaged_over_its_holders():
    template = {"front": torch.zeros(1), "middle": torch.zeros(1), "tail": torch.full((1,), 9.0)}
    updates = [
        update(0, 1, front=torch.tensor([1.0])),
        update(1, 3, front=torch.tensor([5.0]), middle=torch.tensor([5.0])),
    ]
    result = mean(updates, template)
    assert {name: value.item() for name, value in result.items()} == {"front": 4.0, "middle": 5.0, "tail": 9.0}
    result["tail"] += 1
    assert template["tail"].item() == 9.0, "the result shares memory with the template"


def test_a_client_without_samples_cannot_poison_the_mean():
    updates = [update(0, 0, w=torch.tensor([float("nan")])), update(1, 5, w=torch.tensor([2.0]))]
    assert mean(updates, {"w": torch.zeros(1)})["w"].tolist() == [2.0]


def test_no_samples_at_all_is_an_error_not_a_nan():
    with pytest.raises(AggregationError, match=r"w: its holders \(c0, c1\) trained on 0 samples"):
        mean([update(0, 0, w=torch.ones(1)), update(1, 0, w=torch.ones(1))], {"w": torch.zeros(1)})
