"""Mean or sum, and what is counted."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from splitfl.model import LossError, decomposes, metrics, reduction

LOGITS = torch.tensor([[2.0, 0.5, -1.0], [0.1, 0.2, 0.3], [-1.0, 4.0, 0.0]])
TARGET = torch.tensor([0, 2, 0])


@pytest.mark.parametrize(
    ("loss", "output", "target", "expected"),
    [
        (F.cross_entropy, LOGITS, TARGET, "mean"),
        (partial(F.cross_entropy, reduction="sum"), LOGITS, TARGET, "sum"),
        (nn.MSELoss(), LOGITS, LOGITS, "mean"),  # zero on its own target
        (nn.MSELoss(reduction="sum"), LOGITS, LOGITS, "sum"),
        (lambda output, target: F.mse_loss(output["a"], target[0]), {"a": LOGITS}, (LOGITS + 1,), "mean"),
    ],
)
def test_reduction(loss, output, target, expected):
    assert reduction(loss, output, target) == expected


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (partial(F.cross_entropy, reduction="none"), r"loss gives shape \(3,\), expected a single number"),
        (lambda *_: 1.0, "loss gives a float, expected a single number"),
        (lambda output, _: output.sum() ** 2, r"expected a mean \(equal\) or a sum \(double\) over the samples"),
    ],
)
def test_other_losses_are_refused(loss, message):
    with pytest.raises(LossError, match=message):
        reduction(loss, LOGITS, TARGET)


def test_losses_that_micro_batches_would_change():
    assert decomposes(F.cross_entropy, LOGITS, TARGET)
    assert decomposes(partial(F.cross_entropy, reduction="sum"), LOGITS, TARGET)
    assert not decomposes(partial(F.cross_entropy, weight=torch.tensor([1.0, 2.0, 9.0])), LOGITS, TARGET)
    assert not decomposes(F.cross_entropy, LOGITS, torch.tensor([0, -100, 2]))
    assert decomposes(F.cross_entropy, LOGITS[:1], TARGET[:1])


def test_metrics():
    assert metrics(LOGITS, TARGET) == {"samples": 3, "correct": 2, "predictions": 3}
    assert metrics(LOGITS, LOGITS) == {"samples": 3}
    assert metrics({"logits": LOGITS}, TARGET) == {"samples": 3}
    assert metrics(LOGITS, {"a": TARGET}) == {"samples": 3}
    pixels = torch.zeros(2, 3, 4, 5)
    pixels[:, 1] = 1
    assert metrics(pixels, torch.ones(2, 4, 5, dtype=torch.long)) == {"samples": 2, "correct": 40, "predictions": 40}
    words = torch.zeros(2, 4, 7)
    words[..., 6] = 1
    assert metrics(words, torch.full((2, 4), 6)) == {"samples": 2, "correct": 8, "predictions": 8}
