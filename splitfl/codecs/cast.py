"""Formats that cast: float32, bfloat16, and float16 and float8 scaled so that small gradients do not vanish.

Relative error about 2e-3 in bfloat16, 2e-4 in scaled float16, 3e-2 in scaled float8. A plain cast to float16 is not
offered: gradients near convergence fall below its smallest number.
"""

from __future__ import annotations

from functools import partial

import torch

from splitfl.codecs.packing import Codec, CodecError, Packed, Shape
from splitfl.codecs.spec import spec_of

SMALLEST_EXPONENT = -126
"""Scales stay normal float32 numbers, so that dividing by one is exact."""


def _to_float32(tensor: torch.Tensor) -> Packed:
    return Packed(tensor.to(torch.float32))


def _to_bfloat16(tensor: torch.Tensor) -> Packed:
    return Packed(tensor.to(torch.bfloat16))


def _payload(packed: Packed, shape: Shape) -> torch.Tensor:
    del shape
    return packed.payload


def _to_scaled(tensor: torch.Tensor, *, name: str, dtype: torch.dtype, exponent: int) -> Packed:
    """The largest magnitude of the tensor is brought just below 2**exponent, then cast."""
    values = tensor.to(torch.float32)
    largest = values.abs().amax() if values.numel() else values.new_zeros(())
    if not torch.isfinite(largest):
        raise CodecError(f"codec {name} cannot carry infinite or NaN values, found in a tensor {spec_of(tensor)}")
    # The scale is a power of two: scaling moves the exponent only, and rounding is the dtype's own.
    power = torch.frexp(largest).exponent.clamp(min=SMALLEST_EXPONENT + exponent) - exponent
    scale = torch.ldexp(values.new_ones(()), power)
    return Packed((values / scale).to(dtype), scales=scale.reshape(1))


def _from_scaled(packed: Packed, shape: Shape) -> torch.Tensor:
    del shape
    if packed.scales is None:
        raise CodecError("a packed tensor came without its scale")
    return packed.payload.to(torch.float32) * packed.scales.reshape(())


FP32 = Codec(name="fp32", number=1, dtype=torch.float32, encode=_to_float32, decode=_payload)
"""float64 as float32; every smaller dtype as it is."""

BF16 = Codec(name="bf16", number=2, dtype=torch.bfloat16, encode=_to_bfloat16, decode=_payload)
"""The range of float32 with 8 bits of precision; infinite and NaN values survive."""

FP16 = Codec(
    name="fp16",
    number=3,
    dtype=torch.float16,
    encode=partial(_to_scaled, name="fp16", dtype=torch.float16, exponent=15),
    decode=_from_scaled,
    scaled=True,
)
"""11 bits of precision; one scale per tensor, from its largest magnitude, with one bit of headroom."""

FP8 = Codec(
    name="fp8",
    number=6,
    dtype=torch.float8_e4m3fn,
    encode=partial(_to_scaled, name="fp8", dtype=torch.float8_e4m3fn, exponent=8),
    decode=_from_scaled,
    scaled=True,
)
"""E4M3, 4 bits of precision; one scale per tensor. Magnitudes below 2**-17 of the largest vanish."""
