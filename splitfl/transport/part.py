"""Parts: a bundle of tensors under its address, in pieces that neither exceed gRPC's limits nor hold up what follows.

Written and read by hand, because this is where the bytes are: one copy from the tensors' memory to what gRPC sends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from splitfl.codecs.frame import Buffer
from splitfl.codecs.proto3 import LENGTH, VARINT, fields, length_header, tag, uint_field
from splitfl.schedule.instruction import Kind, Value
from splitfl.transport.base import EnvelopeError
from splitfl.transport.messages import Address

PART_SIZE = 1 << 20
"""Bytes of payload in one envelope; the last part of a bundle has what is left."""

SLACK = 1 << 16
"""What the last part may have beyond that: a tensor of exactly 1 MiB and its header stay together."""

PART = 7
"""Field of `Envelope`."""

KINDS: Mapping[Kind, int] = {Kind.ACT: 1, Kind.GRAD: 2, Kind.PARAMS: 3, Kind.AVG: 4}
"""The values that travel, numbered as `Kind` in session.proto."""

_KINDS = {number: kind for kind, number in KINDS.items()}


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of a bundle: where it belongs, the bundle's size in bytes, this piece's number from 0, its bytes."""

    address: Address
    size: int
    number: int
    payload: memoryview


_ROUND, _STEP, _KIND, _STAGE, _CLIENT, _MICRO, _CHUNK, _SIZE, _NUMBER, _PAYLOAD = range(1, 11)
"""Fields of `Part`; the payload is the last."""


def encode_parts(address: Address, payload: Sequence[Buffer]) -> Iterator[bytes]:
    """The envelopes of one bundle, made one at a time; an empty bundle has one empty part."""
    views = [memoryview(buffer).cast("B") for buffer in payload]
    size = sum(len(view) for view in views)
    place = _place(address)
    for number, slices in enumerate(_cut(views, part_count(size))):
        length = sum(len(part) for part in slices)
        yield b"".join((_part_header(place, size=size, number=number, length=length), *slices))


def part_count(size: int) -> int:
    """The number of parts of a bundle of `size` bytes."""
    return max(1, -(-(size - SLACK) // PART_SIZE))


def bundle_size(address: Address, size: int) -> int:
    """Exactly the bytes of all envelopes of a bundle of `size` bytes."""
    place = _place(address)
    total = size
    count = part_count(size)
    for number in range(count):
        length = PART_SIZE if number < count - 1 else size - number * PART_SIZE
        total += len(_part_header(place, size=size, number=number, length=length))
    return total


def _cut(views: Sequence[memoryview], count: int) -> Iterator[list[memoryview]]:
    """The bytes of `views` in `count` lists of slices: all but the last have `PART_SIZE` bytes together."""
    slices: list[memoryview] = []
    room = PART_SIZE
    for view in views:
        at = 0
        while count > 1 and len(view) - at >= room:
            yield [*slices, view[at : at + room]]
            at += room
            slices, room, count = [], PART_SIZE, count - 1
        slices.append(view[at:])
        room -= len(view) - at
    yield slices


def _place(address: Address) -> bytes:
    value = address.value
    if value.kind not in KINDS:
        raise EnvelopeError(f"{value} does not travel, expected one of {', '.join(KINDS)}")
    numbers = (
        (_ROUND, address.round),
        (_STEP, address.step),
        (_KIND, KINDS[value.kind]),
        (_STAGE, value.stage),
        (_CLIENT, value.client),
        (_MICRO, value.micro_batch),
        (_CHUNK, value.chunk),
    )
    return b"".join(_number(field, number, optional=field in (_CLIENT, _MICRO)) for field, number in numbers)


def _number(field: int, value: int | None, *, optional: bool) -> bytes:
    if value is None:
        return b""
    if not 0 <= value < 1 << 32:
        raise EnvelopeError(f"field {field} of an address is {value}, expected 0 to {(1 << 32) - 1}")
    # An optional field that is set is written even if 0; others leave a 0 out.
    return tag(field, VARINT) + b"\0" if optional and value == 0 else uint_field(field, value)


def _part_header(place: bytes, *, size: int, number: int, length: int) -> bytes:
    payload = length_header(_PAYLOAD, length) if length else b""
    body = b"".join((place, uint_field(_SIZE, size), uint_field(_NUMBER, number), payload))
    return length_header(PART, len(body) + length) + body


def decode_part(view: memoryview) -> Part:
    """The part in an envelope; its payload shares memory. Raises WireError for malformed bytes."""
    numbers: dict[int, int] = {}
    payload = memoryview(b"")
    for number, wire_type, value in fields(view):
        if isinstance(value, int):
            numbers[number] = value
        elif number == _PAYLOAD and wire_type == LENGTH:
            payload = value
    for number in range(_ROUND, _PAYLOAD):
        limit = 64 if number == _SIZE else 32
        if numbers.get(number, 0) >= 1 << limit:
            raise EnvelopeError(f"field {number} of a part is {numbers[number]}, expected {limit} bits")
    if numbers.get(_KIND) not in _KINDS:
        raise EnvelopeError(f"a part of unknown kind {numbers.get(_KIND, 0)}, expected 1 to {len(_KINDS)}")
    named = Value(
        _KINDS[numbers[_KIND]],
        numbers.get(_STAGE, 0),
        numbers.get(_CLIENT),
        numbers.get(_MICRO),
        numbers.get(_CHUNK, 0),
    )
    address = Address(numbers.get(_ROUND, 0), numbers.get(_STEP, 0), named)
    return Part(address, numbers.get(_SIZE, 0), numbers.get(_NUMBER, 0), payload)
