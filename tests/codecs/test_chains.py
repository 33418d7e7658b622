"""Codecs of several parts: what is left out, the format of the rest, compression; names, bytes, and hostile bytes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitfl.codecs import CodecError, FrameError, Limits, Spec, codec, frame, parse
from splitfl.codecs.proto3 import bytes_field, length_header, uint_field, varint
from splitfl.codecs.sparse import Sparsifier, Walk, as_bitmap, positions_of, read_positions, write_positions
from splitfl.transport import proto

CHAINS = [
    "topk:0.1", "topk:0.01", "randk:0.25", "zstd", "topk:0.1+int8", "topk:0.3+int4", "topk:0.1+fp8", "int8+zstd",
    "randk:0.1+bf16+zstd", "int4+zstd", "topk:0.05+fp16+zstd",
]  # fmt: skip
SHAPES = st.sampled_from([(64,), (63,), (8, 16), (2, 3, 5, 7), (1000,), (0, 3), (), (4, 512)])


def joined(tensors, text, draw=0):
    return b"".join(map(bytes, frame.encode(tensors, parse(text), draw=draw)))


def through(tensor, text, draw=0):
    return frame.decode(joined({"x": tensor}, text, draw))["x"]


def made(shape, seed, scale=1.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


@given(SHAPES, st.integers(0, 1000), st.sampled_from([0.01, 0.1, 0.5, 0.99]))
def test_topk_keeps_the_largest_and_zeros_the_rest(shape, seed, share):
    tensor = made(shape, seed)
    decoded = through(tensor, f"topk:{share}")
    if tensor.numel() < 64:
        assert torch.equal(decoded, tensor)
        return
    kept = decoded != 0
    assert torch.equal(decoded[kept], tensor[kept])
    assert int(kept.sum()) == math.ceil(share * tensor.numel())
    assert kept.all() or tensor[kept].abs().min() >= tensor[~kept].abs().max()


@given(st.integers(64, 3000), st.integers(0, 2**63 - 1), st.sampled_from([0.02, 0.3]))
def test_randk_keeps_as_many_and_the_draw_decides_which(elements, draw, share):
    tensor = torch.rand(elements) + 1
    decoded = through(tensor, f"randk:{share}", draw)
    kept = decoded != 0
    assert torch.equal(decoded[kept], tensor[kept])
    assert int(kept.sum()) == math.ceil(share * elements)
    assert torch.equal(decoded, through(tensor, f"randk:{share}", draw))


def test_randk_reaches_every_element_alike():
    counts = torch.zeros(128)
    for draw in range(4000):
        generator = torch.Generator().manual_seed(draw)
        number = int(torch.randint(2**62, (1,), generator=generator))
        counts += through(torch.ones(128), "randk:0.25", number)
    assert (counts / 4000 - 0.25).abs().max() < 0.05


@given(SHAPES, st.integers(0, 1000), st.sampled_from(CHAINS), st.sampled_from([1e-20, 1.0, 1e20]))
def test_every_chain_stays_within_its_bound(shape, seed, text, scale):
    """What is kept has the error of its format; what is not is zero."""
    tensor = made(shape, seed, scale)
    decoded = through(tensor, text)
    assert decoded.shape == tensor.shape
    assert decoded.dtype == tensor.dtype
    bounds = {"int8": 1 / 255, "int4": 1 / 15, "fp8": 2**-4, "fp16": 2**-10, "bf16": 2**-8}
    bound = next((value for name, value in bounds.items() if name in text.split("+")), 0.0)
    parts = parse(text)
    kept = parts.thins("x", Spec(tensor.dtype, shape))
    span = float(tensor.max() - tensor.min()) if tensor.numel() else 0.0
    sent = decoded != 0 if kept else torch.ones_like(tensor, dtype=torch.bool)
    largest = float(tensor.abs().max()) if tensor.numel() else 0.0
    assert ((decoded - tensor).abs()[sent] <= bound * max(span, largest) + 1e-6 * scale).all()


@given(SHAPES, st.integers(0, 1000), st.sampled_from(CHAINS))
def test_bytes_are_as_promised(shape, seed, text):
    tensors = {"x": made(shape, seed), "target:": torch.zeros(3), "n": torch.tensor(3)}
    promised = frame.wire_size(
        {name: Spec(each.dtype, tuple(each.shape)) for name, each in tensors.items()}, parse(text)
    )
    size = len(joined(tensors, text, draw=seed * 7919))
    assert size <= promised
    if "zstd" not in text:
        assert promised - size <= (4 if "randk" in text else 0)


def test_zstd_is_used_where_it_helps():
    relu = torch.relu(made((8, 16, 12, 12), 1) - 1)
    assert len(joined({"x": relu}, "int8+zstd")) < 0.6 * len(joined({"x": relu}, "int8"))
    noise = torch.randint(0, 256, (4000,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)).view(
        torch.float32
    )
    assert joined({"x": noise}, "zstd") == joined({"x": noise}, "raw")


@given(st.integers(1, 5000), st.data())
def test_positions_there_and_back(elements, data):
    count = data.draw(st.integers(1, elements))
    seed = data.draw(st.integers(0, 1000))
    positions = torch.randperm(elements, generator=torch.Generator().manual_seed(seed))[:count].sort().values
    written = write_positions(positions, elements)
    assert len(written) == (-(-elements // 8) if as_bitmap(elements, count) else 4 * count)
    assert torch.equal(read_positions(memoryview(written), elements, count), positions)


@given(st.integers(1, 2000), st.integers(0, 2**62))
def test_a_walk_visits_every_element_once(elements, draw):
    values = torch.ones(elements)
    _, walk = Sparsifier("randk", 0.5).choose(values, draw)
    assert positions_of(walk, elements, elements).sort().values.tolist() == list(range(elements))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("topk", "'topk': expected a share between 0 and 1, such as topk:0.1"),
        ("topk:1.5", "'topk:1.5': expected a share"),
        ("randk:nan", "'randk:nan': expected a share"),
        ("int8+int4", "part 'int4', expected raw, or topk:SHARE"),
        ("zstd+int8", "part 'int8', expected raw"),
        ("int8+topk:0.1", "part 'topk:0.1', expected raw"),
        ("int8+feedback", "feedback is for codecs that leave elements out"),
        ("", "part '', expected raw"),
    ],
)
def test_names_that_say_nothing_are_refused(text, problem):
    with pytest.raises(CodecError, match=problem.replace("(", r"\(").replace(".", r"\.")):
        parse(text)


def test_feedback_is_for_updates():
    assert codec(update="topk:0.1+feedback").for_kind("params").feedback
    whole = codec(update="topk:0.1+int8+feedback").for_kind("avg")
    assert (whole.keep, whole.feedback, whole.format.name) == (None, False, "int8")
    with pytest.raises(CodecError, match=r"gradient = 'topk:0\.1\+feedback': feedback is for updates"):
        codec(gradient="topk:0.1+feedback")


def test_protobuf_reads_what_a_chain_wrote():
    tensor = made((100,), 3)
    (entry,) = proto.Frame.FromString(joined({"x": tensor}, "topk:0.1+int8")).tensors
    assert (entry.kept, entry.codec, len(entry.payload), len(entry.positions)) == (10, 4, 10, 13)
    (entry,) = proto.Frame.FromString(joined({"x": tensor}, "randk:0.1+zstd", draw=12345)).tensors
    assert (entry.kept, list(entry.walk), bytes(entry.positions)) == (10, [23, 45], b"")


def sparse(*, shape=(100,), kept=2, payload=bytes(8), positions=b"", walk=(), compression=0, dtype=2):
    body = b"".join(
        (
            bytes_field(1, b"x"),
            uint_field(2, dtype),
            bytes_field(3, b"".join(map(varint, shape))),
            uint_field(9, kept),
            bytes_field(10, positions),
            bytes_field(11, b"".join(map(varint, walk))),
            uint_field(12, compression),
            bytes_field(8, payload),
        )
    )
    return length_header(1, len(body)) + body


def two(first, second):
    return first.to_bytes(4, "little") + second.to_bytes(4, "little")


def test_sparse_frames_that_fit_are_read():
    # 100 elements, 2 kept: 13 bytes of bitmap are more than 8 bytes of numbers
    decoded = frame.decode(sparse(positions=two(3, 99), payload=torch.tensor([1.0, 2.0]).numpy().tobytes()))["x"]
    assert decoded.nonzero().reshape(-1).tolist() == [3, 99]
    decoded = frame.decode(sparse(walk=(7, 98), payload=torch.tensor([1.0, 2.0]).numpy().tobytes()))["x"]
    assert (decoded[98], decoded[5]) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"positions": two(3, 100)}, "positions are not 2 ascending ones"),
        ({"positions": two(5, 3)}, "positions are not 2 ascending ones"),
        ({"positions": two(5, 5)}, "positions are not 2 ascending ones"),
        ({"positions": two(5, 6)[:7]}, "positions are not 2 ascending ones"),
        ({"positions": b""}, "positions are not 2 ascending ones"),
        ({"kept": 50, "payload": bytes(200), "positions": bytes(13)}, "positions are not 50 ascending ones"),
        ({"kept": 101, "payload": bytes(404)}, "101 elements kept of"),
        ({"kept": 2**63, "payload": bytes(8)}, "elements kept of"),
        ({"kept": 0, "payload": bytes(400), "walk": (1, 0)}, "but all elements are there"),
        ({"walk": (10, 0)}, "does not reach all 100"),
        ({"walk": (0, 0)}, "does not reach all 100"),
        ({"walk": (101, 0)}, "does not reach all 100"),
        ({"walk": (7, 100)}, "does not reach all 100"),
        ({"walk": (7,)}, "does not reach all 100"),
        ({"walk": (7, 1), "positions": two(1, 2)}, "or has positions"),
        ({"walk": (7, 1), "payload": bytes(12)}, "takes 8 bytes, but 12 came"),
        ({"dtype": 13, "positions": two(1, 2), "payload": bytes(16)}, "2 elements kept of int64"),
        ({"shape": (2**40,), "walk": (7, 1)}, "2 elements kept of"),
        ({"shape": (2**30,), "walk": (7, 1)}, "would unfold to more than 16777216 elements"),
        ({"walk": (7, 1), "compression": 2}, "unknown compression number 2"),
        ({"walk": (7, 1), "compression": 1}, "no Zstandard frame of 8 bytes"),
    ],
)
def test_sparse_frames_that_do_not_fit_are_refused(wrong, problem):
    with pytest.raises(FrameError, match=problem):
        frame.decode(sparse(**wrong))


def test_a_compressed_bomb_unfolds_no_further_than_its_shape():
    import zstandard

    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 28))
    with pytest.raises(FrameError, match="no Zstandard frame of 8 bytes"):
        frame.decode(sparse(walk=(7, 1), compression=1, payload=bomb))
    with pytest.raises(FrameError, match="would unfold to more than 50 elements"):
        frame.decode(sparse(walk=(7, 1)), limits=Limits(thinned=50))
    assert Walk(7, 1)
