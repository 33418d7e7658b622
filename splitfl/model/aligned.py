"""One batch of the same samples, of which each client sent what became of the features that it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from splitfl.model.loss import Loss
from splitfl.model.micro_batches import weight
from splitfl.model.scoring import Score, weighted
from splitfl.model.signature import Tensors


@dataclass(slots=True)
class Aligned:
    """The counterpart of `Merged` where features are put together, not samples.

    samples    client with the labels -> samples of the micro-batch
    whole      samples of the mini-batch that this is a part of
    reduction  whether the loss is a "mean" or a "sum" over samples
    sent       client -> names of the tensors that it sends
    losses     client with the labels -> the loss, once scored
    """

    samples: Mapping[int, int]
    whole: int
    reduction: Literal["mean", "sum"]
    sent: Mapping[int, Sequence[str]]
    losses: dict[int, float] = field(default_factory=dict)

    def joined(self, bundles: Sequence[Tensors]) -> Tensors:
        """All tensors in one bundle."""
        return {name: value for bundle in bundles for name, value in bundle.items()}

    def parts(self) -> list[int]:
        """One: each tensor is one client's."""
        return []

    def labels(self, targets: Sequence[Any]) -> Any:
        """The labels of the one client that has them."""
        return next((target for target in targets if target is not None), None)

    def apart(self, gradients: Tensors) -> dict[int, Tensors]:
        """Each client's gradients: those of what it sent."""
        return {
            client: {name: gradients[name] for name in names if name in gradients}
            for client, names in self.sent.items()
        }

    def score(self, loss: Loss, output: Any, target: Any) -> Score:
        """A `Scoring` by the plain loss."""
        ((client, count),) = self.samples.items()
        found = weighted(weight(count, self.whole, self.reduction))(loss, output, target)
        self.losses[client] = found.loss
        return found
