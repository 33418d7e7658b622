"""A small network for tables: 30 measurements of a tumour in, benign or malignant out."""

from torch import nn


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(30, 32),
        nn.ReLU(),
        nn.Linear(32, 16),
        nn.ReLU(),
        nn.Linear(16, 2),
    )
