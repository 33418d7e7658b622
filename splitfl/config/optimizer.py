"""The optimizers that a job may name, with the options that torch gives them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from splitfl.config.error import suggestion

# Those of torch.optim that train any module by `step()` alone: LBFGS wants a closure, Muon two-dimensional weights,
# SparseAdam sparse gradients.
_OPTIMIZERS: dict[str, type[Optimizer]] = {
    kind.__name__.lower(): kind
    for kind in (
        torch.optim.Adadelta,
        torch.optim.Adafactor,
        torch.optim.Adagrad,
        torch.optim.Adam,
        torch.optim.Adamax,
        torch.optim.AdamW,
        torch.optim.ASGD,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.RMSprop,
        torch.optim.Rprop,
        torch.optim.SGD,
    )
}


def build_optimizer(name: str, options: dict[str, Any], *, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """The optimizer `name` of torch.optim over `parameters`, with torch's own options.

    Raises ValueError for an unknown name or option, and for a value that torch refuses.
    """
    kind = _OPTIMIZERS.get(name)
    if kind is None:
        raise ValueError(f"name = {name!r}: {suggestion(name, _OPTIMIZERS)}")
    known = set(inspect.signature(kind).parameters) - {"params"}
    for option in options:
        if option not in known:
            hint = suggestion(option, known)
            listed = "" if hint.startswith("expected") else f" ({name} takes {', '.join(sorted(known))})"
            raise ValueError(f"{option}: {name} has no such option: {hint}{listed}")
    # TOML knows lists only; torch documents pairs, such as betas, as tuples.
    arguments: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in options.items()
    }
    try:
        return kind(parameters, **arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} refuses these options: {error}") from error


def check_optimizer(name: str, options: dict[str, Any]) -> None:
    """Raise what `build_optimizer` would raise, by building one for a weight of its own and taking a step."""
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    optimizer = build_optimizer(name, options, parameters=[weight])
    try:
        optimizer.step()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} refuses these options: {error}") from error
