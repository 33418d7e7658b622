"""What a job says of itself: to the other end of a session, which must agree, and to the reader of a report."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from splitfl.api.optimizers import OptimizerSpec
from splitfl.methods import Merging, Method
from splitfl.model import Transform
from splitfl.run.blueprint import Blueprint

if TYPE_CHECKING:
    from splitfl.api.job import Job


def contract(job: Job, method: Method, micro_batches: int, teacher: nn.Module | None) -> str:
    """What both ends of a session must agree on beside the model and its cut, as JSON.

    Of a schedule file only the name counts: it lies in another folder on every machine, and the server's is sent. Of a
    teacher every weight counts.
    """
    epochs = None if job.local_steps else job.local_epochs or 1
    agreed = {
        "method": [method.name, micro_batches, _schedule_name(method), *_rules(method)],
        "optimizer": repr(job.optimizer) if isinstance(job.optimizer, OptimizerSpec) else "custom",
        "training": [job.batch_size, epochs, job.local_steps, job.shuffle, job.drop_last],
        "optimizer_state": job.optimizer_state,
        "loss": _loss_name(job),
        "codec": list(_codecs(job).values()),
        "transform": _transform_name(job),
        "seed": job.seed,
    }
    if teacher is not None:
        agreed["teacher"] = _digest(teacher)
    return json.dumps(agreed)


def facts(job: Job, method: Method, blueprint: Blueprint) -> dict[str, Any]:
    """What a report says about the job, as plain values."""
    local = f"{job.local_steps} steps" if job.local_steps else f"{job.local_epochs or 1} epochs"
    return {
        "method": method.name,
        "schedule": _schedule_name(method),
        "cut": ", ".join(blueprint.partition.cuts) or "uncut",
        "stages on the client": blueprint.method.front_stages if method.split else blueprint.stages,
        "micro-batches": blueprint.micro_batches,
        "batch size": job.batch_size,
        "local training": local,
        "optimizer": str(job.optimizer) if isinstance(job.optimizer, OptimizerSpec) else "the user's",
        "optimizer state": job.optimizer_state,
        "loss": _loss_name(job),
        "strategy": _strategy_name(job, method),
        "codecs": _codecs(job),
        "transform": _transform_name(job),
        "seed": job.seed,
    }


def _codecs(job: Job) -> dict[str, str]:
    roles = {"activation": job.codec.activation, "gradient": job.codec.gradient, "update": job.codec.update}
    return {role: each.name if each else "raw" for role, each in roles.items()}


def _transform_name(job: Job) -> str:
    return job.transform.name if isinstance(job.transform, Transform) else "none"


def _loss_name(job: Job) -> str:
    return getattr(job.loss, "__name__", type(job.loss).__name__)


def _schedule_name(method: Method) -> str:
    schedule = method.schedule
    return schedule.name if isinstance(schedule, Path) else getattr(schedule, "__name__", str(schedule))


def _rules(method: Method) -> list[Any]:
    """What a method says beside its name and schedule, as plain values."""
    apart = ("name", "schedule", "micro_batches", "auxiliary", "front_trained_by", "source")
    values = [getattr(method, each.name) for each in fields(method) if each.name not in apart]
    rules = [asdict(value) if isinstance(value, Merging) else value for value in values]
    auxiliary = method.auxiliary
    return [*rules, auxiliary if isinstance(auxiliary, str) else getattr(auxiliary, "__name__", "custom")]


def _strategy_name(job: Job, method: Method) -> str:
    if not method.takes_strategy:
        return "none: weights are handed on" if method.in_turn else "none: nothing is averaged"
    return "FedAvg" if job.strategy is None else type(job.strategy).__name__


def _digest(model: nn.Module) -> str:
    """A digest of every weight and buffer of `model`, with its name."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(f"{name}{value.dtype}{list(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
