"""What precedes the numbers of a tensor in a frame: written in one piece, read with suspicion.

Everything that a header claims is checked by arithmetic before memory is reserved for any tensor of its frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import gcd, prod

from splitfl.codecs.chain import FORMATS
from splitfl.codecs.columns import features, narrowed
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
from splitfl.codecs.sparse import LARGEST, Walk, thinnable
from splitfl.codecs.spec import DTYPE_NUMBERS, DTYPES, Spec

TENSORS = 1
"""Field of `Frame`."""

NAME, DTYPE, SHAPE, CODEC, AXIS, SCALES, OFFSETS, PAYLOAD, KEPT, POSITIONS, WALK, COMPRESSION, COLUMNS = range(1, 14)
"""Fields of `Tensor`; the payload is written last."""

RAW = 0
"""The codec number of a tensor that travels bit for bit."""

ZSTD = 1
"""The number of Zstandard in the field COMPRESSION."""

_CODECS = {codec.number: codec for codec in FORMATS.values()}
_NUMBERS = (DTYPE, CODEC, AXIS, KEPT, COMPRESSION, COLUMNS)
_SLICES = (NAME, SCALES, OFFSETS, PAYLOAD, POSITIONS)
_LISTS = (SHAPE, WALK)
_NOTHING = memoryview(b"")


class FrameError(WireError):
    """Bytes that are no frame, or not the frame that was expected; the message names the tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a frame may hold at most: `tensors`, `dims` of one tensor, bytes of a `name`.

    `thinned`: elements of a tensor of which not all were sent, or that was compressed: it takes more memory than its
    message, which says nothing of how much.
    """

    tensors: int = 65_536
    dims: int = 64
    name: int = 1024
    thinned: int = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """One tensor of a frame, checked: scales, offsets, positions and payload are slices of the frame.

    kept       how many elements are there, where not all; `positions` or `walk` say which
    columns    how many whole columns are there, where not all; `positions` say which
    compressed the payload is in Zstandard
    """

    name: str
    spec: Spec
    codec: Codec | None
    axis: int
    scales: memoryview
    offsets: memoryview
    payload: memoryview
    kept: int | None = None
    columns: int | None = None
    positions: memoryview = _NOTHING
    walk: Walk | None = None
    compressed: bool = False

    @property
    def sent(self) -> Spec:
        """The tensor that the payload stands for: flat, where elements were left out; a matrix, where columns were."""
        return sent_of(self.spec, self.kept, self.columns)

    @property
    def groups(self) -> Groups:
        """The groups of elements that share a scale."""
        return Groups(self.axis, len(self.scales) // 4)


def sent_of(spec: Spec, kept: int | None, columns: int | None) -> Spec:
    """What travels of a tensor of which so many elements, or so many columns, are there; None: all."""
    if columns is not None:
        return narrowed(spec, columns)
    return spec if kept is None else Spec(spec.dtype, (kept,))


def write_header(
    name: str,
    spec: Spec,
    *,
    codec: Codec | None,
    payload: int,
    axis: int = 0,
    scales: bytes = b"",
    offsets: bytes = b"",
    kept: int | None = None,
    columns: int | None = None,
    positions: bytes = b"",
    walk: Walk | None = None,
    compressed: bool = False,
) -> bytes:
    """The bytes of one tensor up to its `payload` bytes of payload, the frame's own tag and length included."""
    body = b"".join(
        (
            bytes_field(NAME, name.encode()),
            uint_field(DTYPE, DTYPE_NUMBERS[spec.dtype]),
            bytes_field(SHAPE, b"".join(map(varint, spec.shape))),
            uint_field(CODEC, codec.number if codec else RAW),
            uint_field(AXIS, axis),
            bytes_field(SCALES, scales),
            bytes_field(OFFSETS, offsets),
            uint_field(KEPT, kept or 0),
            bytes_field(POSITIONS, positions),
            bytes_field(WALK, b"".join(map(varint, walk or ()))),
            uint_field(COMPRESSION, ZSTD if compressed else 0),
            uint_field(COLUMNS, columns or 0),
            length_header(PAYLOAD, payload) if payload else b"",
        )
    )
    return length_header(TENSORS, len(body) + payload) + body


def payload_size(spec: Spec, codec: Codec | None) -> int:
    """Bytes that the numbers of a tensor take in `codec`, uncompressed."""
    payload = codec.payload(spec) if codec else spec
    return payload.elements * payload.dtype.itemsize


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

    lists: dict[int, list[int]] = field(default_factory=lambda: {number: [] for number in _LISTS})
    numbers: dict[int, int] = field(default_factory=dict)
    slices: dict[int, memoryview] = field(default_factory=dict)


def _read_tensor(view: memoryview, limits: Limits) -> Header:
    parts = _Parts()
    for number, wire_type, value in fields(view):
        if number in _LISTS and wire_type in (VARINT, LENGTH):
            found = parts.lists[number]
            found.extend([value] if isinstance(value, int) else _packed_varints(value, limits.dims))
            if len(found) > limits.dims:
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
    header = _believe(as_text(name, what="a tensor's name"), parts, limits)
    _check_metadata(header)
    return header


