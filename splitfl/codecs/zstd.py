"""Zstandard (RFC 8878) for payloads: an optional package, and a bound on what comes out."""

from __future__ import annotations

from typing import Any

from splitfl.codecs.packing import CodecError

LEVEL = 1
"""The fastest of the usual levels: activations gain little from higher ones."""


def require() -> Any:
    """The module. Raises CodecError where it is not installed."""
    try:
        import zstandard
    except ImportError:
        raise CodecError('codec zstd needs the package zstandard: pip install "splitfl[zstd]"') from None
    return zstandard


def compressed(data: memoryview) -> bytes:
    """`data` in one Zstandard frame that states its size."""
    made: bytes = require().ZstdCompressor(level=LEVEL).compress(data)
    return made


def decompressed(data: memoryview, size: int) -> memoryview | None:
    """The `size` bytes in `data`, or None where it does not hold exactly so many; never reserves more than `size`."""
    module = require()
    try:
        if module.frame_content_size(data) != size:
            return None
        made = module.ZstdDecompressor().decompress(data, max_output_size=size)
    except module.ZstdError:
        return None
    return memoryview(made) if len(made) == size else None
