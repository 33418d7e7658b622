"""What a loss does with the samples of a batch, and what is counted beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch

from splitfl.model.errors import LossError

Loss = Callable[[Any, Any], torch.Tensor]
TOLERANCE = 1e-3


def reduction(loss: Loss, output: Any, target: Any) -> Literal["mean", "sum"]:
    """Whether `loss` is a mean or a sum over samples, found by giving it every sample twice.

    `output` and `target` are a model's output and labels, nested as the loss takes them, samples along dimension 0.
    Raises LossError where it is neither, or not a single number.
    """
    with torch.no_grad():
        once = _value(loss, output, target)
        if abs(once) < TOLERANCE:  # a perfect output tells nothing: 2 x 0 = 0
            output = nested(output, _shifted)
            once = _value(loss, output, target)
        twice = _value(loss, nested(output, _double), nested(target, _double))
    if abs(twice - once) <= TOLERANCE * abs(once):
        return "mean"
    if abs(twice - 2 * once) <= TOLERANCE * abs(once):
        return "sum"
    raise LossError(
        f"loss: {once:.6g} on a batch and {twice:.6g} on the same batch twice; expected a mean (equal) or a sum "
        "(double) over the samples"
    )


def decomposes(loss: Loss, output: Any, target: Any) -> bool:
    """Whether the loss of a batch is the mean or sum of the losses of its samples, weighted by nothing else.

    False for class weights, ignored labels and losses that compare samples: with those, micro-batches give another
    gradient than the whole batch. Needs two samples or more that differ; with one it is True.
    """
    kind = reduction(loss, output, target)
    with torch.no_grad():
        total = _value(loss, output, target)
        count = _samples(target)
        one = [nested(value, lambda tensor: tensor[:1]) for value in (output, target)]
        rest = [nested(value, lambda tensor: tensor[1:]) for value in (output, target)]
        if count < 2:
            return True
        first, others = _value(loss, *one), _value(loss, *rest)
    parts = first + others if kind == "sum" else (first + (count - 1) * others) / count
    return abs(parts - total) <= TOLERANCE * max(abs(total), TOLERANCE)


def metrics(output: Any, target: Any) -> dict[str, int]:
    """`samples`, and `correct` of `predictions` where `output` holds class scores and `target` the classes.

    Classes are dimension 1 of the scores, as in torch's cross-entropy, or else the last one. One prediction per label:
    a label for each pixel counts each pixel.
    """
    counted = {"samples": _samples(target)}
    if not isinstance(output, torch.Tensor) or not isinstance(target, torch.Tensor):
        return counted
    if target.is_floating_point() or target.dtype == torch.bool or not output.is_floating_point() or output.dim() < 2:
        return counted
    for axis in (1, output.dim() - 1):
        if output.shape[:axis] + output.shape[axis + 1 :] == target.shape:
            correct = int((output.detach().argmax(axis) == target).sum())
            return {**counted, "correct": correct, "predictions": target.numel()}
    return counted


def _value(loss: Loss, output: Any, target: Any) -> float:
    value = loss(output, target)
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        got = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
        raise LossError(f"loss gives {got}, expected a single number: a mean or a sum over the samples")
    return float(value)


def _shifted(tensor: torch.Tensor) -> torch.Tensor:
    """Another output: each sample moved by its own amount."""
    if not tensor.is_floating_point():
        return tensor
    amounts = torch.linspace(0.5, 1.5, len(tensor)).to(tensor)
    return tensor + amounts.reshape(-1, *[1] * (tensor.dim() - 1))


def _double(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor, tensor])


def nested(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`function` of every tensor in a nest of dicts, tuples and lists."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {name: nested(part, function) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(nested(part, function) for part in value)
    return value


def _samples(target: Any) -> int:
    while isinstance(target, (Mapping, tuple, list)):
        target = next(iter(target.values() if isinstance(target, Mapping) else target))
    return len(target) if isinstance(target, torch.Tensor) and target.dim() else 0
