"""Evaluating a whole model on test data: metrics over all samples, weighted by batch size."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from splitfl.data.batches import pair
from splitfl.errors import SplitflError
from splitfl.model.loss import metrics
from splitfl.run.blueprint import Blueprint


class Evaluate:
    """Loss and, for class scores, accuracy of the unsplit model with a given state.

    Raises SplitflError, when called, for a data set without samples.
    """

    def __init__(self, blueprint: Blueprint, dataset: Dataset[Any], *, batch_size: int = 256) -> None:
        self._blueprint = blueprint
        self._model = copy.deepcopy(blueprint.model).to(blueprint.device)
        self._loader = DataLoader(dataset, batch_size=batch_size)

    def __call__(self, state: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """`loss`, the mean over samples, and `accuracy`, the share of right predictions where there are classes."""
        self._model.load_state_dict(state)
        self._model.eval()
        loss, correct, samples, predictions = 0.0, 0, 0, 0
        with torch.no_grad():
            for inputs, target in map(pair, self._loader):
                named = _on(self._blueprint.partition.bind(inputs), self._blueprint.device)
                output = self._blueprint.partition.signature.call(self._model, named)
                target = _on(target, self._blueprint.device)
                counts = metrics(output, target)
                value = float(self._blueprint.loss(output, target))
                loss += value * (counts["samples"] if self._blueprint.reduction == "mean" else 1)
                samples += counts["samples"]
                correct += counts.get("correct", 0)
                predictions += counts.get("predictions", 0)
        if not samples:
            raise SplitflError("test: the data set is empty, expected one sample or more")
        found = {"loss": loss / samples}
        return found | ({"accuracy": correct / predictions} if predictions else {})


def _on(values: Any, device: str) -> Any:
    if isinstance(values, torch.Tensor):
        return values.to(device)
    if isinstance(values, Mapping):
        return {name: _on(value, device) for name, value in values.items()}
    return type(values)(_on(value, device) for value in values)
