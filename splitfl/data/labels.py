"""The class of every sample, found without loading the samples where that is possible."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from splitfl.data.error import DataError

Labels = np.ndarray[Any, np.dtype[np.int64]]


def size(dataset: Dataset[Any]) -> int:
    """Number of samples. DataError for a data set that has no length, such as an IterableDataset."""
    if not isinstance(dataset, Sized):
        raise DataError(f"{type(dataset).__name__} has no length: expected a map-style data set with __len__")
    return len(dataset)


def class_labels(dataset: Dataset[Any]) -> Labels:
    """The class of each sample as an integer array of shape (samples,).

    Taken from `targets` or `labels` if the data set has one of them, from the last tensor of a TensorDataset, and else
    by going through all samples. DataError where labels are not one whole number per sample.
    """
    found = np.asarray(_raw(dataset))
    count = size(dataset)
    if found.shape == (count, 1):
        found = found[:, 0]
    if found.shape != (count,):
        raise DataError(f"labels of shape {found.shape} for {count} samples: expected one class per sample")
    if found.dtype.kind == "f" and np.array_equal(found, np.rint(found)):
        found = found.astype(np.int64)
    if found.dtype.kind not in "iub":
        raise DataError(
            f"labels of type {found.dtype}: expected whole numbers, the classes; use `iid` where there are none"
        )
    return found.astype(np.int64)


def _raw(dataset: Dataset[Any]) -> Any:
    if isinstance(dataset, Subset):
        return np.asarray(_raw(dataset.dataset))[np.asarray(dataset.indices, dtype=np.int64)]
    if isinstance(dataset, ConcatDataset):
        return np.concatenate([np.asarray(_raw(part)) for part in dataset.datasets])
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) > 1:
        return _plain(dataset.tensors[-1])
    for name in ("targets", "labels"):
        if hasattr(dataset, name):
            return _plain(getattr(dataset, name))
    return _plain([_label(dataset[index]) for index in range(size(dataset))])


def _label(sample: Any) -> Any:
    if not isinstance(sample, tuple | list) or len(sample) < 2:
        raise DataError(f"a sample is a {type(sample).__name__}: expected a pair (inputs, target)")
    return _plain(sample[-1])


def _plain(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
