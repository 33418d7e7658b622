"""What a training gives back."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from splitfl.errors import SplitflError
from splitfl.run.checkpoint import save
from splitfl.run.record import History


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A trained model and how it came about.

    history  every round: seconds, bytes, accuracy, loss, idle shares, failures
    state    the whole model's weights by name
    states   the whole model of each client by name, where each has a front of its own (splitfed-v3); else empty
    """

    history: History
    state: dict[str, torch.Tensor]
    states: dict[str, dict[str, torch.Tensor]]
    template: nn.Module

    @property
    def model(self) -> nn.Module:
        """The whole trained module, in evaluation mode. SplitflError where there is one per client: see `models`."""
        if self.states:
            raise SplitflError(
                f"{self.history.method} trains a client-side partition for each client, so there is no single model: "
                f"take result.models[name], with a name of {', '.join(self.states)}"
            )
        return self._with(self.state)

    @property
    def models(self) -> dict[str, nn.Module]:
        """The whole trained module of each client by name; the same one for all unless fronts are personal."""
        return {name: self._with(self.states.get(name, self.state)) for name in self.history.clients}

    @property
    def accuracy(self) -> float | None:
        """Test accuracy after the last round, if it was measured."""
        return self.history.rounds[-1].accuracy if self.history.rounds else None

    def report(self, path: str | Path, *, beside: Sequence[Result] = ()) -> Path:
        """Write a self-contained HTML report of this run, and of others `beside` it, to `path`.

        Raises SplitflError where the extra `report` is not installed.
        """
        from splitfl.report import write

        return write([self.history, *(other.history for other in beside)], Path(path))

    def save(self, path: str | Path) -> None:
        """Write the trained weights to `path` as safetensors."""
        save(Path(path), self.state, {"method": self.history.method})

    def _with(self, state: dict[str, torch.Tensor]) -> nn.Module:
        module = copy.deepcopy(self.template)
        module.load_state_dict(state)
        return module.eval()
