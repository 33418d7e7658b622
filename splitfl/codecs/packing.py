"""What a number format is: a name, a way to pack a tensor of floats into fewer bytes, and the way back.

A format is a frozen value without memory. `chain` composes formats with what leaves elements out, and with compression.
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

Shape = tuple[int, ...]


class CodecError(SplitflError):
    """A codec that does not exist, or a tensor that a codec cannot carry."""


class Groups(NamedTuple):
    """How the elements of a tensor share scales: `number` groups along `axis`, or one group for all."""

    axis: int
    number: int


class Packed(NamedTuple):
    """A tensor in a format: `payload` as `Codec.payload` says; `scales` and `offsets` are float32, one per group."""

    payload: torch.Tensor
    scales: torch.Tensor | None = None
    offsets: torch.Tensor | None = None
    groups: Groups = Groups(0, 1)


def one_group(shape: Shape) -> Groups:
    """All elements share one scale, whatever the shape."""
    del shape
    return Groups(0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """A number format.

    name      as the user writes it
    number    its number in a frame
    dtype     of the payload
    encode    tensor -> Packed; raises CodecError for values that it cannot carry
    decode    Packed and the tensor's shape -> tensor of floats, which the caller casts to the dtype that the tensor had
    scaled    a float32 scale per group travels along; `shifted`: an offset too
    groups    the groups of a tensor of a given shape
    per_byte  elements in a byte of the payload, where there are several: it is then uint8, flat, padded with zeros
    """

    name: str
    number: int
    dtype: torch.dtype
    encode: Callable[[torch.Tensor], Packed]
    decode: Callable[[Packed, Shape], torch.Tensor]
    scaled: bool = False
    shifted: bool = False
    groups: Callable[[Shape], Groups] = one_group
    per_byte: int = 1

    def applies(self, name: str, spec: Spec) -> bool:
        """Whether a tensor travels in this format: real floats that it makes smaller, and that are no labels."""
        smaller = spec.dtype.is_floating_point and spec.dtype.itemsize * self.per_byte > self.dtype.itemsize
        return smaller and not name.startswith(TARGET_PREFIX)

    def payload(self, spec: Spec) -> Spec:
        """Dtype and shape of the payload of a tensor of `spec`."""
        if self.per_byte == 1:
            return Spec(self.dtype, spec.shape)
        return Spec(self.dtype, (-(-spec.elements // self.per_byte),))
