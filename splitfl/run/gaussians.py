"""What the server knows of the activations of each label: a Gaussian for every element, apart from the others.

A Gaussian is moved, never summed up: what comes is merged by its own mean and variance (Chan, Golub and LeVeque 1983),
which loses no digits where the spread is small beside the mean. (Generative activations, arXiv 2409.01251.)
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from splitfl.errors import SplitflError
from splitfl.run.seeds import derive

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Gaussian:
    """Mean and variance by port name, (*shape) each, and the weight of all that they were made of."""

    weight: float
    mean: Tensors
    variance: Tensors

    @classmethod
    def of(cls, activations: Tensors, weight: float) -> Gaussian:
        """That of `activations`, (samples, *shape) each, of which every sample counts `weight`."""
        wide = {name: value.to(torch.promote_types(value.dtype, torch.float32)) for name, value in activations.items()}
        samples = len(next(iter(wide.values())))
        return cls(
            weight * samples,
            {name: value.mean(dim=0) for name, value in wide.items()},
            {name: value.var(dim=0, correction=0) for name, value in wide.items()},
        )

    def merged(self, other: Gaussian) -> Gaussian:
        """The Gaussian of what this one and `other` were made of."""
        weight = self.weight + other.weight
        share = other.weight / weight
        mean, variance = {}, {}
        for name, before in self.mean.items():
            apart = other.mean[name] - before
            mean[name] = before + share * apart
            within = (1 - share) * self.variance[name] + share * other.variance[name]
            variance[name] = within + share * (1 - share) * apart.square()
        return Gaussian(weight, mean, variance)

    def draw(self, samples: int, *, seed: int) -> Tensors:
        """Activations (samples, *shape) by port name; the seed alone decides them."""
        generator = torch.Generator().manual_seed(seed)
        drawn = {}
        for name, mean in self.mean.items():
            noise = torch.randn(samples, *mean.shape, generator=generator, dtype=mean.dtype)
            drawn[name] = mean + self.variance[name].sqrt() * noise
        return drawn


class Gaussians:
    """A Gaussian for every label that came."""

    def __init__(self) -> None:
        self._held: dict[int, Gaussian] = {}

    @property
    def labels(self) -> list[int]:
        """The labels that came, in order."""
        return sorted(self._held)

    def __getitem__(self, label: int) -> Gaussian:
        return self._held[label]

    def observe(self, activations: Tensors, labels: torch.Tensor, *, weight: float) -> None:
        """Take in `activations`, (samples, *shape) by port name, with their `labels` (samples,).

        Each sample counts `weight`, beside those before it.
        """
        for label in torch.unique(labels).tolist():
            found = Gaussian.of({name: value[labels == label] for name, value in activations.items()}, weight)
            self._held[label] = self._held[label].merged(found) if label in self._held else found

    def draw(self, counts: Mapping[int, int], *, seed: int) -> tuple[Tensors, torch.Tensor]:
        """`counts[label]` activations of each label, (samples, *shape) by port name, and their labels (samples,).

        What is drawn of a label does not depend on the others. Raises SplitflError for a label that never came.
        """
        if unknown := [label for label in counts if label not in self._held]:
            raise SplitflError(f"label {unknown[0]} never came: expected one of {self.labels}")
        parts = [self._held[label].draw(count, seed=derive(seed, label)) for label, count in sorted(counts.items())]
        labels = [torch.full((count,), label) for label, count in sorted(counts.items())]
        joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]} if parts else {}
        return joined, torch.cat(labels) if labels else torch.empty(0, dtype=torch.int64)

    def joined(self) -> Tensors:
        """All that is held as tensors with a row for each label, for a checkpoint; none where nothing came."""
        rows = [self._held[label] for label in self.labels]
        if not rows:
            return {}
        found = {
            "labels": torch.tensor(self.labels),
            "weights": torch.tensor([row.weight for row in rows], dtype=torch.float64),
        }
        for name in rows[0].mean:
            found[f"mean/{name}"] = torch.stack([row.mean[name] for row in rows])
            found[f"variance/{name}"] = torch.stack([row.variance[name] for row in rows])
        return found

    def restore(self, bundle: Tensors) -> None:
        """Hold what `joined` gave, and nothing else."""
        self._held.clear()
        names = [name.removeprefix("mean/") for name in bundle if name.startswith("mean/")]
        for row, label in enumerate(bundle["labels"].tolist() if bundle else []):
            mean = {name: bundle[f"mean/{name}"][row] for name in names}
            variance = {name: bundle[f"variance/{name}"][row] for name in names}
            self._held[label] = Gaussian(float(bundle["weights"][row]), mean, variance)


def missing(counts: Mapping[int, int], *, most: int) -> dict[int, int]:
    """How many samples of which label make `counts`, the samples of each, as even as `most` samples more can.

    No label gets more than the most frequent one has. Those with the fewest are filled up first.
    """
    fewest = [(count, label) for label, count in counts.items()]
    heapq.heapify(fewest)
    even = max(counts.values(), default=0) * len(counts) - sum(counts.values())
    added = dict.fromkeys(counts, 0)
    for _ in range(min(most, even)):
        count, label = fewest[0]
        heapq.heapreplace(fewest, (count + 1, label))
        added[label] += 1
    return {label: count for label, count in sorted(added.items()) if count}
