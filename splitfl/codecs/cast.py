"""Codecs that cast: float32, bfloat16, and float16 scaled so that small gradients do not vanish.

Relative error about 2e-3 in bfloat16 and 2e-4 in scaled float16. A plain cast to float16 is not offered: gradients near
convergence fall below its smallest number.
"""

from __future__ import annotations

import torch

from splitfl.codecs.packing import Codec, CodecError, Packed
from splitfl.codecs.spec import spec_of

HALF_EXPONENT = 15
"""The largest magnitude of a tensor is brought just below 2**15: the top of float16 less one bit of headroom."""

SMALLEST_EXPONENT = -126
"""Scales stay normal float32 numbers, so that dividing by one is exact."""


def _to_float32(tensor: torch.Tensor) -> Packed:
    return Packed(tensor.to(torch.float32))


def _to_bfloat16(tensor: torch.Tensor) -> Packed:
    return Packed(tensor.to(torch.bfloat16))


def _payload(packed: Packed) -> torch.Tensor:
    return packed.payload


def _to_scaled_float16(tensor: torch.Tensor) -> Packed:
    values = tensor.to(torch.float32)
    largest = values.abs().amax() if values.numel() else values.new_zeros(())
    if not torch.isfinite(largest):
        raise CodecError(f"codec fp16 cannot carry infinite or NaN values, found in a tensor {spec_of(tensor)}")
    # The scale is a power of two: scaling moves the exponent only, and rounding is float16's own.
    exponent = torch.frexp(largest).exponent.clamp(min=SMALLEST_EXPONENT + HALF_EXPONENT) - HALF_EXPONENT
    scale = torch.ldexp(values.new_ones(()), exponent)
    return Packed((values / scale).to(torch.float16), scales=scale.reshape(1))


def _from_scaled_float16(packed: Packed) -> torch.Tensor:
    return packed.payload.to(torch.float32) * _require(packed.scales).reshape(())


def _require(metadata: torch.Tensor | None) -> torch.Tensor:
    if metadata is None:
        raise CodecError("a packed tensor came without its scale")
    return metadata


FP32 = Codec(name="fp32", number=1, dtype=torch.float32, encode=_to_float32, decode=_payload)
"""float64 as float32; every smaller dtype as it is."""

BF16 = Codec(name="bf16", number=2, dtype=torch.bfloat16, encode=_to_bfloat16, decode=_payload)
"""The range of float32 with 8 bits of precision; infinite and NaN values survive."""

FP16 = Codec(
    name="fp16", number=3, dtype=torch.float16, encode=_to_scaled_float16, decode=_from_scaled_float16, scaled=True
)
"""11 bits of precision; one scale per tensor, from its largest magnitude."""
