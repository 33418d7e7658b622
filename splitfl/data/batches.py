"""What a client trains on in a round: how many samples at a time, which ones, and the tensors themselves."""

from __future__ import annotations

import hashlib
from itertools import chain, islice, repeat
from typing import Any

import torch
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from splitfl.data.error import DataError
from splitfl.data.labels import size


def plan(
    samples: int,
    *,
    batch_size: int,
    epochs: int = 1,
    steps: int | None = None,
    drop_last: bool = False,
    minimum: int = 1,
) -> tuple[int, ...]:
    """Sizes of the mini-batches of one round: `epochs` passes over `samples`, or `steps` mini-batches if given.

    A last batch of fewer than `minimum` samples (2 with BatchNorm, which cannot take one) joins the batch before it;
    with `drop_last` every last batch that is not full is left out. An empty tuple means that the client takes no part:
    it has fewer than `minimum` samples, or no full batch where only full ones count.

    Raises DataError for a setting out of range.
    """
    for name, value, least in (("batch_size", batch_size, 1), ("epochs", epochs, 1), ("steps", steps, 1)):
        if value is not None and value < least:
            raise DataError(f"{name} = {value}: expected {least} or more")
    if batch_size < minimum:
        raise DataError(
            f"batch_size = {batch_size}: expected {minimum} or more, the model takes no fewer samples at once"
        )
    whole, rest = divmod(samples, batch_size)
    sizes = [batch_size] * whole
    if rest and not drop_last:
        if rest >= minimum:
            sizes.append(rest)
        elif sizes:
            sizes[-1] += rest
    if not sizes:
        return ()
    if steps is None:
        return tuple(sizes) * epochs
    return tuple(islice(chain.from_iterable(repeat(sizes)), steps))


def order(samples: int, *, seed: int, shuffle: bool, epoch: int = 0) -> torch.Tensor:
    """Indices (samples,) in the order of pass number `epoch`: shuffled anew for every pass, by `seed` alone."""
    if not shuffle:
        return torch.arange(samples)
    digest = hashlib.sha256(f"order/{seed}/{epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return torch.randperm(samples, generator=generator)


class Batches:
    """The mini-batches of one client in one round, made when asked for: `batches[step]` is (inputs, target).

    dataset  map-style, of pairs (inputs, target); inputs may be a tuple or dict of tensors
    sizes    samples in each mini-batch, as `plan` gives them
    seed     decides the order if `shuffle` is set

    A sample of more than two parts is (*inputs, target). Raises DataError where samples are something else.
    """

    def __init__(self, dataset: Dataset[Any], *, sizes: tuple[int, ...], seed: int, shuffle: bool) -> None:
        self._dataset = dataset
        self._indices = _positions(sizes, size(dataset), seed=seed, shuffle=shuffle)
        self._tensors = tensors_of(dataset)

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, step: int) -> tuple[Any, Any]:
        """Inputs and target of mini-batch `step`, each with a leading batch dimension."""
        indices = self._indices[step]
        if self._tensors is not None:
            tensors, rows = self._tensors
            chosen = indices if rows is None else rows[indices]
            return pair([tensor[chosen] for tensor in tensors])
        return pair(default_collate([self._dataset[index] for index in indices.tolist()]))


def _positions(sizes: tuple[int, ...], samples: int, *, seed: int, shuffle: bool) -> list[torch.Tensor]:
    """The indices of every mini-batch. One that does not fit into what is left of a pass opens the next pass."""
    positions: list[torch.Tensor] = []
    current, epoch, at = torch.empty(0, dtype=torch.int64), 0, 0
    for count in sizes:
        if count > samples:
            raise DataError(f"a mini-batch of {count} samples was planned, the data set has {samples}")
        if at + count > len(current):
            current, epoch, at = order(samples, seed=seed, shuffle=shuffle, epoch=epoch), epoch + 1, 0
        positions.append(current[at : at + count])
        at += count
    return positions


def tensors_of(dataset: Dataset[Any]) -> tuple[tuple[torch.Tensor, ...], torch.Tensor | None] | None:
    """The tensors behind a TensorDataset, or behind Subsets of one with the rows that they choose; None otherwise."""
    if isinstance(dataset, TensorDataset):
        return dataset.tensors, None
    if isinstance(dataset, Subset) and (found := tensors_of(dataset.dataset)) is not None:
        rows = torch.as_tensor(dataset.indices, dtype=torch.int64)
        return found[0], rows if found[1] is None else found[1][rows]
    return None


def pair(parts: Any) -> tuple[Any, Any]:
    """(inputs, target) of a sample or batch in parts: of more than two the last is the target. DataError for fewer."""
    if not isinstance(parts, tuple | list) or len(parts) < 2:
        found = f"{len(parts)} part(s)" if isinstance(parts, tuple | list) else type(parts).__name__
        raise DataError(f"a sample is made of {found}: expected a pair (inputs, target)")
    *inputs, target = parts
    return (inputs[0] if len(inputs) == 1 else tuple(inputs)), target
