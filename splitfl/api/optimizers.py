"""Optimizers as data: a name and options of `torch.optim`, made anew for every replica."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from splitfl.config.optimizer import build_optimizer, check_optimizer
from splitfl.errors import SplitflError


class OptimizerError(SplitflError):
    """An optimizer that does not exist, or an option that it does not take."""


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """`name` in torch.optim, in lower case, with `options`; call it with parameters to make one."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """A fresh optimizer over `parameters`."""
        return build_optimizer(self.name, self.options, parameters=parameters)

    def __str__(self) -> str:
        options = ", ".join(f"{key} = {value}" for key, value in self.options.items())
        return f"{self.name} ({options})" if options else self.name


def optimizer(name: str, **options: Any) -> OptimizerSpec:
    """The optimizer `name` of torch.optim (any case) with torch's own options.

    Raises OptimizerError naming what would be right.
    """
    try:
        check_optimizer(name.lower(), options)
    except ValueError as error:
        raise OptimizerError(f"optimizer: {error}") from error
    return OptimizerSpec(name.lower(), options)


def sgd(*, lr: float, **options: Any) -> OptimizerSpec:
    """Stochastic gradient descent; `options` as torch.optim.SGD takes them (momentum, weight_decay, ...)."""
    return optimizer("sgd", lr=lr, **options)


def adam(*, lr: float = 1e-3, **options: Any) -> OptimizerSpec:
    """Adam; `options` as torch.optim.Adam takes them."""
    return optimizer("adam", lr=lr, **options)
