"""What an actor goes back to when a connection was lost: its replicas as they were before the last mini-batches.

Where gradients come back, both ends of a turn are never more than one mini-batch apart, since neither can finish one
without the other. So each keeps the state before the last three, and before the turn itself, and after a loss both take
up the same one. A front with a loss of its own may be further ahead: then both begin the turn again.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from splitfl.errors import SplitflError
from splitfl.model import Replica
from splitfl.run.metrics import Tally
from splitfl.schedule.instruction import Value

KEPT = 3
"""Mini-batches to which an actor can go back, besides the beginning of the turn."""


@dataclass(frozen=True, slots=True)
class _Replica:
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Snapshot:
    replicas: dict[Value, _Replica]
    tallies: dict[int, Tally]


class Snapshots:
    """The states of one group of replicas in one turn; key 0 is the beginning, before anything was loaded."""

    def __init__(self) -> None:
        self._kept: dict[int, _Snapshot] = {}

    def __contains__(self, step: int) -> bool:
        return step in self._kept

    def take(self, step: int, replicas: Mapping[Value, Replica], tallies: Mapping[int, Tally]) -> None:
        """Keep the state before mini-batch `step`, and forget what is too old to go back to."""
        held = {key: _Replica(each.state(), each.optimizer_state()) for key, each in replicas.items()}
        self._kept[step] = _Snapshot(held, copy.deepcopy(dict(tallies)))
        for old in [at for at in self._kept if 0 < at <= step - KEPT or at > step]:
            del self._kept[old]

    def restore(self, step: int, replicas: Mapping[Value, Replica], tallies: dict[int, Tally]) -> list[Value]:
        """Put `replicas` back to the state before mini-batch `step`, and the sums of the loss with them.

        Returns those that did not exist then: they must be made anew, with the initial weights. Raises SplitflError
        where the state is not kept.
        """
        if step not in self._kept:
            raise SplitflError(f"mini-batch {step} cannot be gone back to; kept: {sorted(self._kept)}")
        kept = self._kept[step]
        for key, replica in replicas.items():
            if key in kept.replicas:
                replica.load(kept.replicas[key].weights, reset_optimizer=True)
                replica.load_optimizer_state(kept.replicas[key].optimizer)
        tallies.update(copy.deepcopy(kept.tallies))
        return [key for key in replicas if key not in kept.replicas]
