"""Feature dropout: a random share of an activation's features crosses the cut, and so does of its gradient.

A feature is a column of the activation seen as (samples, features), as each micro-batch has it. It is kept with a
probability p in proportion to its spread over the samples (the standard deviation) and then scaled by 1 / p, so that
the activation is what it was, in expectation; autograd masks and scales the gradient alike. What is dropped is a column
of zeros, which the codec `columns` leaves out. (SplitFC, arXiv 2307.10805, adaptive feature-wise dropout.)

Spreads are compared after each channel (axis 1 of an image or a sequence) was divided by its range, as there; a matrix
has one range. Probabilities are in proportion up to 1, and what is beyond goes to the other features, so that they
add up to share x features. Three rules are ours, so that nothing is left out with certainty:

- a feature that is the same for all samples, but not zero, counts as if it had a tenth of the mean spread;
- where no feature varies (one sample; all samples alike), the magnitude takes the place of the spread;
- a feature of zeros alone is exact whether it is sent or not: it is not kept, and leaves its share to the others.
"""

from __future__ import annotations

import torch

from splitfl.model.transform import Transform

FLOOR = 0.1
"""Least spread that a feature counts with, as a share of the mean: what is seldom kept is scaled up by as much."""


def feature_dropout(share: float) -> Transform:
    """The transform that keeps a `share` of the features, in expectation: above 0, and 1 keeps all as they are."""
    name = f"feature-dropout:{float(share)!r}"  # every digit: both ends compare it
    if share == 1:
        return Transform(name=name, both_ways=True)
    return Transform(
        name=name, sent=lambda activation: dropped(activation, share), received=masked, both_ways=True, share=share
    )


def dropped(activation: torch.Tensor, share: float) -> torch.Tensor:
    """`activation`, (samples, *shape), with each feature times 1 / p with probability p, else times 0.

    Draws from the default generator. An activation that is not finite is passed on: whoever has the loss will say so.
    """
    if not activation.numel() or not torch.isfinite(activation.detach()).all():
        return activation
    keep = keep_probabilities(activation.detach(), share)
    kept = torch.rand(keep.shape, dtype=keep.dtype, device=keep.device) < keep
    scale = torch.where(kept, 1 / keep, 0.0).to(activation.dtype)
    return activation * scale.reshape(activation.shape[1:])


def masked(activation: torch.Tensor) -> torch.Tensor:
    """`activation` as it is; the gradient of features that are zero for all samples is zero, and need not be sent.

    Who dropped a feature multiplies its gradient by 0 anyway.
    """
    used = (activation.detach() != 0).any(dim=0)
    return activation * used.to(activation.dtype)


def keep_probabilities(activation: torch.Tensor, share: float) -> torch.Tensor:
    """The probability of each feature of a finite `activation`, (features,) in float64.

    They add up to share x features, or to the number of features that are not zero, where there are fewer.
    """
    columns = activation.reshape(len(activation), -1)
    used = (columns != 0).any(dim=0)
    weights = _spread(activation)
    if not weights.any():
        weights = columns.abs().mean(dim=0, dtype=torch.float64)
    weights = weights.clamp(min=FLOOR * float(weights[used].mean()) if bool(used.any()) else 0.0)
    return fill(torch.where(used, weights, 0.0), share * columns.shape[1])


def fill(weights: torch.Tensor, total: float) -> torch.Tensor:
    """Probabilities in proportion to `weights`, up to 1 each, that add up to `total`, where so many are above 0.

    The largest are set to 1 until what is left of `total`, shared out in proportion, makes no other larger than that.
    """
    above = weights > 0
    if int(above.sum()) <= total:
        return above.to(weights.dtype)
    ordered = (weights / weights.max()).sort(descending=True).values
    rest = ordered.flip(0).cumsum(0).flip(0)  # each weight and all smaller ones
    left = total - torch.arange(len(weights), dtype=weights.dtype, device=weights.device)
    full = int((left * ordered > rest).sum())
    level = left[full] / rest[full]
    return (weights / weights.max() * level).clamp(max=1.0)


def _spread(activation: torch.Tensor) -> torch.Tensor:
    """The standard deviation of each feature over the samples, in ranges of its channel: (features,) in float64."""
    values = activation.to(torch.promote_types(activation.dtype, torch.float32))
    others = [axis for axis in range(values.dim()) if axis != 1 or values.dim() == 2]
    span = values.amax(dim=others, keepdim=True) - values.amin(dim=others, keepdim=True)
    values = values / torch.where(span > 0, span, 1.0)
    return values.reshape(len(values), -1).std(dim=0, correction=0).to(torch.float64)
