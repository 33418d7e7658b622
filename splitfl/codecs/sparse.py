"""Leaving elements out: only some are sent, the others arrive as zero.

    topk   those of the largest magnitude, in every tensor anew
    randk  some at random: positions start, start + stride, start + 2 stride, ... around the flat tensor, so that a
           message says them in two numbers

Top-k as in arXiv 1704.05021, section 3; random-k as in 1809.07599, section 2. Without error feedback both lose what
they leave out; neither scales what it keeps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

LARGEST = 1 << 31
"""Elements that a tensor may have to be thinned: positions are numbers of 32 bits, and products of two fit in 63."""

POSITION_BYTES = 4


class Walk(NamedTuple):
    """Positions (start + i * stride) mod elements, for i = 0, 1, ...; stride and elements have no common factor."""

    stride: int
    start: int


def thinnable(dtype: torch.dtype) -> bool:
    """Whether something can be left out of a tensor of this dtype: floats of two bytes or more.

    torch neither sorts nor indexes all of the 8-bit floats, and one of them has no zero.
    """
    return dtype.is_floating_point and dtype.itemsize > 1


@dataclass(frozen=True, slots=True)
class Sparsifier:
    """`topk` or `randk` with the share of a tensor's elements that it keeps, at least one."""

    name: str
    share: float

    def kept(self, elements: int) -> int:
        """How many of `elements` elements are sent."""
        return min(elements, max(1, math.ceil(self.share * elements)))

    def choose(self, values: torch.Tensor, draw: int) -> tuple[torch.Tensor, Walk | None]:
        """Positions of what is kept of the flat tensor `values`, and the walk that gives them, if one does.

        `draw` decides what is random. Of equal magnitudes the first are kept.
        """
        elements = values.numel()
        count = self.kept(elements)
        if self.name == "topk":
            largest = torch.argsort(values.abs(), descending=True, stable=True)[:count]
            return largest.sort().values, None
        walk = _walk(elements, draw)
        return positions_of(walk, elements, count), walk


def _walk(elements: int, draw: int) -> Walk:
    """A stride and a start in 0 .. elements - 1, from `draw`."""
    start, stride = draw % elements, draw // elements % elements
    while math.gcd(stride, elements) != 1:
        stride += 1
    return Walk(stride, start)


def positions_of(walk: Walk, elements: int, count: int) -> torch.Tensor:
    """The first `count` positions of a walk, in its own order."""
    return (walk.start + torch.arange(count) * walk.stride) % elements


def as_bitmap(elements: int, count: int) -> bool:
    """Whether positions travel as one bit for each element: that is shorter than a number for each that is kept."""
    return -(-elements // 8) <= POSITION_BYTES * count


def positions_size(elements: int, count: int) -> int:
    """Bytes that `write_positions` makes of `count` positions."""
    return -(-elements // 8) if as_bitmap(elements, count) else POSITION_BYTES * count


def write_positions(positions: torch.Tensor, elements: int) -> bytes:
    """Ascending positions as a bitmap, lowest bit first, or as unsigned numbers of 32 bits."""
    if not as_bitmap(elements, len(positions)):
        return positions.to(torch.uint32).numpy().tobytes()
    bits = torch.zeros(-(-elements // 8) * 8, dtype=torch.uint8)
    bits[positions] = 1
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)
    return (bits.reshape(-1, 8) * weights).sum(dim=1, dtype=torch.uint8).numpy().tobytes()


def read_positions(data: memoryview, elements: int, count: int) -> torch.Tensor | None:
    """The inverse of `write_positions`; None where `data` holds no `count` ascending positions below `elements`."""
    if not as_bitmap(elements, count):
        if len(data) != POSITION_BYTES * count:
            return None
        positions = torch.frombuffer(bytearray(data), dtype=torch.uint32).to(torch.int64)
        ascending = bool((positions[1:] > positions[:-1]).all())
        return positions if ascending and int(positions[-1]) < elements else None
    if len(data) != -(-elements // 8):
        return None
    raw = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    bits = (raw.unsqueeze(1) >> torch.arange(8, dtype=torch.uint8)) & 1
    positions = bits.reshape(-1).nonzero().reshape(-1)
    return positions if len(positions) == count and int(positions[-1]) < elements else None
