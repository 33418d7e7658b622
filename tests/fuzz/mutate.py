"""Malformed messages: what a broken or hostile end may send, made of what a sound one sends."""

from __future__ import annotations

import random
from collections.abc import Sequence

from splitfl.codecs.proto3 import LENGTH, WireError, fields, length_header, varint

EXTREMES = (0, 1, 127, 128, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 10**12, 2**63 - 1, 2**63, 2**64 - 1)

DEPTH = 4
"""Messages within messages that are mutated as such."""


def mutate(draw: random.Random, corpus: Sequence[bytes]) -> bytes:
    """One malformed message, now and then one that is well-formed after all."""
    message = draw.choice(corpus)
    if draw.random() < 0.5:
        message = _fields(draw, message, DEPTH)
    for _ in range(draw.choice((0, 1, 1, 2, 5))):
        message = draw.choice(_RAW)(draw, message, corpus)
    return message


def _fields(draw: random.Random, message: bytes, depth: int) -> bytes:
    """Take a message apart, change one of its fields, or one within it, and put it together with right lengths."""
    try:
        found = [(n, t, v if isinstance(v, int) else bytes(v)) for n, t, v in fields(memoryview(message))]
    except WireError:
        return message
    if not found:
        return message
    at = draw.randrange(len(found))
    number, kind, value = found[at]
    match draw.randrange(6):
        case 0:
            del found[at]
        case 1:
            found.insert(draw.randrange(len(found) + 1), found[at])
        case 2:
            draw.shuffle(found)
        case 3:
            found[at] = (draw.choice((0, number + 1, 15, 2**28)), kind, value)
        case 4:
            found[at] = (number, 0, draw.choice(EXTREMES))
        case _:
            inner = _fields(draw, value, depth - 1) if isinstance(value, bytes) and depth else value
            found[at] = (number, kind, inner if inner != value else _other(draw, value))
    return b"".join(_field(*each) for each in found)


def _other(draw: random.Random, value: int | bytes) -> int | bytes:
    if isinstance(value, int):
        return draw.choice(EXTREMES)
    return draw.choice((b"", value + b"\0", value[:-1], b"\xff" * 11, draw.randbytes(min(len(value), 64)), value * 3))


def _field(number: int, kind: int, value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return length_header(number, len(value)) + value if kind == LENGTH else varint(number << 3 | kind) + value
    return varint(number << 3) + varint(value % 2**64)


def _flip(draw: random.Random, message: bytes, _: Sequence[bytes]) -> bytes:
    if not message:
        return message
    at = draw.randrange(len(message))
    return message[:at] + bytes([message[at] ^ 1 << draw.randrange(8)]) + message[at + 1 :]


def _truncate(draw: random.Random, message: bytes, _: Sequence[bytes]) -> bytes:
    return message[: draw.randrange(len(message) + 1)]


def _insert(draw: random.Random, message: bytes, _: Sequence[bytes]) -> bytes:
    at = draw.randrange(len(message) + 1)
    return message[:at] + draw.choice((draw.randbytes(8), varint(draw.choice(EXTREMES)))) + message[at:]


def _splice(draw: random.Random, message: bytes, corpus: Sequence[bytes]) -> bytes:
    other = draw.choice(corpus)
    return message[: draw.randrange(len(message) + 1)] + other[draw.randrange(len(other) + 1) :]


def _repeat(draw: random.Random, message: bytes, _: Sequence[bytes]) -> bytes:
    start = draw.randrange(len(message) + 1)
    return message[:start] + message[start : start + 40] * draw.randint(2, 9) + message[start:]


def _noise(draw: random.Random, message: bytes, _: Sequence[bytes]) -> bytes:
    return draw.randbytes(draw.randrange(200))


_RAW = (_flip, _flip, _truncate, _insert, _splice, _repeat, _noise)
