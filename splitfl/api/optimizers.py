"""Optimizers as data: a name and options of `torch.optim`, made anew for every replica."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn

from splitfl.errors import SplitflError

# Needs a closure that evaluates the whole model again, which no partition can do.
UNSUITED = {"LBFGS", "Optimizer", "SparseAdam"}


class OptimizerError(SplitflError):
    """An optimizer that does not exist, or an option that it does not take."""


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """`name` in torch.optim with `options`; call it with parameters to make one."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """A fresh optimizer over `parameters`."""
        made: torch.optim.Optimizer = getattr(torch.optim, self.name)(list(parameters), **self.options)
        return made


def optimizer(name: str, **options: Any) -> OptimizerSpec:
    """The optimizer `name` of torch.optim (any case). Raises OptimizerError naming what would be right."""
    known = {
        key.lower(): key
        for key, value in vars(torch.optim).items()
        if inspect.isclass(value) and issubclass(value, torch.optim.Optimizer) and key not in UNSUITED
    }
    if name.lower() not in known:
        close = get_close_matches(name.lower(), known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise OptimizerError(f"optimizer = {name!r}: expected one of {', '.join(sorted(known))}{hint}")
    spec = OptimizerSpec(known[name.lower()], options)
    accepted = list(inspect.signature(getattr(torch.optim, spec.name)).parameters)[1:]
    unknown = [key for key in options if key not in accepted]
    if unknown:
        raise OptimizerError(f"optimizer {name}: unknown option {unknown[0]!r}, expected some of {', '.join(accepted)}")
    try:
        spec([nn.Parameter(torch.zeros(1))])
    except (TypeError, ValueError) as error:
        raise OptimizerError(f"optimizer {name}: {error}") from error
    return spec


def sgd(*, lr: float, **options: Any) -> OptimizerSpec:
    """Stochastic gradient descent; `options` as torch.optim.SGD takes them (momentum, weight_decay, ...)."""
    return optimizer("sgd", lr=lr, **options)


def adam(*, lr: float = 1e-3, **options: Any) -> OptimizerSpec:
    """Adam; `options` as torch.optim.Adam takes them."""
    return optimizer("adam", lr=lr, **options)
