"""Codecs: what is left out, the format of what is sent, and compression, one after the other.

    topk:0.1+int8+zstd     the largest tenth, in 8 bits each, compressed
    └ leave out ┘└format┘└compress┘

Each part is optional; `feedback` beside `topk` or `randk` keeps what was left out for the next time (see `feedback`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from splitfl.codecs import zstd
from splitfl.codecs.cast import BF16, FP8, FP16, FP32
from splitfl.codecs.packing import TARGET_PREFIX, Codec, CodecError
from splitfl.codecs.quantize import INT4, INT8
from splitfl.codecs.sparse import LARGEST, Sparsifier
from splitfl.codecs.spec import Spec

RAW = "raw"

FORMATS: Mapping[str, Codec] = {each.name: each for each in (FP32, BF16, FP16, FP8, INT8, INT4)}
"""The number formats by name."""

SPARSIFIERS = ("topk", "randk")
ZSTD, FEEDBACK = "zstd", "feedback"

FEWEST = 64
"""Elements below which a tensor is not thinned: biases and counters are small, and matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A codec. `keep`: what leaves elements out; `format`: of what is sent; `compress`, `feedback`: as in its name."""

    name: str
    keep: Sparsifier | None = None
    format: Codec | None = None
    compress: bool = False
    feedback: bool = False

    def thins(self, name: str, spec: Spec) -> Sparsifier | None:
        """What leaves elements of such a tensor out: nothing for labels, other numbers than floats, small tensors."""
        fits = spec.dtype.is_floating_point and FEWEST <= spec.elements < LARGEST and not name.startswith(TARGET_PREFIX)
        thins = fits and self.keep is not None and self.keep.kept(spec.elements) < spec.elements
        return self.keep if thins else None

    def packs(self, name: str, spec: Spec) -> Codec | None:
        """The format in which such a tensor travels, or None: bit for bit."""
        return self.format if self.format is not None and self.format.applies(name, spec) else None


def parse(text: str) -> Chain | None:
    """The codec that `text` names; None for `raw`. Raises CodecError, naming the part that is wrong."""
    if text == RAW:
        return None
    keep: Sparsifier | None = None
    format: Codec | None = None
    flags: set[str] = set()
    for part in text.split("+"):
        kind, _, share = part.partition(":")
        if kind in SPARSIFIERS and keep is None and format is None and not flags:
            keep = Sparsifier(kind, _share(part, share))
        elif part in FORMATS and format is None and not flags:
            format = FORMATS[part]
        elif part in (ZSTD, FEEDBACK) and part not in flags:
            flags.add(part)
        else:
            raise CodecError(f"{text!r}: part {part!r}, expected {expected()}")
    if FEEDBACK in flags and keep is None:
        raise CodecError(f"{text!r}: feedback is for codecs that leave elements out, expected topk or randk before it")
    if ZSTD in flags:
        zstd.require()
    return Chain(name=text, keep=keep, format=format, compress=ZSTD in flags, feedback=FEEDBACK in flags)


def _share(part: str, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise CodecError(f"{part!r}: expected a share between 0 and 1, such as {part.partition(':')[0]}:0.1")
    return share


def expected() -> str:
    """What a codec's name may be, for messages."""
    return f"raw, or topk:SHARE or randk:SHARE, then one of {', '.join(FORMATS)}, then zstd, joined by +"
