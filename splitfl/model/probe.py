"""Runs a model on its example without leaving a mark, and names the layer that cannot run."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from splitfl.model.crossing import named_leaves
from splitfl.model.errors import CutError, ShapeError
from splitfl.model.random_state import seeded
from splitfl.model.signature import Signature, Tensors

SEED = 0
SMALL, LARGE = 2, 3
"""Batch sizes of the two probing runs: dimensions that differ between them belong to the batch. One sample alone
would be refused by BatchNorm in training mode."""

Buffers = list[tuple[nn.Module, str, torch.Tensor, torch.Tensor]]


def training_copy(model: nn.Module) -> nn.Module:
    """A deep copy in training mode; single modules that are in evaluation mode inside a training model stay so."""
    try:
        duplicate = copy.deepcopy(model)
    except (RuntimeError, TypeError) as error:
        raise CutError(f"{type(model).__name__} cannot be copied: {error}") from error
    return duplicate if model.training else duplicate.train()


def device_of(model: nn.Module) -> torch.device:
    """The device of the first parameter or buffer; the CPU where there is none."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")


@contextmanager
def undisturbed(*models: nn.Module) -> Iterator[None]:
    """Run the body under a fixed seed; afterwards random generators and the buffers of `models` are as before.

    One thread at a time: it may not be entered again inside, so all models are named at once.
    """
    saved: Buffers = [
        (module, name, buffer, buffer.detach().clone())
        for model in models
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    with seeded(SEED, device_of(models[0])):
        try:
            yield
        finally:
            with torch.no_grad():
                for module, name, buffer, before in saved:
                    buffer.copy_(before)
                    module._buffers[name] = buffer


class _Watch:
    """The modules that are running and, when one raises, the innermost of them with its inputs."""

    def __init__(self, model: nn.Module) -> None:
        self._running: list[tuple[str, Any]] = []
        self._handles = []
        for name, module in model.named_modules():
            self._handles.append(module.register_forward_pre_hook(self._enter(name), with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._leave))

    def _enter(self, name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._running.append((f"layer {name!r} ({type(module).__name__})" if name else "the model", (args, kwargs)))

        return hook

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        del module, args, output
        self._running.pop()

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()

    def innermost(self) -> tuple[str, str]:
        """The running module and the shapes it was given."""
        where, (args, kwargs) = self._running[-1] if self._running else ("the model", ((), {}))
        tensors = [leaf for _, leaf in named_leaves([args, kwargs]) if isinstance(leaf, torch.Tensor)]
        return where, ", ".join(str(tuple(tensor.shape)) for tensor in tensors) or "no tensors"


def run(model: nn.Module, signature: Signature, values: Tensors) -> Any:
    """The output of `model`; ShapeError names the layer that fails, its input shapes, the line and the message."""
    watch = _Watch(model)
    try:
        return signature.call(model, values)
    except Exception as error:
        where, shapes = watch.innermost()
        batch = next(iter(values.values())).shape[0]
        raise ShapeError(
            f"{where} fails on the example input (as a batch of {batch}): given {shapes}{_line(error)}: {error}"
        ) from error
    finally:
        watch.stop()


def _line(error: Exception) -> str:
    """The last line outside torch that was running: functional code has no layer of its own to name."""
    library, ours = Path(torch.__file__).parent, Path(__file__).parent
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if library not in path.parents and ours not in path.parents:
            text = f" `{frame.line}`" if frame.line else ""
            return f" in{text} ({path.name}:{frame.lineno})"
    return ""


class Outcome(NamedTuple):
    """What an undisturbed run leaves: a trace of the model must leave the same."""

    output: Any
    buffers: Tensors
    gradients: dict[str, torch.Tensor | None]


def outcome(model: nn.Module, forward: Callable[[], Any]) -> Outcome:
    """Run `forward`, which uses `model`, undisturbed; gradients are those of a weighted sum of its output."""
    with undisturbed(model):
        output = forward()
        buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        tensors = [leaf for _, leaf in named_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        gradients: Any = [None] * len(trained)
        if tensors and trained:
            # not plain ones, under which a softmax has no gradient
            starts = [torch.linspace(0.5, 1.5, leaf.numel()).to(leaf).reshape(leaf.shape) for leaf in tensors]
            gradients = torch.autograd.grad(tensors, list(trained.values()), starts, allow_unused=True)
    return Outcome(output, buffers, dict(zip(trained, gradients, strict=True)))


def agrees(left: Any, right: Any) -> bool:
    """Whether two outputs have the same leaves, up to rounding."""
    ours, theirs = dict(named_leaves(left)), dict(named_leaves(right))
    return ours.keys() == theirs.keys() and all(_close(value, theirs[path]) for path, value in ours.items())


def _close(left: Any, right: Any) -> bool:
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return bool(left == right)
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    with suppress(AssertionError):
        torch.testing.assert_close(left, right, equal_nan=True)
        return True
    return False
