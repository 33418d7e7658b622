"""What a program runs on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from splitfl.model.micro_batches import sizes
from splitfl.schedule.topology import Topology

Tensors = dict[str, torch.Tensor]
Feed = Callable[[int], tuple[Tensors, Any]]
"""Micro-batch number in; the model's inputs by name and the labels out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a program runs on: the turn and step that name its messages, the sizes of its mini-batch, its data."""

    topology: Topology
    turn: int
    step: int
    seed: int
    samples: Mapping[int, int] = field(default_factory=dict)
    feed: Feed | None = None

    def batch(self, micro_batch: int) -> tuple[Tensors, Any]:
        """Inputs and labels of a micro-batch: on the client, where the data is."""
        if self.feed is None:
            raise RuntimeError("this actor has no data: stage 0 is placed on the client")
        return self.feed(micro_batch)

    def micro_samples(self, client: int, micro_batch: int) -> int:
        """Samples in a micro-batch of `client`."""
        return sizes(self.samples[client], len(self.topology.micro(client)))[micro_batch]
