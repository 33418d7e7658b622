"""How an output is scored: where the backward starts, and what is noted beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from splitfl.model.loss import Loss, metrics


class Score(NamedTuple):
    """What a loss says of one output.

    objective  weight x loss: what the backward starts from; None where nothing that is trained led to it
    loss       the loss itself, not weighted
    metrics    counts, see `loss.metrics`
    below      what the gradients of the stages below start from, where that is not `objective`
    """

    objective: torch.Tensor | None
    loss: float
    metrics: dict[str, int]
    below: torch.Tensor | None = None


Scoring = Callable[[Loss, Any, Any], Score]
"""Loss, output and labels in."""


def weighted(weight: float) -> Scoring:
    """The loss times `weight`, the share of a micro-batch in the mini-batch's loss."""

    def score(loss: Loss, output: Any, target: Any) -> Score:
        value = loss(output, target)
        objective = value * weight if value.requires_grad else None
        return Score(objective, float(value.detach()), metrics(output, target))

    return score
