"""Labels on their way with an activation: entries named `target:...` in the same bundle of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from splitfl.errors import SplitflError

Tensors = dict[str, torch.Tensor]
PREFIX = "target:"
"""No value of a traced model can have this name: the colon is not allowed there."""


def join_target(tensors: Mapping[str, torch.Tensor], target: Any) -> Tensors:
    """`tensors` with the labels added: a tensor, a tuple or list of tensors, or a dict of tensors.

    Raises SplitflError where the labels are something else.
    """
    joined = dict(tensors)
    if isinstance(target, torch.Tensor):
        joined[PREFIX] = target
    elif isinstance(target, (tuple, list)):
        joined.update({f"{PREFIX}{index}": part for index, part in enumerate(target)})
    elif isinstance(target, Mapping):
        joined.update({f"{PREFIX}{name}": part for name, part in target.items()})
    else:
        raise SplitflError(f"labels of type {type(target).__name__}: expected a tensor, a tuple or a dict of tensors")
    return joined


def split_target(joined: Mapping[str, torch.Tensor]) -> tuple[Tensors, Any]:
    """The inverse of `join_target`; labels are None where none travelled, and a list comes back as a tuple."""
    tensors = {name: value for name, value in joined.items() if not is_target(name)}
    labels = {name.removeprefix(PREFIX): value for name, value in joined.items() if is_target(name)}
    if not labels:
        return tensors, None
    if "" in labels:
        return tensors, labels[""]
    if all(name.isdigit() for name in labels):
        return tensors, tuple(labels[str(index)] for index in range(len(labels)))
    return tensors, labels


def is_target(name: str) -> bool:
    """Whether a tensor of this name carries labels."""
    return name.startswith(PREFIX)
