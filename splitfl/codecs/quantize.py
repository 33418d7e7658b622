"""Eight bits per element: affine quantization with a scale and an offset per group.

    q = round((x - offset) / scale),  x is about offset + scale * q,  q in 0..255

The offset is the smallest value of the group, so the zeros that a ReLU leaves stay exactly zero. (Affine quantization
as in Jacob et al. 2018, arXiv:1712.05877, section 2.1, with a float offset in place of an integer zero point.)
"""

from __future__ import annotations

import torch

from splitfl.codecs.packing import Codec, CodecError, Groups, Packed
from splitfl.codecs.spec import spec_of

LEVELS = 255
"""Steps between the smallest and the largest value of a group."""

SMALLEST_GROUP = 32
"""Elements below which a group is not worth its 8 bytes of scale and offset."""


def channel_groups(shape: tuple[int, ...]) -> Groups:
    """A group per channel (axis 1) of an image or a sequence, per sample (axis 0) of a matrix, else one.

    One group for all where groups would be smaller than `SMALLEST_GROUP`.
    """
    axis = 1 if len(shape) > 2 else 0
    elements = torch.Size(shape).numel()
    if len(shape) < 2 or elements == 0 or elements // shape[axis] < SMALLEST_GROUP:
        return Groups(0, 1)
    return Groups(axis, shape[axis])


def _quantize(tensor: torch.Tensor) -> Packed:
    values = tensor.to(torch.float32)
    groups = channel_groups(tuple(tensor.shape))
    low, high = _extremes(values, groups)
    span = high - low
    if not torch.isfinite(span).all():
        raise CodecError(
            f"codec int8 cannot carry infinite or NaN values, or a range beyond float32, found in a tensor "
            f"{spec_of(tensor)}"
        )
    scales = span / LEVELS
    # A constant group has scale 0: all its elements are its offset, exactly.
    steps = (values - low) / torch.where(scales > 0, scales, 1.0)
    levels = steps.round_().clamp_(0, LEVELS).to(torch.uint8)
    return Packed(levels, scales.reshape(-1), low.reshape(-1), groups)


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


def _dequantize(packed: Packed) -> torch.Tensor:
    payload, scales, offsets, groups = packed
    if scales is None or offsets is None:
        raise CodecError("a packed tensor came without its scales and offsets")
    along = [groups.number if axis == groups.axis else 1 for axis in range(payload.dim())]
    return payload.to(torch.float32).mul_(scales.reshape(along)).add_(offsets.reshape(along))


INT8 = Codec(
    name="int8",
    number=4,
    dtype=torch.uint8,
    encode=_quantize,
    decode=_dequantize,
    scaled=True,
    shifted=True,
    groups=channel_groups,
)
"""A quarter of float32's bytes; relative error about 4e-3 on activations, 5e-2 on gradients."""
