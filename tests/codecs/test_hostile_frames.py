"""Bytes from outside that are no frame: refused, in one kind of error, before they cost memory."""

import contextlib
import pickle
import tracemalloc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitfl.codecs import CODECS, FrameError, frame
from splitfl.codecs.proto3 import bytes_field, length_header, uint_field, varint


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
    "scales that fit no axis": tensor_bytes(
        codec=4, shape=(2, 3), axis=1, scales=b"\0" * 8, offsets=b"\0" * 8, payload=b"\0" * 6
    ),
    "a scale for every row where one is for all": tensor_bytes(
        codec=3, shape=(2, 3), scales=b"\0\0\x80?" * 2, payload=b"\0" * 12
    ),
    "an axis of no size, and no scale": tensor_bytes(codec=3, shape=(0, 3), payload=b""),
    "an axis that is not there": tensor_bytes(
        codec=4, shape=(2,), axis=7, scales=b"\0" * 8, offsets=b"\0" * 8, payload=b"\0" * 2
    ),
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


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_frame_errors(noise):
    with contextlib.suppress(FrameError):
        frame.decode(noise)


VALID = {
    name: b"".join(
        frame.encode({"x": torch.arange(12.0).reshape(1, 3, 4), "n": torch.tensor(3), "b": torch.tensor([True])}, codec)
    )
    for name, codec in CODECS.items()
}


@given(
    st.sampled_from(list(VALID)), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4), st.data()
)
def test_mutated_frames_raise_nothing_but_frame_errors(codec, changes, data):
    mutated = bytearray(VALID[codec])
    for at, value in changes:
        mutated[at % len(mutated)] = value
    cut = data.draw(st.integers(0, len(mutated)))
    with contextlib.suppress(FrameError):
        decoded = frame.decode(mutated[:cut])
        assert sum(tensor.nbytes for tensor in decoded.values()) <= 8 * len(mutated)
