"""The few rules of the proto3 wire format that our messages need, written by hand for speed.

A message is a sequence of fields, each a tag (number and wire type) and a value. See
https://protobuf.dev/programming-guides/encoding. Protobuf's own classes copy a payload several times; here it is only
sliced.
"""

from __future__ import annotations

from collections.abc import Iterator

from splitfl.errors import SplitflError

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""Wire types."""

MAX_TAG = (1 << 32) - 1
MAX_VARINT = (1 << 64) - 1


class WireError(SplitflError):
    """Bytes that are no message of ours."""


def varint(value: int) -> bytes:
    """`value` (0 .. 2**64 - 1) in base 128, least significant group first."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tag(number: int, wire_type: int) -> bytes:
    """The tag that begins a field."""
    return varint(number << 3 | wire_type)


def uint_field(number: int, value: int) -> bytes:
    """An integer field; nothing at all for 0, which proto3 leaves out."""
    return tag(number, VARINT) + varint(value) if value else b""


def length_header(number: int, length: int) -> bytes:
    """What precedes the `length` bytes of a string, a message or packed numbers."""
    return tag(number, LENGTH) + varint(length)


def bytes_field(number: int, value: bytes) -> bytes:
    """A field of bytes; nothing at all if empty."""
    return length_header(number, len(value)) + value if value else b""


def read_varint(view: memoryview, at: int) -> tuple[int, int]:
    """The number that starts at `at`, and where it ends. Raises WireError if truncated or beyond 64 bits."""
    value = shift = 0
    for position in range(at, min(at + 10, len(view))):
        byte = view[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > MAX_VARINT:
                break
            return value, position + 1
        shift += 7
    raise WireError(f"a number at byte {at} is truncated or longer than 64 bits")


def fields(view: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """The fields of a message: number, wire type, and the value (an integer, or a slice that shares memory).

    Raises WireError where the bytes are truncated or malformed; groups, which proto3 does not have, are refused.
    """
    at = 0
    while at < len(view):
        start = at
        key, at = read_varint(view, at)
        number, wire_type = key >> 3, key & 7
        if not 0 < key <= MAX_TAG or number == 0:
            raise WireError(f"field number {number} at byte {start}, expected 1 or more")
        if wire_type == VARINT:
            value, at = read_varint(view, at)
            yield number, wire_type, value
            continue
        if wire_type == LENGTH:
            length, at = read_varint(view, at)
        elif wire_type in (FIXED32, FIXED64):
            length = 4 if wire_type == FIXED32 else 8
        else:
            raise WireError(f"wire type {wire_type} of field {number} at byte {start} is not in use")
        if length > len(view) - at:
            raise WireError(f"field {number} at byte {start} claims {length} bytes, but {len(view) - at} are left")
        yield number, wire_type, view[at : at + length]
        at += length


def as_text(view: memoryview, *, what: str) -> str:
    """A string field's value. Raises WireError where it is no UTF-8."""
    try:
        return str(view, "utf-8")
    except UnicodeDecodeError:
        raise WireError(f"{what} is not valid UTF-8") from None
