"""Columns of zeros that are left out: nothing else is lost, the bytes are as promised, and hostile ones are refused."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitfl.codecs import CodecError, FrameError, Limits, Spec, codec, frame, parse
from splitfl.codecs.columns import features, used_columns
from splitfl.codecs.proto3 import bytes_field, length_header, uint_field, varint
from splitfl.transport import proto

CHAINS = ["columns", "columns+int8", "columns+int4", "columns+bf16", "columns+fp8", "columns+int4+zstd", "columns+zstd"]
SHAPES = st.sampled_from([(16, 40), (1, 300), (64, 1), (2, 3, 5, 7), (8, 4, 6, 6), (300, 2), (0, 3), (), (90,), (4, 3)])


def joined(tensors, text):
    return b"".join(map(bytes, frame.encode(tensors, parse(text))))


def through(tensor, text):
    return frame.decode(joined({"x": tensor}, text))["x"]


def made(shape, seed, share=0.3):
    """A tensor of which about `share` of the columns are not zero."""
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randn(shape, generator=generator)
    return tensor * (torch.rand(shape[1:], generator=generator) < share)


def columns_of(tensor):
    return tensor.reshape(len(tensor), -1)


@given(SHAPES, st.integers(0, 1000), st.sampled_from([0.0, 0.1, 0.5, 1.0]), st.booleans())
def test_alone_it_loses_nothing(shape, seed, share, double):
    tensor = made(shape, seed, share).to(torch.float64 if double else torch.float32)
    for text in ("columns", "columns+zstd"):
        decoded = through(tensor, text)
        assert decoded.dtype == tensor.dtype
        assert torch.equal(decoded, tensor)


@given(SHAPES, st.integers(0, 1000), st.sampled_from(CHAINS), st.sampled_from([0.0, 0.2, 0.9]))
def test_what_is_left_has_the_error_of_its_format(shape, seed, text, share):
    tensor = made(shape, seed, share)
    decoded = through(tensor, text)
    assert decoded.shape == tensor.shape
    bounds = {"int8": 1 / 255, "int4": 1 / 15, "fp8": 2**-4, "bf16": 2**-8}
    bound = next((value for name, value in bounds.items() if name in text.split("+")), 0.0)
    span = float(tensor.max() - tensor.min()) if tensor.numel() else 0.0
    largest = float(tensor.abs().max()) if tensor.numel() else 0.0
    assert ((decoded - tensor).abs() <= bound * max(span, largest) + 1e-6).all()


@given(SHAPES, st.integers(0, 1000), st.sampled_from(CHAINS), st.sampled_from([0.0, 0.2, 0.9, 1.0]))
def test_no_more_bytes_than_promised(shape, seed, text, share):
    """And that is what the format takes for the whole tensor, so columns are left out only where that helps."""
    tensors = {"x": made(shape, seed, share), "target:": torch.zeros(3), "n": torch.tensor(3)}
    specs = {name: Spec(each.dtype, tuple(each.shape)) for name, each in tensors.items()}
    promised = frame.wire_size(specs, parse(text))
    assert len(joined(tensors, text)) <= promised
    if text != "columns":
        assert promised == frame.wire_size(specs, parse(text.removeprefix("columns+")))
    else:
        assert promised == frame.wire_size(specs)


@pytest.mark.parametrize(("text", "each"), [("columns", 4), ("columns+int8", 1), ("columns+int4", 0.5)])
def test_bytes_follow_the_columns_that_are_left(text, each):
    tensor = torch.zeros(32, 8, 8, 8)
    tensor.view(32, -1)[:, ::4] = torch.randn(32, 128, generator=torch.Generator().manual_seed(0))
    bitmap, groups, header = 64, 8 * 32 if "int" in text else 0, 32
    size = len(joined({"x": tensor}, text))
    assert size - (each * 32 * 128 + bitmap + groups) == pytest.approx(header / 2, abs=header / 2)


def test_a_dropped_column_comes_back_as_zero_where_a_format_alone_would_move_it():
    tensor = made((32, 64), 1)
    dropped = (tensor == 0).all(dim=0)
    assert dropped.any()
    assert not through(tensor, "columns+int8")[:, dropped].any()
    assert through(tensor, "int8")[:, dropped].any()


def test_nothing_at_all_is_one_column_and_nan_is_something():
    assert used_columns(torch.zeros(4, 7)).tolist() == [0]
    matrix = torch.zeros(4, 7)
    matrix[2, 3], matrix[0, 5] = math.nan, math.inf
    assert used_columns(matrix).tolist() == [3, 5]
    zeros = torch.zeros(32, 200)
    assert len(joined({"x": zeros}, "columns+int8")) < 200
    assert torch.equal(through(zeros, "columns+int8"), zeros)
    zeros[3, 7] = math.nan
    assert through(zeros, "columns").isnan().nonzero().tolist() == [[3, 7]]
    with pytest.raises(CodecError, match="'x': codec int8 cannot carry infinite or NaN values"):
        through(zeros, "columns+int8")


def test_a_zero_below_zero_is_a_zero():
    tensor = torch.full((16, 16), -0.0)
    tensor[:, 3] = 1.0
    assert torch.equal(through(tensor, "columns"), tensor)
    assert not through(tensor, "columns")[:, 0].signbit().any()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.int64, torch.complex64])
@pytest.mark.parametrize("text", ["columns", "topk:0.1", "randk:0.1"])
def test_other_numbers_travel_whole(dtype, text):
    tensor = torch.ones(16, 16).to(dtype)
    assert joined({"x": tensor}, text) == joined({"x": tensor}, "raw")


@pytest.mark.parametrize("text", ["columns+columns", "columns+topk:0.1", "topk:0.1+columns", "int8+columns"])
def test_it_comes_first_and_alone(text):
    with pytest.raises(CodecError, match=r"expected raw, or topk:SHARE or randk:SHARE or columns"):
        parse(text)


def test_nothing_is_left_over_for_the_next_time():
    with pytest.raises(CodecError, match="feedback is for codecs that leave elements out"):
        codec(update="columns+int8+feedback")
    assert codec(update="columns+int8").for_kind("avg").columns  # nothing is lost, so weights may travel so


def test_protobuf_reads_what_it_wrote():
    tensor = torch.zeros(4, 2, 30)
    tensor[:, 1, 2] = 3.0
    (entry,) = proto.Frame.FromString(joined({"x": tensor}, "columns")).tensors
    assert (entry.columns, entry.kept, bytes(entry.positions)) == (1, 0, (32).to_bytes(4, "little"))
    assert len(entry.payload) == 16


SEVENTH = (7).to_bytes(4, "little")


def narrow(*, shape=(2, 50), columns=1, positions=SEVENTH, payload=bytes(8), **more):
    fields = {"dtype": 2, "kept": 0, "walk": (), "compression": 0, **more}
    body = b"".join(
        (
            bytes_field(1, b"x"),
            uint_field(2, fields["dtype"]),
            bytes_field(3, b"".join(map(varint, shape))),
            uint_field(9, fields["kept"]),
            bytes_field(10, positions),
            bytes_field(11, b"".join(map(varint, fields["walk"]))),
            uint_field(12, fields["compression"]),
            uint_field(13, columns),
            bytes_field(8, payload),
        )
    )
    return length_header(1, len(body)) + body


def test_a_frame_that_fits_is_read():
    decoded = frame.decode(narrow(payload=torch.tensor([1.0, 2.0]).numpy().tobytes()))["x"]
    assert decoded.nonzero().tolist() == [[0, 7], [1, 7]]
    assert features(Spec(torch.float32, (2, 5, 10))) == 50


TWO = (5).to_bytes(4, "little") + (3).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"positions": (50).to_bytes(4, "little")}, "not 1 ascending columns"),
        ({"positions": b""}, "not 1 ascending columns"),
        ({"positions": bytes(7)}, "not 1 ascending columns"),
        ({"columns": 2, "positions": b"\3" + bytes(7), "payload": bytes(16)}, "not 2 ascending columns"),
        ({"columns": 2, "positions": b"\7" + bytes(6), "payload": bytes(16)}, "not 2 ascending columns"),
        ({"columns": 2, "positions": b"\1" + bytes(5) + b"\4", "payload": bytes(16)}, "not 2 ascending columns"),
        ({"shape": (2, 100), "columns": 2, "positions": TWO, "payload": bytes(16)}, "not 2 ascending columns"),
        ({"columns": 51, "payload": bytes(8 * 51)}, "51 columns kept of"),
        ({"columns": 2**63}, "columns kept of"),
        ({"payload": bytes(12)}, "takes 8 bytes, but 12 came"),
        ({"shape": (100,), "payload": bytes(400)}, "1 columns kept of"),
        ({"shape": (0, 50), "payload": b""}, "1 columns kept of"),
        ({"shape": (2, 0), "payload": b""}, "1 columns kept of"),
        ({"dtype": 13, "payload": bytes(16)}, "1 columns kept of int64"),
        ({"dtype": 9, "payload": bytes(2)}, "1 columns kept of float8_e8m0fnu"),
        ({"kept": 2}, "1 columns kept of"),
        ({"walk": (7, 1)}, "but all elements are there"),
        ({"columns": 0, "payload": bytes(400)}, "but all elements are there"),
        ({"shape": (1, 2**40), "payload": bytes(4)}, "1 columns kept of"),
        ({"shape": (2, 2**29)}, "would unfold to more than 16777216 elements"),
        ({"compression": 1}, "no Zstandard frame of 8 bytes"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused(wrong, problem):
    with pytest.raises(FrameError, match=problem):
        frame.decode(narrow(**wrong))


def test_a_receiver_that_expects_little_unfolds_little():
    with pytest.raises(FrameError, match="would unfold to more than 99 elements"):
        frame.decode(narrow(), limits=Limits(thinned=99))
    frame.decode(narrow(), limits=Limits(thinned=100))
