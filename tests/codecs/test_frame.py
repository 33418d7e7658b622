"""Frames: bit for bit there and back, of exactly the promised size, and nothing that is no frame gets in."""

import pickle
import tracemalloc

import pytest
import torch
from conftest_codecs import bits, finite_tensors, random_bits, tensors
from hypothesis import given
from hypothesis import strategies as st

from splitfl.codecs import CODECS, FrameError, Limits, Spec, frame
from splitfl.codecs.proto3 import WireError, bytes_field, length_header, uint_field, varint
from splitfl.codecs.spec import DTYPE_NUMBERS, spec_of
from splitfl.transport import proto

SHAPES = [(), (1,), (0, 3), (3, 0, 2), (2, 3), (1, 2, 3, 4)]


def joined(bundle, codec=None):
    return b"".join(frame.encode(bundle, codec))


def same(left, right):
    return (
        list(left) == list(right)
        and all(spec_of(left[name]) == spec_of(right[name]) for name in left)
        and all(bits(left[name]) == bits(right[name]) for name in left)
    )


def tensor_bytes(*, name=b"x", dtype=2, shape=(), codec=0, axis=0, scales=b"", offsets=b"", payload=b""):
    """A frame with one tensor, of whatever its header claims."""
    packed = b"".join(map(varint, shape))
    body = b"".join(
        [
            bytes_field(1, name),
            uint_field(2, dtype),
            bytes_field(3, packed),
            uint_field(4, codec),
            uint_field(5, axis),
            bytes_field(6, scales),
            bytes_field(7, offsets),
            bytes_field(8, payload),
        ]
    )
    return length_header(1, len(body)) + body


