"""Optimizers' moments as named tensors, `optimizer/STAGE/CLIENT/INDEX/NAME`, where CLIENT is "shared" for all."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from splitfl.model import Replica
from splitfl.schedule.instruction import Kind, Value

Tensors = dict[str, torch.Tensor]
Moments = dict[int, dict[str, torch.Tensor]]

SHARED = "shared"
ROOT = "optimizer/"


def moments_of(replicas: Mapping[Value, Replica]) -> Tensors:
    """What the optimizers of `replicas` remember."""
    tensors: Tensors = {}
    for key, replica in replicas.items():
        owner = SHARED if key.client is None else str(key.client)
        for index, moments in replica.optimizer_state().get("state", {}).items():
            for name, value in moments.items():
                tensors[f"{ROOT}{key.stage}/{owner}/{index}/{name}"] = torch.as_tensor(value)
    return tensors


def moments_in(tensors: Tensors) -> dict[Value, Moments]:
    """The moments among `tensors`, by the replica that they belong to."""
    found: dict[Value, Moments] = {}
    for name, value in below(ROOT, tensors).items():
        stage, owner, index, moment = name.split("/")
        key = Value(Kind.PARAMS, int(stage), None if owner == SHARED else int(owner))
        found.setdefault(key, {}).setdefault(int(index), {})[moment] = value
    return found


def give_moments(replica: Replica, moments: Moments) -> None:
    """Let the optimizer of `replica` go on with `moments`."""
    replica.load_optimizer_state({**replica.optimizer_state(), "state": moments})


def below(prefix: str, tensors: Tensors) -> Tensors:
    """The tensors whose names begin with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
