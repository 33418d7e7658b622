"""The automatic auxiliary networks: from any activation to an output like the model's, with a budget of parameters.

    linear  pooled to 2 positions an axis, flattened, one linear layer
    mlp     the same with one hidden layer, as wide as the budget allows
    cnn     a 3-wide convolution, as many channels as the budget allows, then pooled, flattened, one linear layer

Where the output has the activation's positions (a class for each token or pixel), nothing is pooled: the layers act on
each position. (Shapes of auxiliary networks: arXiv 2101.09751, appendix; 1901.06656, section 3.2.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch
from torch import nn

from splitfl.model.errors import CutError

POSITIONS = 2
"""Positions that are left of each axis of an image or a series after pooling."""

SMALLEST = 8
"""Hidden units or channels that a head has at least."""

POOLS = {1: nn.AdaptiveAvgPool1d, 2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


class Pooled(nn.Module):
    """(samples, channels, *positions) -> (samples, features), averaged down to `POSITIONS` an axis."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        axes = x.dim() - 2
        if axes in POOLS:
            x = POOLS[axes](tuple(min(POSITIONS, size) for size in x.shape[2:]))(x)
        return x.flatten(1)


class Joined(nn.Module):
    """The tensors called `names` -> one of (samples, features): each pooled and flattened."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names
        self.pool = Pooled()

    def forward(self, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return torch.cat([self.pool(values[name]) for name in self.names], dim=1)


class Unflattened(nn.Module):
    """(samples, features) -> (samples, *shape)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(len(x), *self.shape)


def automatic(kind: str, activation: Any, output: Any, budget: int) -> nn.Module:
    """A head of `kind` with about `budget` parameters, between two examples.

    Raises CutError, saying what to do, where the model's output is no single tensor or nothing with numbers arrives.
    """
    if not isinstance(output, torch.Tensor):
        raise CutError(f"auxiliary = {kind!r}: the model's output is no single tensor; give a function of your own")
    if isinstance(activation, torch.Tensor):
        if _same_positions(activation, output):
            return _per_position(kind, activation.shape[-1], output.shape[-1], budget)
        pool: nn.Module = Pooled()
    else:
        rows = len(output)
        names = [name for name, x in activation.items() if x.is_floating_point() and x.dim() > 1 and len(x) == rows]
        if not names:
            raise CutError(f"auxiliary = {kind!r}: no tensor of numbers crosses the cut; give a function of your own")
        pool = Joined(names)
    return HEADS[kind](activation, pool, tuple(output.shape[1:]), budget)


def _same_positions(activation: torch.Tensor, output: torch.Tensor) -> bool:
    """Whether the output has something for each position of the activation, such as each token of a sequence."""
    return output.dim() > 2 and activation.dim() == output.dim() and activation.shape[:-1] == output.shape[:-1]


def _per_position(kind: str, features: int, wanted: int, budget: int) -> nn.Module:
    if kind == "linear":
        return nn.Linear(features, wanted)
    hidden = _width(budget, features + wanted)
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, wanted))


def _linear(activation: Any, pool: nn.Module, shape: tuple[int, ...], budget: int) -> nn.Module:
    del budget
    return nn.Sequential(pool, nn.Linear(_features(pool, activation), prod(shape)), Unflattened(shape))


def _mlp(activation: Any, pool: nn.Module, shape: tuple[int, ...], budget: int) -> nn.Module:
    features = _features(pool, activation)
    hidden = _width(budget, features + prod(shape))
    layers = (nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, prod(shape)))
    return nn.Sequential(pool, *layers, Unflattened(shape))


def _cnn(activation: Any, pool: nn.Module, shape: tuple[int, ...], budget: int) -> nn.Module:
    axes = activation.dim() - 2 if isinstance(activation, torch.Tensor) else 0
    if axes not in CONVOLUTIONS:
        return _mlp(activation, pool, shape, budget)
    channels, positions = activation.shape[1], activation.shape[2:]
    left = prod(min(POSITIONS, size) for size in positions)
    width = _width(budget, channels * 3**axes + left * prod(shape))
    convolution = CONVOLUTIONS[axes](channels, width, 3, padding=1)
    return nn.Sequential(convolution, nn.ReLU(), pool, nn.Linear(width * left, prod(shape)), Unflattened(shape))


HEADS: dict[str, Callable[[Any, nn.Module, tuple[int, ...], int], nn.Module]] = {
    "linear": _linear,
    "mlp": _mlp,
    "cnn": _cnn,
}
"""The kinds of automatic head by name. A `cnn` at a cut without positions, or with several tensors, is an `mlp`."""


def _width(budget: int, per_unit: int) -> int:
    """Hidden units for `budget` parameters at `per_unit` parameters each (and a bias)."""
    return max(SMALLEST, budget // (per_unit + 1))


def _features(pool: nn.Module, activation: Any) -> int:
    return int(pool(activation).shape[1])
