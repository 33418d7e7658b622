"""Eight or four bits per element: affine quantization with a scale and an offset per group.

    q = round((x - offset) / scale),  x is about offset + scale * q,  q in 0..255 (int8) or 0..15 (int4)

The offset is the smallest value of the group, so the zeros that a ReLU leaves stay exactly zero. (Affine quantization
as in Jacob et al. 2018, arXiv:1712.05877, section 2.1, with a float offset in place of an integer zero point.) Of int4
two elements share a byte, the first in its lower half.
"""

from __future__ import annotations

from functools import partial

import torch

from splitfl.codecs.packing import Codec, CodecError, Groups, Packed, Shape
from splitfl.codecs.spec import spec_of

SMALLEST_GROUP = 32
"""Elements below which a group is not worth its 8 bytes of scale and offset."""


def channel_groups(shape: Shape) -> Groups:
    """A group per channel (axis 1) of an image or a sequence, per sample (axis 0) of a matrix, else one.

    One group for all where groups would be smaller than `SMALLEST_GROUP`.
    """
    axis = 1 if len(shape) > 2 else 0
    elements = torch.Size(shape).numel()
    if len(shape) < 2 or elements == 0 or elements // shape[axis] < SMALLEST_GROUP:
        return Groups(0, 1)
    return Groups(axis, shape[axis])


def _quantize(tensor: torch.Tensor, *, name: str, levels: int) -> Packed:
    """One unsigned byte per element: `levels` steps between the smallest and the largest value of a group."""
    values = tensor.to(torch.float32)
    groups = channel_groups(tuple(tensor.shape))
    low, high = _extremes(values, groups)
    span = high - low
    if not torch.isfinite(span).all():
        raise CodecError(
            f"codec {name} cannot carry infinite or NaN values, or a range beyond float32, found in a tensor "
            f"{spec_of(tensor)}"
        )
    scales = span / levels
    # A constant group has scale 0: all its elements are its offset, exactly.
    steps = (values - low) / torch.where(scales > 0, scales, 1.0)
    quantized = steps.round_().clamp_(0, levels).to(torch.uint8)
    return Packed(quantized, scales.reshape(-1), low.reshape(-1), groups)


def _extremes(values: torch.Tensor, groups: Groups) -> tuple[torch.Tensor, torch.Tensor]:
    """Smallest and largest value of each group, in a shape that broadcasts against `values`."""
    if values.numel() == 0:
        zero = values.new_zeros(1)
        return zero, zero
    if groups.number == 1:
        low, high = torch.aminmax(values)
        return low, high
    others = [axis for axis in range(values.dim()) if axis != groups.axis]
    return values.amin(dim=others, keepdim=True), values.amax(dim=others, keepdim=True)


def _dequantize(packed: Packed, shape: Shape) -> torch.Tensor:
    payload, scales, offsets, groups = packed
    if scales is None or offsets is None:
        raise CodecError("a packed tensor came without its scales and offsets")
    along = [groups.number if axis == groups.axis else 1 for axis in range(len(shape))]
    return payload.to(torch.float32).mul_(scales.reshape(along)).add_(offsets.reshape(along))


def _quantize_halves(tensor: torch.Tensor) -> Packed:
    quantized, scales, offsets, groups = _quantize(tensor, name="int4", levels=15)
    flat = torch.nn.functional.pad(quantized.reshape(-1), (0, quantized.numel() % 2))
    return Packed(flat[0::2] | flat[1::2] << 4, scales, offsets, groups)


def _dequantize_halves(packed: Packed, shape: Shape) -> torch.Tensor:
    halves = torch.stack((packed.payload & 0x0F, packed.payload >> 4), dim=1).reshape(-1)
    whole = halves[: torch.Size(shape).numel()].reshape(shape)
    return _dequantize(packed._replace(payload=whole), shape)


INT8 = Codec(
    name="int8",
    number=4,
    dtype=torch.uint8,
    encode=partial(_quantize, name="int8", levels=255),
    decode=_dequantize,
    scaled=True,
    shifted=True,
    groups=channel_groups,
)
"""A quarter of float32's bytes; relative error about 4e-3 on activations, 5e-2 on gradients."""

INT4 = Codec(
    name="int4",
    number=5,
    dtype=torch.uint8,
    encode=_quantize_halves,
    decode=_dequantize_halves,
    scaled=True,
    shifted=True,
    groups=channel_groups,
    per_byte=2,
)
"""An eighth of float32's bytes; relative error about 7e-2 on activations."""
