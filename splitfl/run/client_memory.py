"""What is a client's own from round to round, on its disk: a front that nobody averages, optimizers that go on, and
what its codec left over.

Two files, since a turn may be asked for again after it was done: the state before the newest turn and the state after
it, each with the seed that names the turn. A client that was killed goes on from the one that its next turn needs, so
that the bits are those of a client that was not.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from splitfl.model import Replica
from splitfl.run.blueprint import Blueprint
from splitfl.run.checkpoint import CheckpointError, load, save
from splitfl.run.moments import Moments, below, moments_in, moments_of
from splitfl.schedule.instruction import Kind, Value

Tensors = dict[str, torch.Tensor]
When = Literal["before", "after"]


class ClientMemory:
    """The files of one client in `folder`. Raises CheckpointError for those of another client or job."""

    def __init__(self, folder: Path, name: str, blueprint: Blueprint) -> None:
        self._folder = folder
        self._facts = {"client": name, "job": blueprint.fingerprints()}

    @staticmethod
    def pack(replicas: Mapping[Value, Replica], left_over: Mapping[Value, Tensors]) -> Tensors:
        """The state of a client's replicas, and what its updates left over, as named tensors."""
        states = [(key.stage, replica.state()) for key, replica in replicas.items()]
        weights = {f"weights/{stage}/{name}": value for stage, state in states for name, value in state.items()}
        left = {f"left/{key.stage}/{name}": each for key, state in left_over.items() for name, each in state.items()}
        return weights | left | moments_of(replicas)

    def keep(self, when: When, seed: int, tensors: Tensors) -> None:
        """Write the state before or after the turn that `seed` names."""
        save(self._path(when), tensors, {"seed": str(seed), **self._facts})

    def recall(self, seed: int, client: int) -> tuple[dict[Value, tuple[Tensors, Moments]], dict[Value, Tensors]]:
        """Weights and moments by replica, and what was left over, as the turn that `seed` names needs them.

        Nothing where nothing is kept.
        """
        before, after = self._load("before"), self._load("after")
        repeated = before is not None and before[1]["seed"] == str(seed)
        found = before if repeated or after is None else after
        if found is None:
            return {}, {}
        tensors, _ = found
        moments = moments_in(tensors)
        states = _by_replica(below("weights/", tensors), client)
        held = {key: (state, moments.get(key, {})) for key, state in states.items()}
        return held, _by_replica(below("left/", tensors), client)

    def _path(self, when: When) -> Path:
        return self._folder / f"{when}.safetensors"

    def _load(self, when: When) -> tuple[Tensors, dict[str, Any]] | None:
        path = self._path(when)
        if not path.exists():
            return None
        tensors, record = load(path)
        for name, value in self._facts.items():
            if record.get(name) != value:
                raise CheckpointError(f"{path} is of another {name}: expected a folder of this client's own (--state)")
        return tensors, record


def _by_replica(tensors: Tensors, client: int) -> dict[Value, Tensors]:
    found: dict[Value, Tensors] = {}
    for name, value in tensors.items():
        stage, _, tensor = name.partition("/")
        found.setdefault(Value(Kind.PARAMS, int(stage), client), {})[tensor] = value
    return found
