"""The mean of what clients hand over, tensor by tensor, over the clients that hold it (McMahan et al. 2017, FedAvg)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from splitfl.aggregation.buffers import largest
from splitfl.aggregation.values import AggregationError, Tensors, Update


def mean(updates: Iterable[Update], template: Mapping[str, torch.Tensor]) -> Tensors:
    """New values for every name in `template`: the sample-weighted mean over the updates that hold it.

    A name that nobody holds keeps the template's value. Integer tensors take the largest value, bool ones the logical
    "or"; every tensor keeps the template's dtype and shape. Updates are summed by ascending client id, so the same
    updates give the same bits whatever the order they come in.

    Raises AggregationError where the holders of a tensor have no samples between them.
    """
    ordered = sorted(updates, key=lambda update: update.client)
    result = {}
    for name, old in template.items():
        holders = [update for update in ordered if name in update.state]
        result[name] = combine(name, holders).to(old.dtype) if holders else old.detach().clone()
    return result


def combine(name: str, holders: Sequence[Update]) -> torch.Tensor:
    """One tensor over its `holders`, in their order: floating point in double precision, integers as they are."""
    values = [update.state[name].detach().cpu() for update in holders]
    if not (values[0].is_floating_point() or values[0].is_complex()):
        return largest(values)
    total = sum(update.samples for update in holders)
    if total <= 0:
        names = ", ".join(update.name for update in holders)
        raise AggregationError(f"{name}: its holders ({names}) trained on 0 samples, expected 1 or more between them")
    sums = torch.zeros(values[0].shape, dtype=wide(values[0].dtype))
    for update, value in zip(holders, values, strict=True):
        # A holder without samples may hold anything, NaN included, and 0 x NaN is NaN.
        if update.samples:
            sums += value.to(sums.dtype) * (update.samples / total)
    return sums


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type that sums over clients are made in.

    Double precision has room for the rounding errors of a sum over many clients: a float32 tensor that no client
    changed, such as a frozen layer, comes back bit for bit.
    """
    return torch.complex128 if dtype.is_complex else torch.float64
