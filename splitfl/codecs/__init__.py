"""Tensors to bytes and back: `frame` is the one binary format, a codec makes what travels in it smaller."""

from splitfl.codecs.chain import FORMATS, Chain, parse
from splitfl.codecs.header import FrameError, Limits
from splitfl.codecs.packing import Codec, CodecError
from splitfl.codecs.roles import CODECS, Codecs, codec
from splitfl.codecs.spec import Spec

__all__ = [
    "CODECS",
    "FORMATS",
    "Chain",
    "Codec",
    "CodecError",
    "Codecs",
    "FrameError",
    "Limits",
    "Spec",
    "codec",
    "parse",
]
