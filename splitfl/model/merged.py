"""One batch of the samples of several clients: put together, scored, and its gradients given back to each.

Three ways to score it. Plain: the loss of the whole batch. Logit-adjusted (SCALA, arXiv 2405.04875): class scores are
shifted by the logarithm of the classes' shares; those of the whole batch for the weights of the merged stages, those of
a client's own samples for the gradient that it is sent, so that classes it does not have are not pushed down. Averaged
(EPSL, arXiv 2303.15991): the first samples of every client go back as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from splitfl.model.errors import LossError
from splitfl.model.loss import Loss, metrics, nested
from splitfl.model.micro_batches import weight
from splitfl.model.scoring import Score
from splitfl.model.signature import Tensors

RARE = 1e-9
"""The share of a class without samples: its logarithm must be a number."""


@dataclass(slots=True)
class Merged:
    """The rows of a merged micro-batch: those of each client, one client after the other, then averages.

    samples    client -> samples of it, in the order of the rows
    whole      samples of all clients in the mini-batch that this is a part of
    reduction  whether the loss is a "mean" or a "sum" over samples
    averaged   rows of averages: the n-th is the mean, weighted by samples, of the n-th sample of every client, and
               stands for all of these in the backward
    adjusted   scores are logit-adjusted
    losses     the loss of each client's samples, once scored
    """

    samples: Mapping[int, int]
    whole: int
    reduction: Literal["mean", "sum"]
    averaged: int = 0
    adjusted: bool = False
    losses: dict[int, float] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Samples of all clients together."""
        return sum(self.samples.values())

    def rows(self) -> dict[int, slice]:
        """Where the samples of each client are."""
        found, start = {}, 0
        for client, count in self.samples.items():
            found[client] = slice(start, start + count)
            start += count
        return found

    def parts(self) -> list[int]:
        """Rows of each client, then those of averages, as `joined` puts them together."""
        return [*self.samples.values(), *([self.averaged] if self.averaged else [])]

    def labels(self, targets: Sequence[Any]) -> Any:
        """The labels of all samples, nested as those of each client."""
        return _concatenated(targets)

    def joined(self, bundles: Sequence[Tensors]) -> Tensors:
        """The clients' bundles, (samples, *shape) each, as one, with the rows of averages."""
        together = {name: torch.cat([bundle[name] for bundle in bundles]) for name in bundles[0]}
        if not self.averaged:
            return together
        return {name: torch.cat([value, self._averages(value)]) for name, value in together.items()}

    def _averages(self, value: torch.Tensor) -> torch.Tensor:
        if not value.is_floating_point():
            raise LossError(f"a tensor of {value.dtype} crosses the cut: expected numbers that can be averaged")
        firsts = [(value[self._firsts(rows)], self.samples[client]) for client, rows in self.rows().items()]
        return torch.stack([first * (count / self.total) for first, count in firsts]).sum(0)

    def _firsts(self, rows: slice) -> slice:
        return slice(rows.start, rows.start + self.averaged)

    def apart(self, gradients: Tensors) -> dict[int, Tensors]:
        """Each client's part of the gradients of `joined`; of an average, its share by samples."""
        return {client: self._part(gradients, client, rows) for client, rows in self.rows().items()}

    def _part(self, gradients: Tensors, client: int, rows: slice) -> Tensors:
        own = {name: value[rows] for name, value in gradients.items()}
        if self.averaged:
            share = self.samples[client] / self.total
            for name, value in gradients.items():
                own[name] = torch.cat([value[self.total :] * share, own[name][self.averaged :]])
        return own

    def score(self, loss: Loss, output: Any, target: Any) -> Score:
        """A `Scoring` of the merged output; `target` are the labels of all clients' samples, without the averages.

        Raises LossError where the output is not what the way of scoring needs.
        """
        real = nested(output, lambda value: value[: self.total])
        with torch.no_grad():
            for client, rows in self.rows().items():
                of_client = [nested(each, _rows(rows)) for each in (real, target)]
                self.losses[client] = float(loss(*of_client))
        value = loss(_adjusted(real, target) if self.adjusted else real, target)
        below = self._below(loss, real, target) if self.adjusted and value.requires_grad else None
        objective = value * weight(self.total, self.whole, self.reduction) if value.requires_grad else None
        if self.averaged and objective is not None:
            objective = self._with_averages(objective, output)
        return Score(objective, float(value.detach()), metrics(real, target), below)

    def _below(self, loss: Loss, real: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss as each client's own classes adjust it: what the gradients of its samples come from."""
        parts = [
            loss(_adjusted(real[rows], target[rows]), target[rows])
            * weight(self.samples[client], self.whole, self.reduction)
            for client, rows in self.rows().items()
        ]
        return torch.stack(parts).sum()

    def _with_averages(self, objective: torch.Tensor, output: Any) -> torch.Tensor:
        """A sum with the gradient of `objective`, but that of each first sample at the average that stands for it."""
        if not isinstance(output, torch.Tensor):
            raise LossError(
                f"the model gives {type(output).__name__}: expected one tensor, whose gradients are averaged"
            )
        (gradient,) = torch.autograd.grad(objective, output)
        for rows in self.rows().values():
            firsts = self._firsts(rows)
            gradient[self.total :] += gradient[firsts]
            gradient[firsts] = 0
        return (output * gradient).sum()


def _concatenated(targets: Sequence[Any]) -> Any:
    first = targets[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(list(targets))
    if isinstance(first, Mapping):
        return {name: _concatenated([target[name] for target in targets]) for name in first}
    if isinstance(first, tuple | list):
        return type(first)(_concatenated(parts) for parts in zip(*targets, strict=True))
    return first


def _rows(rows: slice) -> Any:
    return lambda value: value[rows]


def _adjusted(output: Any, target: Any) -> Any:
    """Class scores plus the logarithm of each class's share in `target`."""
    scores = isinstance(output, torch.Tensor) and output.is_floating_point() and output.dim() == 2
    classes = isinstance(target, torch.Tensor) and target.dtype == torch.int64 and target.dim() == 1
    if not scores or not classes:
        raise LossError(
            "logit adjustment needs class scores, (samples, classes), and one class for each sample as a label, got "
            f"{_described(output)} and {_described(target)}"
        )
    known = target[(target >= 0) & (target < output.shape[1])]  # the loss says what becomes of any others
    shares = torch.bincount(known, minlength=output.shape[1]).to(output) / max(len(known), 1)
    return output + shares.clamp(min=RARE).log()


def _described(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
