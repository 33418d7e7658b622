"""Feature dropout: which features are kept how often, and that nothing changes in expectation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from splitfl.model import TransformError, parse_transform
from splitfl.model.feature_dropout import FLOOR, dropped, feature_dropout, fill, keep_probabilities, masked
from splitfl.model.random_state import seeded

SHAPES = st.sampled_from([(8, 40), (1, 30), (2, 3, 5), (16, 4, 3, 3), (5, 1), (7,), (4, 6, 2, 2, 2)])
SHARES = st.sampled_from([0.01, 0.1, 0.25, 0.5, 0.9, 0.999])
CPU = torch.device("cpu")


def made(shape, seed, zeros=0.0):
    generator = torch.Generator().manual_seed(seed)
    scales = torch.rand(shape[1:], generator=generator) * (torch.rand(shape[1:], generator=generator) >= zeros)
    return torch.randn(shape, generator=generator) * scales


def draw(activation, share, seed):
    with seeded(seed, CPU):
        return dropped(activation, share)


@given(SHAPES, st.integers(0, 1000), SHARES, st.sampled_from([0.0, 0.5, 1.0]))
def test_probabilities_add_up_to_the_share(shape, seed, share, zeros):
    activation = made(shape, seed, zeros)
    columns = activation.reshape(len(activation), -1)
    used = (columns != 0).any(dim=0)
    keep = keep_probabilities(activation, share)
    assert keep.shape == used.shape
    assert ((keep >= 0) & (keep <= 1)).all()
    assert torch.equal(keep > 0, used)  # whatever could be lost can come
    assert float(keep.sum()) == pytest.approx(min(share * len(keep), float(used.sum())), rel=1e-9)


@given(
    st.lists(st.floats(1e-6, 1e6) | st.just(0.0), min_size=1, max_size=40),
    st.floats(0.01, 1.0),
)
def test_what_is_full_leaves_its_surplus_to_the_others(weights, share):
    values, total = torch.tensor(weights, dtype=torch.float64), share * len(weights)
    chances = fill(values, total)
    assert ((chances >= 0) & (chances <= 1)).all()
    assert float(chances.sum()) == pytest.approx(min(total, float((values > 0).sum())), rel=1e-6, abs=1e-12)
    partial = (chances > 0) & (chances < 1)
    if partial.any():  # these are in proportion, and nothing that is full has less weight
        level = chances[partial] / values[partial]
        assert torch.allclose(level, level[:1].expand_as(level), rtol=1e-6)
        assert values[chances == 1].numel() == 0 or values[chances == 1].min() >= values[partial].max()


def test_a_hand_made_example_of_probabilities():
    assert fill(torch.tensor([6.0, 2.0, 1.0, 0.0]), 1.5).tolist() == pytest.approx([1.0, 1 / 3, 1 / 6, 0.0])
    assert fill(torch.tensor([3.0, 1.0]), 1.0).tolist() == [0.75, 0.25]
    assert fill(torch.zeros(3), 1.0).tolist() == [0.0, 0.0, 0.0]


def test_spread_decides_within_a_channel_and_not_the_units_of_channels():
    activation = torch.randn(64, 2, 10, generator=torch.Generator().manual_seed(0))
    activation[:, :, 5:] *= 0.2
    keep = keep_probabilities(activation, 0.3).reshape(2, 10)
    assert keep[:, :5].min() > 3 * keep[:, 5:].max()
    scaled = activation * torch.tensor([1.0, 1e4]).reshape(1, 2, 1)
    assert torch.allclose(keep_probabilities(scaled, 0.3).reshape(2, 10), keep, rtol=1e-4)


def test_a_feature_that_does_not_vary_is_seldom_kept_and_one_of_zeros_never():
    activation = torch.randn(32, 10, generator=torch.Generator().manual_seed(0))
    activation[:, 0], activation[:, 1] = 5.0, 0.0
    keep = keep_probabilities(activation, 0.4)
    spreads = activation.double().std(dim=0, correction=0)
    mean = spreads[[0, *range(2, 10)]].mean()
    assert float(keep[0] / keep[5]) == pytest.approx(float(FLOOR * mean / spreads[5]), rel=1e-5)
    assert keep[1] == 0


@pytest.mark.parametrize("activation", [torch.tensor([[1.0, -3.0, 0.0, 4.0]]), torch.tensor([[1.0, -3, 0, 4]] * 5)])
def test_where_nothing_varies_the_magnitude_decides(activation):
    assert torch.allclose(keep_probabilities(activation, 0.25), torch.tensor([1.0, 3, 0, 4], dtype=torch.float64) / 8)


@pytest.mark.parametrize(
    "activation",
    [made((6, 12), 1), made((4, 3, 2, 2), 2), made((1, 10), 3), torch.full((3, 5), 2.5)],
    ids=["matrix", "image", "one sample", "constant"],
)
def test_in_expectation_it_is_the_activation(activation):
    draws = 6000
    keep = keep_probabilities(activation, 0.4).reshape(activation.shape[1:])
    mean = sum(draw(activation, 0.4, seed).double() for seed in range(draws)) / draws
    deviation = activation.abs() * ((1 - keep) / keep.clamp(min=1e-12)).sqrt() / draws**0.5
    assert ((mean - activation).abs() <= 5 * deviation + 1e-5).all()


def test_as_many_features_as_asked_for():
    activation = made((16, 8, 8, 8), 0)
    kept = [int((draw(activation, 0.25, seed).reshape(16, -1) != 0).any(dim=0).sum()) for seed in range(200)]
    assert sum(kept) / 200 == pytest.approx(128, rel=0.02)
    assert min(kept) > 128 - 6 * 128**0.5
    assert max(kept) < 128 + 6 * 128**0.5


@settings(max_examples=40)
@given(SHAPES, st.integers(0, 1000), SHARES)
def test_value_and_gradient_are_those_of_the_mask(shape, seed, share):
    activation = made(shape, seed).requires_grad_()
    keep = keep_probabilities(activation.detach(), share)
    with seeded(seed, CPU):
        kept = torch.rand(keep.shape, dtype=torch.float64) < keep
    scale = torch.where(kept, 1 / keep, 0.0).to(torch.float32).reshape(shape[1:])
    sent = draw(activation, share, seed)
    assert torch.equal(sent, activation.detach() * scale)
    upstream = torch.randn(shape, generator=torch.Generator().manual_seed(seed + 1))
    (gradient,) = torch.autograd.grad(sent, activation, upstream)
    assert torch.equal(gradient, upstream * scale)


@given(SHAPES, st.integers(0, 1000))
def test_what_arrives_is_unchanged_and_gives_no_gradient_for_zeros(shape, seed):
    arrived = draw(made(shape, seed), 0.3, seed).requires_grad_()
    seen = masked(arrived)
    assert torch.equal(seen, arrived)
    (gradient,) = torch.autograd.grad(seen, arrived, torch.ones(shape))
    used = (arrived != 0).any(dim=0)
    assert torch.equal(gradient, used.expand(shape).float())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_dtype_stays(dtype):
    sent = draw(made((8, 40), 0).to(dtype), 0.5, 1)
    assert sent.dtype == dtype
    assert (sent == 0).all(dim=0).any()


def test_extremes_are_numbers_and_what_is_none_is_passed_on():
    for scale in (1e-38, 1e-20, 3e38):
        activation = torch.rand(4, 50, generator=torch.Generator().manual_seed(0)) * 2 - 1
        keep = keep_probabilities(activation * scale, 0.2)
        assert float(keep.sum()) == pytest.approx(10)
    broken = torch.tensor([[1.0, float("nan")], [2.0, 3.0]])
    assert draw(broken, 0.5, 0) is broken
    empty = torch.zeros(0, 4)
    assert draw(empty, 0.5, 0) is empty


def test_all_of_it_is_the_identity():
    activation = made((4, 10), 0, zeros=0.5)
    whole = feature_dropout(1.0)
    assert whole.sent(activation) is activation
    assert whole.received(activation) is activation


@pytest.mark.parametrize("share", ["0", "-1", "1.01", "nan", "inf", "", "half", "25%"])
def test_a_share_that_cannot_be_is_refused(share):
    with pytest.raises(TransformError, match=rf"transform = 'feature-dropout:{share}': expected the share .* above 0"):
        parse_transform(f"feature-dropout:{share}")


def test_names():
    assert parse_transform("feature-dropout:0.25").name == "feature-dropout:0.25"
    assert parse_transform("feature-dropout:.250").name == "feature-dropout:0.25"
    assert parse_transform("feature-dropout:1").name == "feature-dropout:1.0"
    assert parse_transform("feature-dropout:0.12345678").name == "feature-dropout:0.12345678"
    for text in ("dropout:0.25", "", "feature-dropout", "feature-dropuot:0.25"):
        with pytest.raises(TransformError, match=rf"transform = '{text}': expected .*feature-dropout:0.25"):
            parse_transform(text)
