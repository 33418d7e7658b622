"""What training leaves behind, and grows from round to round."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from splitfl.model import is_auxiliary
from splitfl.run.blueprint import Blueprint
from splitfl.run.record import RoundRecord, Span

Tensors = dict[str, torch.Tensor]


@dataclass(slots=True)
class Trained:
    """The model and the rounds so far.

    state   the whole model's weights (with personal fronts: the averaged tail beside the initial front), and those of
            auxiliary networks
    fronts  each client's own client-side partition, by name, where fronts are personal; else empty
    names   of the clients, in the order of their ids
    measured, predicted  one mini-batch of the last round on every actor, as it ran and from the simulator
    """

    state: Tensors
    fronts: dict[str, Tensors] = field(default_factory=dict)
    rounds: list[RoundRecord] = field(default_factory=list)
    names: tuple[str, ...] = ()
    measured: tuple[Span, ...] = ()
    predicted: tuple[Span, ...] = ()

    @classmethod
    def initial(cls, blueprint: Blueprint, names: tuple[str, ...] = ()) -> Trained:
        """Where training begins: the weights that the seed decides, no rounds."""
        return cls(blueprint.initial, names=names)

    @property
    def model(self) -> Tensors:
        """The whole model's weights, under its own names only."""
        return _of_model(self.state)

    def models(self) -> dict[str, Tensors]:
        """The whole model of every client that has a front of its own, by name."""
        return {name: _of_model(self.state | front) for name, front in self.fronts.items()}


def _of_model(state: Tensors) -> Tensors:
    return {name: value for name, value in state.items() if not is_auxiliary(name)}
