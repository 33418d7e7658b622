"""Dividing one data set between clients, so that every sample goes to exactly one of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset, Subset

from splitfl.data.error import DataError
from splitfl.data.labels import class_labels, size

Indices = np.ndarray[Any, np.dtype[np.int64]]
Split = list[Subset[Any]]


def iid(dataset: Dataset[Any], clients: int, *, seed: int = 0) -> Split:
    """Shuffled and dealt evenly: sizes differ by at most one. DataError for more clients than samples."""
    count = _checked(dataset, clients)
    order = np.random.default_rng(seed).permutation(count)
    return _subsets(dataset, np.array_split(order, clients))


def dirichlet(dataset: Dataset[Any], clients: int, *, alpha: float, seed: int = 0, min_samples: int = 1) -> Split:
    """Skewed classes and sizes: each class is divided in proportions drawn from Dirichlet(alpha) (Hsu et al. 2019).

    A small `alpha` (0.1) gives most clients a few classes, a large one (100) nearly the same to all. A client that
    would get fewer than `min_samples` receives samples from the largest ones, so that everybody can take part.

    Raises DataError for settings that cannot work, and for a data set without class labels.
    """
    _checked(dataset, clients, each=min_samples)
    if not (alpha > 0 and np.isfinite(alpha)):
        raise DataError(f"alpha = {alpha!r}: expected a number above 0, such as 0.5")
    random = np.random.default_rng(seed)
    labels = class_labels(dataset)
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        shares = random.dirichlet(np.full(clients, float(alpha)))
        bounds = np.floor(np.cumsum(shares)[:-1] * len(members)).astype(int)
        for part, piece in zip(parts, np.split(members, bounds), strict=True):
            part.append(piece)
    shuffled = [random.permutation(np.concatenate(part)) for part in parts]
    return _subsets(dataset, _level(shuffled, min_samples))


def _level(parts: list[Indices], least: int) -> list[Indices]:
    """`parts` after the largest have given to those with fewer than `least`; there is enough for all."""
    sizes = [len(part) for part in parts]
    for poor in range(len(parts)):
        while sizes[poor] < least:
            rich = max(range(len(parts)), key=lambda each: sizes[each])
            parts[poor] = np.append(parts[poor], parts[rich][-1])
            parts[rich] = parts[rich][:-1]
            sizes[poor], sizes[rich] = len(parts[poor]), len(parts[rich])
    return parts


def shards(dataset: Dataset[Any], clients: int, *, shards_per_client: int, seed: int = 0) -> Split:
    """Few classes per client: sorted by class, cut into equal shards, dealt at random (McMahan et al. 2017, section 3).

    Raises DataError for more shards than samples, and for a data set without class labels.
    """
    if shards_per_client < 1:
        raise DataError(f"shards_per_client = {shards_per_client}: expected 1 or more")
    count = _checked(dataset, clients, each=shards_per_client)
    random = np.random.default_rng(seed)
    shuffled = random.permutation(count)
    by_class = shuffled[np.argsort(class_labels(dataset)[shuffled], kind="stable")]
    pieces = np.array_split(by_class, clients * shards_per_client)
    dealt = random.permutation(len(pieces)).reshape(clients, shards_per_client)
    return _subsets(dataset, [np.concatenate([pieces[piece] for piece in hand]) for hand in dealt])


def by_user(dataset: Dataset[Any], users: Sequence[Hashable]) -> Split:
    """One client per user, in the order in which users first appear; `users` names the user of every sample.

    Raises DataError where there is not exactly one user per sample.
    """
    count = size(dataset)
    if len(users) != count:
        raise DataError(f"users has {len(users)} entries for {count} samples: expected one per sample")
    owned: dict[Hashable, list[int]] = {}
    for index, user in enumerate(users):
        # Tensors and numpy arrays give objects of which no two are equal as keys.
        owned.setdefault(user.item() if hasattr(user, "item") else user, []).append(index)
    return _subsets(dataset, [np.array(indices) for indices in owned.values()])


def _checked(dataset: Dataset[Any], clients: int, *, each: int = 1) -> int:
    """Number of samples, if it is enough to give `each` to every client."""
    if clients < 1:
        raise DataError(f"clients = {clients}: expected 1 or more")
    count = size(dataset)
    if clients * max(each, 1) > count:
        share = f"{each} samples each" if each > 1 else "one sample each"
        raise DataError(
            f"{clients} clients with {share} need {clients * max(each, 1)} samples, the data set has {count}"
        )
    return count


def _subsets(dataset: Dataset[Any], parts: Iterable[Indices]) -> Split:
    return [Subset(dataset, sorted(part.tolist())) for part in parts]
