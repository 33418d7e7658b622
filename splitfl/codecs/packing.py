"""What a codec is: a name, a way to pack a tensor of floats into fewer bytes, and the way back.

A codec is a frozen value without memory. One that needs memory (error feedback) will take its state as an argument and
return the next state, so that the state belongs to whoever sends and can be saved with a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from splitfl.codecs.spec import Spec
from splitfl.errors import SplitflError

TARGET_PREFIX = "target:"
"""Tensors of this name carry labels: they always travel as they are."""


class CodecError(SplitflError):
    """A codec that does not exist, or a tensor that a codec cannot carry."""


class Groups(NamedTuple):
    """How the elements of a tensor share scales: `number` groups along `axis`, or one group for all."""

    axis: int
    number: int


class Packed(NamedTuple):
    """A tensor after a codec: `payload` has the tensor's shape; `scales` and `offsets` are float32, one per group."""

    payload: torch.Tensor
    scales: torch.Tensor | None = None
    offsets: torch.Tensor | None = None
    groups: Groups = Groups(0, 1)


def one_group(shape: tuple[int, ...]) -> Groups:
    """All elements share one scale, whatever the shape."""
    del shape
    return Groups(0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """A codec.

    name      as the user writes it
    number    its number in a frame
    dtype     of the payload
    encode    tensor -> Packed; raises CodecError for values that it cannot carry
    decode    Packed -> tensor of floats, which the caller casts to the dtype that the tensor had
    scaled    a float32 scale per group travels along; `shifted`: an offset too
    groups    the groups of a tensor of a given shape
    """

    name: str
    number: int
    dtype: torch.dtype
    encode: Callable[[torch.Tensor], Packed]
    decode: Callable[[Packed], torch.Tensor]
    scaled: bool = False
    shifted: bool = False
    groups: Callable[[tuple[int, ...]], Groups] = one_group

    def applies(self, name: str, spec: Spec) -> bool:
        """Whether a tensor travels in this codec: real floats that it makes smaller, and that are no labels."""
        smaller = spec.dtype.is_floating_point and spec.dtype.itemsize > self.dtype.itemsize
        return smaller and not name.startswith(TARGET_PREFIX)
