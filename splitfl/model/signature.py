"""How a batch becomes the named inputs of a model: one tensor, several in order, or several by keyword."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from splitfl.model.errors import CutError

Tensors = dict[str, torch.Tensor]
Batch = torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor]
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Signature:
    """Names of a model's inputs, and whether they are handed over by keyword."""

    names: tuple[str, ...]
    keyword: bool = False

    def bind(self, batch: Batch) -> Tensors:
        """The tensors of `batch` by name.

        Raises CutError where their number or names differ from the example the signature was made from.
        """
        if isinstance(batch, Mapping) != self.keyword:
            kind = "a dict of tensors" if self.keyword else "a tensor or a tuple of tensors"
            raise CutError(f"model input of type {type(batch).__name__}: expected {kind}, as in the example")
        if isinstance(batch, Mapping):
            if set(batch) != set(self.names):
                raise CutError(f"model input has the entries {sorted(batch)}, expected {sorted(self.names)}")
            return {name: batch[name] for name in self.names}
        parts = (batch,) if isinstance(batch, torch.Tensor) else tuple(batch)
        if len(parts) != len(self.names):
            raise CutError(f"model input has {len(parts)} tensors, expected {len(self.names)}: {list(self.names)}")
        return dict(zip(self.names, parts, strict=True))

    def call(self, model: nn.Module, values: Mapping[str, torch.Tensor]) -> Any:
        """The output of `model` on named inputs."""
        if self.keyword:
            return model(**{name: values[name] for name in self.names})
        return model(*(values[name] for name in self.names))


def signature(model: nn.Module, example: Batch) -> Signature:
    """The signature that fits `example`; raises CutError unless it is made of tensors with one batch dimension."""
    if isinstance(example, Mapping):
        order = list(inspect.signature(model.forward).parameters)
        found = Signature(
            tuple(sorted(example, key=lambda name: order.index(name) if name in order else len(order))), True
        )
    else:
        count = 1 if isinstance(example, torch.Tensor) else len(example)
        found = Signature(_positional(model, count))
    if not found.names:
        raise CutError("example input is empty: expected a tensor, a tuple of tensors or a dict of tensors")
    values = found.bind(example)
    for name, value in values.items():
        if not isinstance(value, torch.Tensor):
            raise CutError(f"example input {name!r} is a {type(value).__name__}, expected a tensor")
        if value.dim() == 0 or value.shape[0] == 0:
            raise CutError(f"example input {name!r} has shape {tuple(value.shape)}, expected a batch dimension first")
    counts = {name: value.shape[0] for name, value in values.items()}
    if len(set(counts.values())) > 1:
        raise CutError(f"example inputs differ in their first dimension, the batch: {counts}")
    return found


def _positional(model: nn.Module, count: int) -> tuple[str, ...]:
    parameters = inspect.signature(model.forward).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind in POSITIONAL]
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}_{index}" for index in range(count - len(names))]
    if len(names) < count:
        raise CutError(f"example input has {count} tensors, but the model's forward takes {len(names)}: {names}")
    return tuple(names[:count])


def rows(values: Mapping[str, torch.Tensor], count: int) -> Tensors:
    """`count` samples of each tensor, the first ones, repeated in turn where there are fewer."""
    return {
        name: value.detach()[torch.arange(count, device=value.device) % value.shape[0]].clone()
        for name, value in values.items()
    }
