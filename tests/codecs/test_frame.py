"""Frames: bit for bit there and back, and of exactly the promised size."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitfl.codecs import CODECS, FrameError, Limits, Spec, frame
from splitfl.codecs.proto3 import bytes_field, length_header, uint_field
from splitfl.codecs.spec import DTYPE_NUMBERS, spec_of
from splitfl.transport import proto

SMALL_SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def random_bits(spec: Spec, *, seed: int = 0) -> torch.Tensor:
    """A tensor whose bytes are random: NaNs with payloads, infinities and subnormals included."""
    generator = torch.Generator().manual_seed(seed)
    if spec.dtype is torch.bool:
        return torch.randint(0, 2, spec.shape, generator=generator).bool()
    nbytes = spec.elements * spec.dtype.itemsize
    return torch.randint(0, 256, (nbytes,), generator=generator, dtype=torch.uint8).view(spec.dtype).reshape(spec.shape)


def bits(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor in row-major order."""
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


def tensors() -> st.SearchStrategy[dict[str, torch.Tensor]]:
    """Bundles of tensors of any dtype and small shape."""
    spec = st.builds(Spec, st.sampled_from(list(DTYPE_NUMBERS)), SMALL_SHAPES)
    tensor = st.builds(lambda spec, seed: random_bits(spec, seed=seed), spec, st.integers(0, 1000))
    return st.dictionaries(st.text(max_size=8).filter(lambda name: name.isprintable()), tensor, max_size=4)


def finite_tensors() -> st.SearchStrategy[dict[str, torch.Tensor]]:
    """Bundles of floating-point tensors with finite values, beside integers and labels."""
    dtype = st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64])

    def make(shape, dtype, seed):
        return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 100).to(dtype)

    tensor = st.builds(make, SMALL_SHAPES, dtype, st.integers(0, 1000))
    return st.dictionaries(st.sampled_from(["x", "skip", "target:", "target:1"]), tensor, max_size=4)


SHAPES = [(), (1,), (0, 3), (3, 0, 2), (2, 3), (1, 2, 3, 4)]


def joined(bundle, codec=None):
    return b"".join(frame.encode(bundle, codec))


def same(left, right):
    return (
        list(left) == list(right)
        and all(spec_of(left[name]) == spec_of(right[name]) for name in left)
        and all(bits(left[name]) == bits(right[name]) for name in left)
    )


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
    with pytest.raises(FrameError, match=r"'x' is float32.*expected float64"):
        frame.decode(encoded, expect={"x": Spec(torch.float64, (2, 3))})
    with pytest.raises(FrameError, match=r"missing tensors \['y'\], unexpected tensors \['x'\]"):
        frame.decode(encoded, expect={"y": Spec(torch.float32, (2, 3))})


def test_shapes_may_come_unpacked_as_proto3_allows():
    body = bytes_field(1, b"x") + uint_field(2, 14) + uint_field(3, 2) + uint_field(3, 1) + bytes_field(8, b"ab")
    decoded = frame.decode(length_header(1, len(body)) + body)
    assert torch.equal(decoded["x"], torch.tensor([[97], [98]], dtype=torch.uint8))
