"""What a server writes down after every round, and how it goes on from there after it was stopped or killed.

A checkpoint holds everything that the next round depends on: the model with a shared tail, what the strategy
remembers, the server's optimizers where they are kept, the clients' own fronts, activations that the server goes on to
learn from, or what it knows of them, and the rounds so far. The random draws of a round are derived from the job's seed
and the round's number, so there is no generator to save. Names of the tensors:

    model/NAME   strategy/NAME   front/CLIENT/NAME   kept/NAME   and those of `moments`
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from splitfl.aggregation import StrategyRounds
from splitfl.model import Replica
from splitfl.run.checkpoint import CheckpointError, load
from splitfl.run.moments import Moments, below, moments_in, moments_of
from splitfl.run.record import RoundRecord
from splitfl.run.trained import Trained
from splitfl.schedule.instruction import Value

Tensors = dict[str, torch.Tensor]


def pack(
    trained: Trained,
    strategy: StrategyRounds | None,
    replicas: Mapping[Value, Replica],
    facts: Mapping[str, Any],
    *,
    kept: Mapping[str, torch.Tensor],
) -> tuple[Tensors, dict[str, Any]]:
    """Tensors and record of a checkpoint after the last round of `trained`; `facts` must agree when it is resumed."""
    tensors = {f"model/{name}": value for name, value in trained.state.items()}
    for client, front in trained.fronts.items():
        tensors |= {f"front/{client}/{name}": value for name, value in front.items()}
    memory: dict[str, Any] = {}
    if strategy is not None:
        found, memory = strategy.checkpoint()
        tensors |= {f"strategy/{name}": value for name, value in found.items()}
    tensors |= {f"kept/{name}": value for name, value in kept.items()}
    tensors |= moments_of(replicas)
    rounds = [json.loads(record.to_json()) for record in trained.rounds]
    return tensors, {"round": len(trained.rounds), "rounds": rounds, "strategy": memory, "facts": dict(facts)}


def unpack(
    tensors: Tensors, record: Mapping[str, Any], trained: Trained, strategy: StrategyRounds | None, path: Path
) -> dict[Value, Moments]:
    """Put a checkpoint's contents into `trained` and `strategy`; returns the optimizers' moments by replica."""
    model = below("model/", tensors)
    if model.keys() != trained.state.keys():
        raise CheckpointError(f"checkpoint {path} holds another model than the job's")
    trained.state.update(model)
    for name, value in below("front/", tensors).items():
        client, _, tensor = name.partition("/")
        trained.fronts.setdefault(client, {})[tensor] = value
    trained.rounds.extend(RoundRecord.from_json(json.dumps(each)) for each in record["rounds"])
    if strategy is not None:
        strategy.resume(below("strategy/", tensors), record["strategy"])
    return moments_in(tensors)


def newest(folder: Path) -> Path | None:
    """The newest round's checkpoint in `folder`, None where there is none.

    Raises CheckpointError for one that is damaged, naming the newest one that is not.
    """
    paths = sorted(folder.glob("round-*.safetensors"), reverse=True)
    for index, path in enumerate(paths):
        try:
            load(path)
        except CheckpointError as error:
            if index == len(paths) - 1:
                raise
            damaged = error
            continue
        if index:
            raise CheckpointError(
                f"{damaged}; the newest whole one is {path}: delete the damaged, and resume again"
            ) from damaged
        return path
    return None


def require_same(facts: Mapping[str, Any], record: Mapping[str, Any], path: Path) -> None:
    """Raise CheckpointError, naming what differs, unless the checkpoint was made by this job with these clients."""
    held = record.get("facts", {})
    for name, value in facts.items():
        if held.get(name) != value:
            raise CheckpointError(
                f"checkpoint {path} was made with {name} = {held.get(name)!r}, this job has {value!r}"
            )
