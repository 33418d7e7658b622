"""Codecs: how much they lose, what they refuse, and which tensors they leave alone."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitfl.codecs import CODECS, CodecError, Codecs, codec, frame
from splitfl.codecs.quantize import SMALLEST_GROUP, channel_groups

FLOATS = st.floats(-(2.0**100), 2.0**100, width=32)


def through(tensor, name):
    return frame.decode(b"".join(frame.encode({"x": tensor}, CODECS[name])))["x"]


def relative_error(tensor, name):
    return float((through(tensor, name).double() - tensor.double()).norm() / tensor.double().norm())


@pytest.mark.parametrize(
    ("name", "bound"),
    [("raw", 0.0), ("fp32", 0.0), ("fp16", 4e-4), ("bf16", 3e-3), ("int8", 8e-3), ("fp8", 4e-2), ("int4", 0.12)],
)
def test_error_on_activations(name, bound):
    torch.manual_seed(0)
    assert relative_error(torch.relu(torch.randn(8, 16, 12, 12)), name) <= bound


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e30])
def test_scaled_half_does_not_vanish_or_overflow(scale):
    torch.manual_seed(0)
    gradient = torch.randn(1000) * scale
    assert relative_error(gradient, "fp16") < 4e-4


def test_scaled_half_is_exact_for_halves():
    halves = torch.randn(100).to(torch.float16).float() * 2.0**-60
    assert torch.equal(through(halves, "fp16"), halves)


@given(st.lists(FLOATS, min_size=1, max_size=50))
def test_int8_is_within_half_a_level(values):
    tensor = torch.tensor(values)
    level = (tensor.max().double() - tensor.min().double()) / 255
    error = (through(tensor, "int8").double() - tensor.double()).abs().max()
    assert error <= level * 0.5 + tensor.abs().max().double() * 2**-21


def test_int8_keeps_the_zeros_of_a_relu():
    torch.manual_seed(0)
    activation = torch.relu(torch.randn(4, 8, 10, 10))
    assert not through(activation, "int8")[activation == 0].any()


def test_int8_has_a_scale_per_channel():
    torch.manual_seed(0)
    activation = torch.randn(4, 3, 8, 8) * torch.tensor([1e-4, 1.0, 1e4]).reshape(1, 3, 1, 1)
    for channel in range(3):
        part = activation[:, channel]
        error = (through(activation, "int8")[:, channel] - part).norm() / part.norm()
        assert error < 1e-2


@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ((8, 16, 4, 4), (1, 16)),
        ((8, 128, 64), (1, 128)),
        ((8, 512), (0, 8)),
        ((1, 4), (0, 1)),
        ((64, SMALLEST_GROUP), (0, 64)),
        ((64, SMALLEST_GROUP - 1), (0, 1)),
        ((100,), (0, 1)),
        ((), (0, 1)),
        ((0, 3, 4), (0, 1)),
    ],
)
def test_groups_follow_the_shape(shape, groups):
    assert tuple(channel_groups(shape)) == groups


@pytest.mark.parametrize("name", [name for name in CODECS if name != "raw"])
@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(3, 4),
        torch.full((2, 3, 64), -7.25),
        torch.tensor(2.5),
        torch.empty(0, 3),
        torch.zeros(2, 64, dtype=torch.float64),
        torch.tensor([1e-45, 0.0]),
    ],
    ids=["zeros", "constant", "0-d", "empty", "float64", "subnormal"],
)
def test_constant_and_empty_tensors_are_exact(name, tensor):
    decoded = through(tensor, name)
    assert decoded.dtype == tensor.dtype
    assert decoded.shape == tensor.shape
    assert torch.allclose(decoded, tensor, rtol=2**-4 if name == "fp8" else 0, atol=1e-44)


@pytest.mark.parametrize("name", ["int8", "fp16"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused_by_name(name, value):
    with pytest.raises(CodecError, match=rf"'x': codec {name} cannot carry infinite or NaN.*float32\[2\]"):
        through(torch.tensor([1.0, value]), name)


def test_a_range_beyond_float32_is_refused():
    with pytest.raises(CodecError, match="range"):
        through(torch.tensor([3e38, -3e38]), "int8")
    with pytest.raises(CodecError, match="float64"):
        through(torch.tensor([1e300, 0.0], dtype=torch.float64), "int8")


def test_bf16_carries_what_is_not_finite():
    decoded = through(torch.tensor([math.inf, -math.inf, math.nan]), "bf16")
    assert torch.equal(decoded.isnan(), torch.tensor([False, False, True]))
    assert torch.equal(decoded[:2], torch.tensor([math.inf, -math.inf]))


@pytest.mark.parametrize("name", list(CODECS))
def test_integers_labels_and_small_floats_travel_raw(name):
    bundle = {
        "counter": torch.tensor(2**60 + 1),
        "mask": torch.tensor([True, False]),
        "target:": torch.tensor([0.1, 1 / 3], dtype=torch.float64),
        "eight": torch.tensor([1.0, -2.0]).to(torch.float8_e4m3fn),
        "complex": torch.tensor([0.1 + 0.2j], dtype=torch.complex64),
    }
    decoded = frame.decode(b"".join(frame.encode(bundle, CODECS[name])))
    assert all(
        torch.equal(decoded[key].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))
        for key, tensor in bundle.items()
    )


def test_the_same_tensor_gives_the_same_bytes():
    torch.manual_seed(0)
    tensor = torch.randn(4, 8, 8, 8)
    for each in CODECS.values():
        first = b"".join(frame.encode({"x": tensor}, each))
        assert first == b"".join(frame.encode({"x": tensor.clone()}, each))


def test_encoding_leaves_the_tensor_as_it_was():
    tensor = torch.randn(4, 8, 8, 8, requires_grad=True)
    before = tensor.detach().clone()
    for each in CODECS.values():
        frame.encode({"x": tensor}, each)
    assert torch.equal(tensor, before)


def test_codecs_by_role():
    chosen = codec(activation="int8", gradient="bf16")
    assert chosen == Codecs(activation=CODECS["int8"], gradient=CODECS["bf16"], update=None)
    assert chosen.for_kind("act") == CODECS["int8"]
    assert chosen.for_kind("grad") == CODECS["bf16"]
    assert chosen.for_kind("params") is None
    assert codec(update="fp16").for_kind("avg") == CODECS["fp16"]
    assert codec(activation="raw", gradient=None) == Codecs()


def test_unknown_codecs_and_kinds_are_refused_with_what_exists():
    with pytest.raises(
        CodecError, match=r"gradient = 'int7': part 'int7', expected raw, or topk:SHARE .* one of fp32, bf16"
    ):
        codec(gradient="int7")
    with pytest.raises(CodecError, match="'stash' does not travel, expected one of act, grad, params, avg"):
        Codecs().for_kind("stash")