def _packed_varints(view: memoryview, most: int) -> Iterator[int]:
    at = 0
    for _ in range(most + 1):
        if at == len(view):
            return
        value, at = read_varint(view, at)
        yield value


def _believe(name: str, parts: _Parts, limits: Limits) -> Header:
    """The header, once dtype, shape, codec and payload agree."""
    shape = parts.lists[SHAPE]
    dtype, number = parts.numbers.get(DTYPE, 0), parts.numbers.get(CODEC, RAW)
    if dtype not in DTYPES:
        raise FrameError(f"{name!r}: unknown dtype number {dtype}, expected 1 to {max(DTYPES)}")
    spec = Spec(DTYPES[dtype], tuple(shape))
    # A size of 0 hides the others from the number of elements, but not from the strides that torch computes.
    if prod(max(size, 1) for size in shape) * spec.dtype.itemsize >= 1 << 63:
        raise FrameError(f"{name!r}: a size in shape {shape} is negative or too large")
    codec = _CODECS.get(number)
    if number != RAW and (codec is None or not codec.applies("", spec)):
        raise FrameError(f"{name!r}: codec number {number} is unknown, or not for {spec}")
    payload = parts.slices.get(PAYLOAD, _NOTHING)
    kept, walk = _believe_kept(name, spec, parts)
    columns = _believe_columns(name, spec, parts)
    compression = parts.numbers.get(COMPRESSION, 0)
    if compression > ZSTD:
        raise FrameError(f"{name!r}: unknown compression number {compression}, expected 0 or {ZSTD}")
    if (kept or columns or compression) and spec.elements > limits.thinned:
        raise FrameError(f"{name!r}: {spec} would unfold to more than {limits.thinned} elements")
    size = payload_size(sent_of(spec, kept, columns), codec)
    if not compression and size != len(payload):
        raise FrameError(f"{name!r}: {spec} takes {size} bytes, but {len(payload)} came")
    return Header(
        name=name,
        spec=spec,
        codec=codec,
        axis=parts.numbers.get(AXIS, 0),
        scales=parts.slices.get(SCALES, _NOTHING),
        offsets=parts.slices.get(OFFSETS, _NOTHING),
        payload=payload,
        kept=kept,
        columns=columns,
        positions=parts.slices.get(POSITIONS, _NOTHING),
        walk=walk,
        compressed=bool(compression),
    )


def _believe_kept(name: str, spec: Spec, parts: _Parts) -> tuple[int | None, Walk | None]:
    """How many elements are there, where not all, and the walk that says which; positions are looked at later."""
    kept, walk = parts.numbers.get(KEPT, 0), parts.lists[WALK]
    if not kept:
        if walk or (POSITIONS in parts.slices and not parts.numbers.get(COLUMNS, 0)):
            raise FrameError(f"{name!r}: positions or a walk, but all elements are there")
        return None, None
    if kept > spec.elements or spec.elements >= LARGEST or not thinnable(spec.dtype):
        raise FrameError(f"{name!r}: {kept} elements kept of {spec}")
    if not walk:
        return kept, None
    sound = len(walk) == 2 and max(walk) < spec.elements and gcd(walk[0], spec.elements) == 1
    if not sound or POSITIONS in parts.slices:
        raise FrameError(f"{name!r}: a walk {walk} that does not reach all {spec.elements} elements, or has positions")
    return kept, Walk(*walk)


def _believe_columns(name: str, spec: Spec, parts: _Parts) -> int | None:
    """How many columns are there, where not all; positions are looked at later."""
    columns = parts.numbers.get(COLUMNS, 0)
    if not columns:
        return None
    fits = len(spec.shape) > 1 and 0 < spec.elements < LARGEST and columns <= features(spec)
    if not fits or not thinnable(spec.dtype) or parts.numbers.get(KEPT, 0):
        raise FrameError(f"{name!r}: {columns} columns kept of {spec}")
    return columns


def _check_metadata(header: Header) -> None:
    """Scales and offsets: none without a codec that has them, else one for all elements or one per index of an axis."""
    shape, codec = header.sent.shape, header.codec
    along_axis = codec is not None and codec.groups is not one_group and header.axis < len(shape)
    sizes = {1, max(shape[header.axis], 1)} if along_axis else {1}
    scales = {4 * size for size in sizes} if codec is not None and codec.scaled else {0}
    offsets = len(header.scales) if codec is not None and codec.shifted else 0
    if len(header.scales) not in scales or len(header.offsets) != offsets:
        raise FrameError(
            f"{header.name!r}: {len(header.scales)} bytes of scales and {len(header.offsets)} of offsets do not fit "
            f"{header.spec} in codec {codec.name if codec else 'raw'} along axis {header.axis}"
        )
