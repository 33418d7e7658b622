"""Whether a job's loss averages or sums, found with stand-in labels before any data is there."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import torch

from splitfl.errors import SplitflError
from splitfl.model import Partition, reduction
from splitfl.run.blueprint import Loss


def find_reduction(loss: Loss, model: torch.nn.Module, parts: Partition) -> Literal["mean", "sum"]:
    """The reduction of `loss` on the model's output for the example, with the first kind of label that it takes.

    Raises LossError where it is neither a mean nor a sum, and SplitflError where no stand-in label fits.
    """
    with torch.no_grad(), torch.random.fork_rng():
        output = parts.signature.call(copy.deepcopy(model).eval(), parts.example)
    for target in _stand_ins(output):
        if not _fits(loss, output, target):
            continue
        return reduction(loss, output, target)
    raise SplitflError('loss: no stand-in labels fit it; say reduction="mean" or "sum" in the job')


def _fits(loss: Loss, output: Any, target: Any) -> bool:
    """Whether the loss takes such labels without complaint; torch only warns of shapes that it has to broadcast."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            loss(output, target)
        except (RuntimeError, ValueError, TypeError, IndexError, UserWarning):
            return False
    return True


def _stand_ins(output: Any) -> Iterator[Any]:
    if not isinstance(output, torch.Tensor):
        return
    rows = len(output)
    yield torch.zeros(rows, dtype=torch.long)
    if output.dim() > 1:
        yield torch.zeros((rows, *output.shape[2:]), dtype=torch.long)
        yield torch.zeros(output.shape[:-1], dtype=torch.long)
    yield torch.rand(output.shape, dtype=output.dtype)
    yield torch.rand(rows, dtype=output.dtype)
