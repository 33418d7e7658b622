"""Envelopes: the messages of a session as bytes, equal to those of protobuf's classes for `splitfl.v1.Envelope`.

An envelope holds one control message (`control`) or one part of a bundle of tensors (`part`).
"""

from __future__ import annotations

from splitfl.codecs.frame import Buffer
from splitfl.codecs.proto3 import LENGTH, WireError, fields
from splitfl.transport.base import EnvelopeError
from splitfl.transport.control import CONTROLS, decode_control, encode_control
from splitfl.transport.messages import Control
from splitfl.transport.part import PART, Part, bundle_size, decode_part, encode_parts

__all__ = ["EnvelopeError", "Part", "bundle_size", "decode", "encode_control", "encode_parts"]


def decode(envelope: Buffer) -> Control | Part:
    """The message in an envelope; a part's payload shares its memory. Raises EnvelopeError, and nothing else."""
    try:
        contents = {
            number: value
            for number, wire_type, value in fields(memoryview(envelope).cast("B"))
            if wire_type == LENGTH and not isinstance(value, int)
        }
        known = [number for number in contents if number in CONTROLS or number == PART]
        if len(known) != 1:
            expected = sorted([*CONTROLS, PART])
            raise EnvelopeError(f"an envelope with the contents {list(contents)}, expected one of {expected}")
        body = contents[known[0]]
        return decode_part(body) if known[0] == PART else decode_control(known[0], body)
    except EnvelopeError:
        raise
    except WireError as error:
        raise EnvelopeError(f"not an envelope: {error}") from None