@pytest.mark.parametrize("dtype", list(DTYPE_NUMBERS), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_dtype_and_shape_is_bit_equal(dtype, shape):
    bundle = {"x": random_bits(Spec(dtype, shape))}
    assert same(frame.decode(joined(bundle)), bundle)


@given(tensors())
def test_round_trip_and_size(bundle):
    encoded = joined(bundle)
    assert same(frame.decode(encoded), bundle)
    assert len(encoded) == frame.wire_size({name: spec_of(tensor) for name, tensor in bundle.items()})


@given(finite_tensors(), st.sampled_from(list(CODECS.values())))
def test_size_and_dtypes_under_every_codec(bundle, codec):
    specs = {name: spec_of(tensor) for name, tensor in bundle.items()}
    encoded = joined(bundle, codec)
    assert len(encoded) == frame.wire_size(specs, codec)
    decoded = frame.decode(encoded, expect=specs)
    kept = {name: t for name, t in bundle.items() if name.startswith("target:") or not t.is_floating_point()}
    assert same({name: decoded[name] for name in kept}, kept)


@given(tensors())
def test_bytes_equal_those_of_protobuf(bundle):
    message = proto.Frame()
    for name, tensor in bundle.items():
        entry = message.tensors.add(name=name, dtype=DTYPE_NUMBERS[tensor.dtype], payload=bits(tensor))
        entry.shape.extend(tensor.shape)
    assert joined(bundle) == message.SerializeToString()
    assert same(frame.decode(message.SerializeToString()), bundle)


@given(finite_tensors())
def test_protobuf_reads_what_int8_wrote(bundle):
    message = proto.Frame.FromString(joined(bundle, CODECS["int8"]))
    assert [entry.name for entry in message.tensors] == list(bundle)
    assert message.SerializeToString() == joined(bundle, CODECS["int8"])


def test_numbers_are_little_endian():
    assert joined({"x": torch.tensor([1, 258], dtype=torch.int32)}).endswith(bytes([1, 0, 0, 0, 2, 1, 0, 0]))


def test_layouts_that_are_not_contiguous():
    base = torch.arange(24.0).reshape(4, 6)
    complex_base = torch.randn(3, dtype=torch.complex64)
    bundle = {
        "transposed": base.t(),
        "strided": base[::2, 1::2],
        "expanded": torch.ones(1).expand(3, 2),
        "conjugated": complex_base.conj(),
        "negated": complex_base.conj().imag,
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    decoded = frame.decode(joined(bundle))
    assert all(torch.equal(decoded[name], tensor) for name, tensor in bundle.items())


def test_payload_is_not_copied_before_it_is_sent():
    tensor = torch.zeros(1000)
    payload = frame.encode({"x": tensor})[-1]
    tensor.fill_(1.0)
    assert bytes(payload) == bits(torch.ones(1000))


def test_decoded_tensors_own_their_memory():
    message = bytearray(joined({"x": torch.ones(3)}))
    decoded = frame.decode(message)["x"]
    message[-12:] = bytes(12)
    assert torch.equal(decoded, torch.ones(3))


@pytest.mark.parametrize(
    ("tensor", "named"),
    [
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.zeros(2, dtype=torch.bits8), "bits8"),
    ],
)
def test_tensors_without_a_form_are_refused_by_name(tensor, named):
    with pytest.raises(FrameError, match=f"'odd'.*{named}.*float32"):
        frame.encode({"odd": tensor})


HOSTILE = {
    "a billion elements with four bytes": tensor_bytes(shape=(10**9,), payload=b"\0" * 4),
    "a negative size": tensor_bytes(shape=(2**64 - 4,), payload=b"\0" * 4),
    "sizes that overflow to zero": tensor_bytes(shape=(2**32, 2**32), payload=b""),
    "a huge size hidden by an empty one": tensor_bytes(shape=(0, 2**63), payload=b""),
    "two large sizes hidden by an empty one": tensor_bytes(shape=(0, 2**40, 2**40), payload=b""),
    "an unknown dtype": tensor_bytes(dtype=99, payload=b"\0" * 4),
    "no dtype": tensor_bytes(dtype=0, payload=b"\0" * 4),
    "an unknown codec": tensor_bytes(codec=99, payload=b"\0" * 4),
    "a codec for floats on integers": tensor_bytes(dtype=13, codec=2, payload=b"\0" * 2),
    "a payload that is too long": tensor_bytes(payload=b"\0" * 5),
    "scales without a codec": tensor_bytes(scales=b"\0" * 4, payload=b"\0" * 4),
    "a codec without its scales": tensor_bytes(codec=4, payload=b"\0"),
    "scales that fit no axis": tensor_bytes(codec=4, shape=(2, 3), axis=1, scales=b"\0" * 8, offsets=b"\0" * 8, payload=b"\0" * 6),
    "an axis that is not there": tensor_bytes(codec=4, shape=(2,), axis=7, scales=b"\0" * 8, offsets=b"\0" * 8, payload=b"\0" * 2),
    "offsets that do not match the scales": tensor_bytes(codec=4, scales=b"\0" * 4, payload=b"\0"),
    "a scale that is no number": tensor_bytes(codec=3, scales=b"\0\0\xc0\x7f", payload=b"\0\0"),
    "a bool of two": tensor_bytes(dtype=18, payload=b"\2"),
    "a name that is no UTF-8": tensor_bytes(name=b"\xff", payload=b"\0" * 4),
    "a name without end": tensor_bytes(name=b"n" * 2000, payload=b"\0" * 4),
    "too many dimensions": tensor_bytes(shape=(1,) * 65, payload=b"\0" * 4),
    "the same name twice": tensor_bytes(payload=b"\0" * 4) * 2,
    "an unknown field of a tensor": length_header(1, 2) + uint_field(9, 1),
    "an unknown field of the frame": uint_field(2, 1),
    "a field of another type": length_header(1, 3) + bytes_field(2, b"a"),
    "a field twice": length_header(1, 4) + uint_field(2, 2) * 2,
    "a truncated number": b"\x0a\xff",
    "a number without end": b"\x0a" + b"\xff" * 11,
    "a length beyond the end": b"\x0a\x7f\x01",
    "a group": b"\x0b\x0c",
    "field number zero": b"\x00\x01",
    "a pickle": pickle.dumps({"x": [1.0]}),
}


@pytest.mark.parametrize("hostile", list(HOSTILE))
def test_hostile_frames_are_refused_before_memory_is_reserved(hostile):
    tracemalloc.start()
    with pytest.raises(FrameError):
        frame.decode(HOSTILE[hostile])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


class Bomb:
    """Unpickling it would raise KeyboardInterrupt, which no `except Exception` hides."""

    def __reduce__(self):
        return (exec, ("raise KeyboardInterrupt",))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_are_never_run(protocol):
    bomb = pickle.dumps(Bomb(), protocol=protocol)
    with pytest.raises(FrameError):
        frame.decode(bomb)
    with pytest.raises(FrameError):
        frame.decode(tensor_bytes(dtype=14, payload=bomb))


def test_limits():
    bundle = {str(index): torch.zeros(()) for index in range(3)}
    assert len(frame.decode(joined(bundle), limits=Limits(tensors=3))) == 3
    with pytest.raises(FrameError, match="more than 2 tensors"):
        frame.decode(joined(bundle), limits=Limits(tensors=2))


def test_expectation_names_tensor_got_and_expected():
    encoded = joined({"x": torch.zeros(2, 3)})
    expect = {"x": Spec(torch.float32, (2, 3))}
    assert list(frame.decode(encoded, expect=expect)) == ["x"]
    with pytest.raises(FrameError, match=r"'x' is float32\[2, 3\], expected float32\[3, 2\]"):
        frame.decode(encoded, expect={"x": Spec(torch.float32, (3, 2))})
    with pytest.raises(FrameError, match="'x' is float32.*expected float64"):
        frame.decode(encoded, expect={"x": Spec(torch.float64, (2, 3))})
    with pytest.raises(FrameError, match=r"missing tensors \['y'\], unexpected tensors \['x'\]"):
        frame.decode(encoded, expect={"y": Spec(torch.float32, (2, 3))})


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_frame_errors(noise):
    try:
        frame.decode(noise)
    except FrameError:
        pass


@given(finite_tensors(), st.sampled_from(list(CODECS.values())), st.data())
def test_mutated_frames_raise_nothing_but_frame_errors(bundle, codec, data):
    encoded = bytearray(joined(bundle, codec))
    for _ in range(data.draw(st.integers(1, 4))):
        if encoded:
            at = data.draw(st.integers(0, len(encoded) - 1))
            encoded[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(encoded)))
    try:
        decoded = frame.decode(encoded[:cut])
    except FrameError:
        return
    assert sum(t.numel() * t.element_size() for t in decoded.values()) <= 8 * len(encoded)


def test_shapes_may_come_unpacked_as_proto3_allows():
    body = bytes_field(1, b"x") + uint_field(2, 14) + uint_field(3, 2) + uint_field(3, 1) + bytes_field(8, b"ab")
    decoded = frame.decode(length_header(1, len(body)) + body)
    assert torch.equal(decoded["x"], torch.tensor([[97], [98]], dtype=torch.uint8))


def test_a_frame_error_is_a_wire_error():
    assert issubclass(FrameError, WireError)
