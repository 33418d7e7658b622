"""What precedes the numbers of a tensor in a frame: written in one piece, read with suspicion.

Everything that a header claims is checked by arithmetic before memory is reserved for any tensor of its frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from splitfl.codecs.packing import Codec, Groups, one_group
from splitfl.codecs.proto3 import (
    LENGTH,
    VARINT,
    WireError,
    as_text,
    bytes_field,
    fields,
    length_header,
    read_varint,
    uint_field,
    varint,
)
from splitfl.codecs.roles import CODECS
from splitfl.codecs.spec import DTYPE_NUMBERS, DTYPES, Spec

TENSORS = 1
"""Field of `Frame`."""

NAME, DTYPE, SHAPE, CODEC, AXIS, SCALES, OFFSETS, PAYLOAD = range(1, 9)
"""Fields of `Tensor`; the payload is the last."""

RAW = 0
"""The codec number of a tensor that travels bit for bit."""

_CODECS = {codec.number: codec for codec in CODECS.values() if codec is not None}
_NUMBERS = {DTYPE: "dtype", CODEC: "codec", AXIS: "axis"}
_SLICES = {NAME: "name", SCALES: "scales", OFFSETS: "offsets", PAYLOAD: "payload"}
_NOTHING = memoryview(b"")


class FrameError(WireError):
    """Bytes that are no frame, or not the frame that was expected; the message names the tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a frame may hold at most: `tensors`, `dims` of one tensor, bytes of a `name`."""

    tensors: int = 65_536
    dims: int = 64
    name: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """One tensor of a frame, checked: scales, offsets and payload are slices of the frame."""

    name: str
    spec: Spec
    codec: Codec | None
    axis: int
    scales: memoryview
    offsets: memoryview
    payload: memoryview

    @property
    def groups(self) -> Groups:
        """The groups of elements that share a scale."""
        return Groups(self.axis, len(self.scales) // 4)


def write_header(
    name: str, spec: Spec, *, codec: Codec | None, axis: int = 0, scales: bytes = b"", offsets: bytes = b""
) -> bytes:
    """The bytes of one tensor up to its payload, the frame's own tag and length included."""
    payload = payload_size(spec, codec)
    body = b"".join(
        (
            bytes_field(NAME, name.encode()),
            uint_field(DTYPE, DTYPE_NUMBERS[spec.dtype]),
            bytes_field(SHAPE, b"".join(map(varint, spec.shape))),
            uint_field(CODEC, codec.number if codec else RAW),
            uint_field(AXIS, axis),
            bytes_field(SCALES, scales),
            bytes_field(OFFSETS, offsets),
            length_header(PAYLOAD, payload) if payload else b"",
        )
    )
    return length_header(TENSORS, len(body) + payload) + body


def payload_size(spec: Spec, codec: Codec | None) -> int:
    """Bytes that the numbers of a tensor take in `codec`."""
    return spec.elements * (codec.dtype if codec else spec.dtype).itemsize


def read_headers(view: memoryview, limits: Limits) -> dict[str, Header]:
    """The tensors of a frame by name, in order. Raises FrameError, naming the tensor where there is one to name."""
    headers: dict[str, Header] = {}
    try:
        for number, wire_type, value in fields(view):
            if number != TENSORS or wire_type != LENGTH or isinstance(value, int):
                raise FrameError(f"a frame has no field {number} of wire type {wire_type}")
            if len(headers) == limits.tensors:
                raise FrameError(f"more than {limits.tensors} tensors in one frame")
            header = _read_tensor(value, limits)
            if header.name in headers:
                raise FrameError(f"{header.name!r} is there twice")
            headers[header.name] = header
    except FrameError:
        raise
    except WireError as error:
        raise FrameError(f"not a frame: {error}") from None
    return headers


@dataclass(slots=True)
class _Parts:
    """The fields of a tensor as they are read, believed by nobody yet."""

    shape: list[int] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    slices: dict[int, memoryview] = field(default_factory=dict)


def _read_tensor(view: memoryview, limits: Limits) -> Header:
    parts = _Parts()
    for number, wire_type, value in fields(view):
        if number == SHAPE and wire_type in (VARINT, LENGTH):
            parts.shape.extend([value] if isinstance(value, int) else _packed_varints(value, limits.dims))
            if len(parts.shape) > limits.dims:
                raise FrameError(f"a tensor of more than {limits.dims} dimensions")
        elif number in parts.numbers or number in parts.slices:
            raise FrameError(f"field {number} of a tensor is there twice")
        elif number in _NUMBERS and wire_type == VARINT and isinstance(value, int):
            parts.numbers[number] = value
        elif number in _SLICES and wire_type == LENGTH and not isinstance(value, int):
            parts.slices[number] = value
        else:
            raise FrameError(f"a tensor has no field {number} of wire type {wire_type}")
    name = parts.slices.get(NAME, _NOTHING)
    if len(name) > limits.name:
        raise FrameError(f"a tensor's name has {len(name)} bytes, expected at most {limits.name}")
    header = _believe(as_text(name, what="a tensor's name"), parts)
    _check_metadata(header)
    return header


def _packed_varints(view: memoryview, most: int) -> Iterator[int]:
    at = 0
    for _ in range(most + 1):
        if at == len(view):
            return
        value, at = read_varint(view, at)
        yield value


def _believe(name: str, parts: _Parts) -> Header:
    """The header, once dtype, shape, codec and payload agree."""
    dtype, number = parts.numbers.get(DTYPE, 0), parts.numbers.get(CODEC, RAW)
    if dtype not in DTYPES:
        raise FrameError(f"{name!r}: unknown dtype number {dtype}, expected 1 to {max(DTYPES)}")
    spec = Spec(DTYPES[dtype], tuple(parts.shape))
    # A size of 0 hides the others from the number of elements, but not from the strides that torch computes.
    if prod(max(size, 1) for size in parts.shape) * spec.dtype.itemsize >= 1 << 63:
        raise FrameError(f"{name!r}: a size in shape {parts.shape} is negative or too large")
    codec = _CODECS.get(number)
    if number != RAW and (codec is None or not codec.applies("", spec)):
        raise FrameError(f"{name!r}: codec number {number} is unknown, or not for {spec}")
    payload = parts.slices.get(PAYLOAD, _NOTHING)
    if payload_size(spec, codec) != len(payload):
        raise FrameError(f"{name!r}: {spec} takes {payload_size(spec, codec)} bytes, but {len(payload)} came")
    return Header(
        name=name,
        spec=spec,
        codec=codec,
        axis=parts.numbers.get(AXIS, 0),
        scales=parts.slices.get(SCALES, _NOTHING),
        offsets=parts.slices.get(OFFSETS, _NOTHING),
        payload=payload,
    )


def _check_metadata(header: Header) -> None:
    """Scales and offsets: none without a codec that has them, else one for all elements or one per index of an axis."""
    shape, codec = header.spec.shape, header.codec
    along_axis = codec is not None and codec.groups is not one_group and header.axis < len(shape)
    sizes = {1, max(shape[header.axis], 1)} if along_axis else {1}
    scales = {4 * size for size in sizes} if codec is not None and codec.scaled else {0}
    offsets = len(header.scales) if codec is not None and codec.shifted else 0
    if len(header.scales) not in scales or len(header.offsets) != offsets:
        raise FrameError(
            f"{header.name!r}: {len(header.scales)} bytes of scales and {len(header.offsets)} of offsets do not fit "
            f"{header.spec} in codec {codec.name if codec else 'raw'} along axis {header.axis}"
        )
