"""Dividing the features of one data set between holders, some of whom lack some of the samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

from splitfl.data.batches import tensors_of
from splitfl.data.error import DataError
from splitfl.data.linkage import Holding


def vertical(
    dataset: Dataset[Any], holders: int, *, shared: float = 1.0, labels_at: int = 0, seed: int = 0
) -> list[Holding]:
    """`holders` holdings of the columns of `dataset`, as even as possible, each with `shared` of the samples.

    Columns are the last dimension of the features: measurements of a table, pixels from left to right. Which samples a
    holder has is drawn by `seed`, for each on its own; the id of a sample is its row. Labels are with `labels_at`.

    Raises DataError for settings that cannot work, and for a data set that is not made of two tensors.
    """
    features, labels = _two(dataset)
    if not 0 < shared <= 1:
        raise DataError(f"shared = {shared!r}: expected a share above 0, up to 1")
    if not 0 <= labels_at < holders:
        raise DataError(f"labels_at = {labels_at}: expected 0 to {holders - 1}, one of the holders")
    random = np.random.default_rng(seed)
    held = []
    for holder, part in enumerate(columns(features, holders)):
        count = max(1, round(shared * len(part)))
        rows = torch.from_numpy(random.permutation(len(part))[:count])
        own = labels[rows] if holder == labels_at else None
        held.append(Holding(part[rows], rows.tolist(), labels=own))
    return held


def columns(features: torch.Tensor, holders: int) -> tuple[torch.Tensor, ...]:
    """`features` (samples, ..., columns) in parts, one per holder. Raises DataError for more holders than columns."""
    if features.dim() < 2 or not 1 <= holders <= features.shape[-1]:
        raise DataError(f"holders = {holders}: expected 1 to {features.shape[-1]}, the columns of the features")
    return torch.tensor_split(features, holders, dim=-1)


def by_columns(dataset: Dataset[Any], holders: int) -> TensorDataset:
    """`dataset` with the features of each holder as an input of its own, to test a model that takes them all."""
    features, labels = _two(dataset)
    return TensorDataset(*columns(features, holders), labels)


def _two(dataset: Dataset[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    found = tensors_of(dataset)
    if found is None or len(found[0]) != 2:
        raise DataError(f"{type(dataset).__name__} has no columns to split: expected a TensorDataset(features, labels)")
    (features, labels), rows = found
    return (features, labels) if rows is None else (features[rows], labels[rows])
