"""Codecs: what is left out, the format of what is sent, and compression, one after the other.

    topk:0.1+int8+zstd     the largest tenth, in 8 bits each, compressed
    └ leave out ┘└format┘└compress┘

    columns+int8           what is not zero for all samples, in 8 bits each

Each part is optional; `feedback` beside `topk` or `randk` keeps what was left out for the next time (see `feedback`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from splitfl.codecs import zstd
from splitfl.codecs.cast import BF16, FP8, FP16, FP32
from splitfl.codecs.packing import TARGET_PREFIX, Codec, CodecError
from splitfl.codecs.quantize import INT4, INT8
from splitfl.codecs.sparse import LARGEST, Sparsifier, thinnable
from splitfl.codecs.spec import Spec

RAW = "raw"

FORMATS: Mapping[str, Codec] = {each.name: each for each in (FP32, BF16, FP16, FP8, INT8, INT4)}
"""The number formats by name."""

SPARSIFIERS = ("topk", "randk")
COLUMNS = "columns"
ZSTD, FEEDBACK = "zstd", "feedback"

FEWEST = 64
"""Elements below which a tensor is not thinned: biases and counters are small, and matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A codec. `keep`: what leaves elements out; `format`: of what is sent; the others: as in its name."""

    name: str
    keep: Sparsifier | None = None
    columns: bool = False
    format: Codec | None = None
    compress: bool = False
    feedback: bool = False

    def thins(self, name: str, spec: Spec) -> Sparsifier | None:
        """What leaves elements of such a tensor out: nothing for labels, other numbers than floats, small tensors."""
        thins = self.keep is not None and self.keep.kept(spec.elements) < spec.elements
        return self.keep if thins and spec.elements >= FEWEST and _may_thin(name, spec) else None

    def narrows(self, name: str, spec: Spec) -> bool:
        """Whether columns of zeros of such a tensor are left out, where that makes it smaller."""
        return self.columns and len(spec.shape) > 1 and spec.elements > 0 and _may_thin(name, spec)

    def packs(self, name: str, spec: Spec) -> Codec | None:
        """The format in which such a tensor travels, or None: bit for bit."""
        return self.format if self.format is not None and self.format.applies(name, spec) else None


def _may_thin(name: str, spec: Spec) -> bool:
    return spec.elements < LARGEST and thinnable(spec.dtype) and not name.startswith(TARGET_PREFIX)


def parse(text: str) -> Chain | None:
    """The codec that `text` names; None for `raw`. Raises CodecError, naming the part that is wrong."""
    if text == RAW:
        return None
    keep: Sparsifier | None = None
    format: Codec | None = None
    columns, flags = False, set[str]()
    for part in text.split("+"):
        kind, _, share = part.partition(":")
        first = keep is None and not columns and format is None and not flags
        if kind in SPARSIFIERS and first:
            keep = Sparsifier(kind, _share(part, share))
        elif part == COLUMNS and first:
            columns = True
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
    return Chain(
        name=text, keep=keep, columns=columns, format=format, compress=ZSTD in flags, feedback=FEEDBACK in flags
    )


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
    return f"raw, or topk:SHARE or randk:SHARE or columns, then one of {', '.join(FORMATS)}, then zstd, joined by +"
