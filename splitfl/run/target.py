"""Labels on their way with an activation: entries named `target:...` in the same bundle of tensors.

A tensor is named `target:`, the parts of a tuple or list `target:#0`, `target:#1`, ..., those of a dict `target:.name`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from splitfl.errors import SplitflError

Tensors = dict[str, torch.Tensor]
PREFIX = "target:"
"""No value of a traced model can have this name: the colon is not allowed there."""

PART, ENTRY = f"{PREFIX}#", f"{PREFIX}."


def join_target(tensors: Mapping[str, torch.Tensor], target: Any) -> Tensors:
    """`tensors` with the labels added: a tensor, a tuple or list of tensors, or a dict of tensors by text.

    Raises SplitflError where the labels are something else.
    """
    joined = dict(tensors)
    if isinstance(target, torch.Tensor):
        named = {PREFIX: target}
    elif isinstance(target, (tuple, list)):
        named = {f"{PART}{index}": part for index, part in enumerate(target)}
    elif isinstance(target, Mapping) and all(isinstance(name, str) for name in target):
        named = {f"{ENTRY}{name}": part for name, part in target.items()}
    else:
        raise SplitflError(f"labels of type {type(target).__name__}: expected a tensor, a tuple or a dict of tensors")
    for name, part in named.items():
        if not isinstance(part, torch.Tensor):
            raise SplitflError(f"labels: part {name.removeprefix(PREFIX)} is {type(part).__name__}, expected a tensor")
    if not named:
        raise SplitflError(f"labels: an empty {type(target).__name__}, expected one tensor or more")
    return joined | named


def split_target(joined: Mapping[str, torch.Tensor]) -> tuple[Tensors, Any]:
    """The inverse of `join_target`; labels are None where none travelled, and a list comes back as a tuple.

    Raises SplitflError for names that `join_target` does not give.
    """
    tensors = {name: value for name, value in joined.items() if not is_target(name)}
    labels = {name: value for name, value in joined.items() if is_target(name)}
    if not labels:
        return tensors, None
    if set(labels) == {PREFIX}:
        return tensors, labels[PREFIX]
    if set(labels) == {f"{PART}{index}" for index in range(len(labels))}:
        return tensors, tuple(labels[f"{PART}{index}"] for index in range(len(labels)))
    if all(name.startswith(ENTRY) for name in labels):
        return tensors, {name.removeprefix(ENTRY): value for name, value in labels.items()}
    raise SplitflError(f"labels named {', '.join(labels)}: expected {PREFIX}, {PART}0 and on, or {ENTRY}name")


def is_target(name: str) -> bool:
    """Whether a tensor of this name carries labels."""
    return name.startswith(PREFIX)
