"""Real data that ships inside packages: nothing here is downloaded."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

from splitfl.data.error import DataError

# Decides which samples are for testing; never the job's seed, so that accuracies can be compared between jobs.
TEST_SEED = 20261201
TEST_SHARE = 0.2

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
"""What text is written in; class 0 stands for any other character."""


@dataclass(frozen=True, slots=True)
class Datasets:
    """Samples (inputs, target) to train and to test on, the number of classes, and one input with a batch dimension."""

    train: Dataset[Any]
    test: Dataset[Any]
    classes: int
    example_input: torch.Tensor


def load(name: str, **options: Any) -> Datasets:
    """The data set `name`:

    digits         1,797 handwritten digits, (1, 8, 8) float in 0..1, 10 classes; `upsample=32` makes them (1, 32, 32)
    breast-cancer  569 x 30 measurements, standardized, 2 classes
    wine           178 x 13 measurements, standardized, 3 classes
    text           English in sequences of `length=64` characters as numbers; the target is each next character

    A fifth is kept for testing, the same in every job. DataError for an unknown name or option, or a missing package.
    """
    if name not in _LOADERS:
        raise DataError(f"data set = {name!r}: expected one of {', '.join(_LOADERS)}, or a Dataset of your own")
    accepted = inspect.signature(_LOADERS[name]).parameters
    for option in options:
        if option not in accepted:
            known = f"expected some of {', '.join(accepted)}" if accepted else "it takes none"
            raise DataError(f"data set {name!r}: unknown option {option!r}, {known}")
    return _LOADERS[name](**options)


def _digits(upsample: int | None = None) -> Datasets:
    found = _sklearn_datasets().load_digits()
    images = torch.from_numpy(found.images).float().unsqueeze(1) / 16
    if upsample is not None:
        if upsample < 1:
            raise DataError(f"data set 'digits': upsample = {upsample}, expected the pixels of a side, such as 32")
        images = torch.nn.functional.interpolate(
            images, size=(upsample, upsample), mode="bilinear", align_corners=False
        )
    return _divided(images, torch.from_numpy(found.target).long())


def _breast_cancer() -> Datasets:
    found = _sklearn_datasets().load_breast_cancer()
    return _divided(torch.from_numpy(found.data), torch.from_numpy(found.target).long(), standardize=True)


def _wine() -> Datasets:
    found = _sklearn_datasets().load_wine()
    return _divided(torch.from_numpy(found.data), torch.from_numpy(found.target).long(), standardize=True)


def _text(length: int = 64) -> Datasets:
    from pydoc_data.topics import topics

    text = "\n".join(topics[key] for key in sorted(topics))
    if not 1 <= length <= len(text) // 10:
        raise DataError(f"data set 'text': length = {length}, expected 1 to {len(text) // 10}")
    number = {character: index for index, character in enumerate(CHARACTERS, start=1)}
    encoded = torch.tensor([number.get(character, 0) for character in text])
    sequences = (len(encoded) - 1) // length
    inputs = encoded[: sequences * length].reshape(sequences, length)
    targets = encoded[1 : sequences * length + 1].reshape(sequences, length)
    # The end of the text is for testing: neighbors in the text must not be on both sides.
    border = sequences - round(sequences * TEST_SHARE)
    return Datasets(
        TensorDataset(inputs[:border], targets[:border]),
        TensorDataset(inputs[border:], targets[border:]),
        classes=len(CHARACTERS) + 1,
        example_input=torch.zeros_like(inputs[:1]),
    )


_LOADERS: dict[str, Callable[..., Datasets]] = {
    "digits": _digits,
    "breast-cancer": _breast_cancer,
    "wine": _wine,
    "text": _text,
}

NAMES = tuple(_LOADERS)


def _sklearn_datasets() -> ModuleType:
    try:
        import sklearn.datasets
    except ImportError as error:
        raise DataError("this data set is part of scikit-learn: pip install 'splitfl[data]'") from error
    module: ModuleType = sklearn.datasets
    return module


def _divided(inputs: torch.Tensor, labels: torch.Tensor, *, standardize: bool = False) -> Datasets:
    """Train and test sets with the same share of every class; scaled by what the training samples say."""
    train, test = _stratified(labels)
    if standardize:
        mean, deviation = inputs[train].mean(dim=0), inputs[train].std(dim=0)
        inputs = ((inputs - mean) / deviation).float()
    return Datasets(
        TensorDataset(inputs[train], labels[train]),
        TensorDataset(inputs[test], labels[test]),
        classes=int(labels.max()) + 1,
        example_input=torch.zeros_like(inputs[:1]),
    )


def _stratified(labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices for training and for testing, ascending."""
    random = np.random.default_rng(TEST_SEED)
    is_test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels.numpy()):
        members = random.permutation(np.flatnonzero(labels.numpy() == label))
        is_test[members[: round(len(members) * TEST_SHARE)]] = True
    return torch.from_numpy(np.flatnonzero(~is_test)), torch.from_numpy(np.flatnonzero(is_test))
