"""A mini-batch in parts: how large each is, and which samples it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import nn

from splitfl.errors import SplitflError


def sizes(samples: int, micro_batches: int) -> tuple[int, ...]:
    """Samples in each micro-batch: they differ by at most one, larger first; `sizes(5, 4) == (2, 1, 1, 1)`.

    Raises SplitflError unless 1 <= micro_batches <= samples.
    """
    if not 1 <= micro_batches <= samples:
        raise SplitflError(f"micro_batches = {micro_batches} for a batch of {samples}: expected 1 to {samples}")
    base, larger = divmod(samples, micro_batches)
    return (base + 1,) * larger + (base,) * (micro_batches - larger)


def effective(samples: int, micro_batches: int, *, minimum: int = 1) -> int:
    """The number of micro-batches, at most `micro_batches`, that leaves at least `minimum` samples in each."""
    return max(1, min(micro_batches, samples // minimum))


def split(batch: Any, parts: Sequence[int]) -> list[Any]:
    """`batch`, a tensor or nested tuples, lists and dicts of tensors, sliced along dimension 0 into `parts` samples.

    Raises SplitflError where a tensor does not have as many samples as `parts` together.
    """
    ends = list(accumulate(parts))
    total = ends[-1]
    return [_slice(batch, end - part, end, total) for part, end in zip(parts, ends, strict=True)]


def _slice(batch: Any, start: int, end: int, total: int) -> Any:
    if isinstance(batch, torch.Tensor):
        if batch.dim() == 0 or batch.shape[0] != total:
            raise SplitflError(f"a tensor of the batch has shape {tuple(batch.shape)}, expected {total} samples")
        return batch[start:end]
    if isinstance(batch, Mapping):
        return {name: _slice(part, start, end, total) for name, part in batch.items()}
    if isinstance(batch, (tuple, list)):
        return type(batch)(_slice(part, start, end, total) for part in batch)
    raise SplitflError(f"a part of the batch is a {type(batch).__name__}, expected tensors in tuples, lists or dicts")


def weight(samples: int, total: int, reduction: Literal["mean", "sum"]) -> float:
    """What the loss of a micro-batch counts for, so that all of them together give the loss of the mini-batch."""
    return samples / total if reduction == "mean" else 1.0


def minimum_micro_batch(module: nn.Module) -> int:
    """The fewest samples that `module` can train on: 2 where a BatchNorm uses the batch's own statistics, else 1.

    A BatchNorm that is in evaluation mode inside a module in training mode is frozen, and takes one sample.
    """
    batch_norms = [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    return 2 if any(part.training or not module.training for part in batch_norms) else 1
