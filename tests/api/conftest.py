"""Digits, a small model, and a job."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import splitfl


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 16),
        nn.ReLU(),
        nn.Linear(16, 10),
    )


@pytest.fixture(scope="session")
def digits():
    return splitfl.load("digits")


@pytest.fixture
def make_job():
    """A job with some fields changed."""

    def make(**changed) -> splitfl.Job:
        fields = {
            "model": build_model,
            "example_input": torch.zeros(1, 1, 8, 8),
            "cut": "2",
            "method": splitfl.methods.pipar(micro_batches=2),
            "loss": nn.functional.cross_entropy,
            "optimizer": splitfl.sgd(lr=0.1, momentum=0.9),
            "batch_size": 64,
        }
        return splitfl.Job(**{**fields, **changed})

    return make
