"""What is known of a tensor before its values: dtype and shape, and the number of each dtype in a frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import NamedTuple

import torch

DTYPE_NUMBERS: Mapping[torch.dtype, int] = {
    torch.float64: 1,
    torch.float32: 2,
    torch.float16: 3,
    torch.bfloat16: 4,
    torch.float8_e4m3fn: 5,
    torch.float8_e4m3fnuz: 6,
    torch.float8_e5m2: 7,
    torch.float8_e5m2fnuz: 8,
    torch.float8_e8m0fnu: 9,
    torch.int8: 10,
    torch.int16: 11,
    torch.int32: 12,
    torch.int64: 13,
    torch.uint8: 14,
    torch.uint16: 15,
    torch.uint32: 16,
    torch.uint64: 17,
    torch.bool: 18,
    torch.complex64: 19,
    torch.complex128: 20,
}
"""The dtypes that can travel, numbered as `DType` in proto/splitfl/v1/frame.proto."""

DTYPES: Mapping[int, torch.dtype] = {number: dtype for dtype, number in DTYPE_NUMBERS.items()}


class Spec(NamedTuple):
    """The dtype and shape of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def __str__(self) -> str:
        return f"{dtype_name(self.dtype)}{list(self.shape)}"


def spec_of(tensor: torch.Tensor) -> Spec:
    """The spec that `tensor` has."""
    return Spec(tensor.dtype, tuple(tensor.shape))


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype as a user writes it: `float32`."""
    return str(dtype).removeprefix("torch.")


def dtype_names(dtypes: Iterable[torch.dtype]) -> str:
    """The names of several dtypes, for a message."""
    return ", ".join(map(dtype_name, dtypes))
