"""Which tensors a strategy must not see, and how those are combined instead.

A strategy treats every number as a weight: it would average a counter into a fraction, move a running variance below
zero by an adaptive step, or add privacy noise to both. So buffers go by a fixed rule per kind:

    floating point (running statistics)   mean over the holders, weighted by samples
    integer (num_batches_tracked, ids)    the largest
    bool (masks)                          true where any holder says true
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch

from splitfl.aggregation.values import Tensors

RUNNING_STATISTICS = ("running_mean", "running_var")


def is_variance(name: str) -> bool:
    """Whether `name` is a running variance, which is never negative."""
    return last_part(name) == "running_var"


def last_part(name: str) -> str:
    """The tensor's own name, without the modules around it."""
    return name.rpartition(".")[2]


def buffer_names(template: Mapping[str, torch.Tensor], *, buffers: Collection[str] = ()) -> frozenset[str]:
    """The names in `template` that stay out of a strategy.

    Integer and bool tensors and BatchNorm's running statistics always do; `buffers` names any others, best all of the
    model's `named_buffers()`, since a state dictionary alone does not tell a buffer from a parameter.
    """
    return frozenset(
        name
        for name, value in template.items()
        if name in buffers
        or last_part(name) in RUNNING_STATISTICS
        or not (value.dtype.is_floating_point or value.dtype.is_complex)
    )


def largest(values: Sequence[torch.Tensor]) -> torch.Tensor:
    """The elementwise maximum of integer tensors, or the logical "or" of bool ones; the dtype is kept."""
    # numpy, because torch has no maximum for unsigned words.
    result = np.maximum.reduce([value.detach().cpu().numpy() for value in values])
    return torch.from_numpy(np.asarray(result))


def split_buffers(state: Mapping[str, torch.Tensor], names: Collection[str]) -> tuple[Tensors, Tensors]:
    """`state` as (what the strategy sees, the buffers), both in the order of `state`."""
    seen = {name: value for name, value in state.items() if name not in names}
    return seen, {name: value for name, value in state.items() if name in names}
