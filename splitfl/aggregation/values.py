"""What goes into and comes out of a round's aggregation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from splitfl.errors import SplitflError

Tensors = dict[str, torch.Tensor]
UpdateKind = Literal["weights", "delta"]


class AggregationError(SplitflError):
    """A round whose updates cannot be made into new weights; the weights before it stay."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one client is asked to train from.

    client  id of the client
    state   global weights and buffers under the whole model's names; shared by all clients, not to be written to
    config  what the strategy asks of the client, such as FedProx's `proximal-mu`
    """

    client: int
    state: Tensors
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Update:
    """What one client, and the server for its tail replica, hands over after a round.

    client   id of the client
    name     its name, for messages
    samples  training samples behind the update: its weight in every mean
    state    tensors of every aggregated stage under the whole model's names
    metrics  numbers such as `train_loss`
    kind     "weights", or "delta" for a difference to the weights that it started from
    """

    client: int
    name: str
    samples: int
    state: Tensors
    metrics: dict[str, float] = field(default_factory=dict)
    kind: UpdateKind = "weights"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A client whose work is not in the new weights, and why."""

    client: int
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


Reply = Update | Refusal

Train = Callable[[list[Assignment]], Sequence[Reply]]
"""Blocks while the clients train, and bounds its own waiting; a client that failed is answered for by a Refusal."""

Evaluate = Callable[[list[Assignment]], Mapping[int, tuple[int, Mapping[str, float]]]]
"""Evaluates on the clients: client id -> (samples, metrics). A client left out counts as failed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The weights after a round, its metrics, and who is not in them."""

    state: Tensors
    metrics: dict[str, float] = field(default_factory=dict)
    refused: tuple[Refusal, ...] = ()
