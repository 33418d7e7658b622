"""A training on the server's disk: written after every round, read when it goes on, or when it was over already."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch

from splitfl.aggregation import StrategyRounds
from splitfl.events import event
from splitfl.model import Replica
from splitfl.run.blueprint import Blueprint
from splitfl.run.checkpoint import CheckpointError, load, prune, require_writable, save
from splitfl.run.moments import Moments, below
from splitfl.run.resume import newest, pack, require_same, unpack
from splitfl.run.store import Store
from splitfl.run.trained import Trained
from splitfl.schedule.instruction import Value

KEEP = 3
"""Round checkpoints that stay on disk."""

_LOGGER = logging.getLogger(__name__)


class Kept(Protocol):
    """What the server learns from in later rounds too, as tensors."""

    def joined(self) -> dict[str, torch.Tensor]:
        """All of it."""

    def restore(self, bundle: dict[str, torch.Tensor]) -> None:
        """Go on with what `joined` gave."""


class ServerMemory:
    """The checkpoints of one job in `folder`; without a folder nothing is written and nothing found.

    `kept`: what is written down beside the model, where there is something.
    """

    def __init__(self, folder: Path | None, blueprint: Blueprint, strategy: object, kept: Kept | None = None) -> None:
        self._folder = folder
        self._kept: Kept = Store() if kept is None else kept
        self._facts = {"job": blueprint.fingerprints(), "strategy": type(strategy).__name__}

    def require_writable(self) -> None:
        """Raise CheckpointError, before any work is done, where nothing can be written."""
        if self._folder is not None:
            require_writable(self._folder)

    async def keep(
        self, trained: Trained, strategy: StrategyRounds | None, replicas: Mapping[Value, Replica]
    ) -> CheckpointError | None:
        """Write the state after the last round of `trained`; returns why that was not possible.

        A full disk is no reason to throw the round away: the next one tries again.
        """
        if self._folder is None:
            return None
        path = self._folder / f"round-{len(trained.rounds):06d}.safetensors"
        facts = {**self._facts, "clients": list(trained.names)}
        tensors, record = pack(trained, strategy, replicas, facts, kept=self._kept.joined())
        try:
            await asyncio.to_thread(save, path, tensors, record)
        except CheckpointError as error:
            event(_LOGGER, "checkpoint_failed", path=path, reason=str(error))
            return error
        event(_LOGGER, "checkpoint_saved", path=path)
        prune(self._folder, keep=KEEP)
        return None

    def recall(self, trained: Trained, strategy: StrategyRounds | None) -> dict[Value, Moments]:
        """Put the newest checkpoint's contents into `trained` and `strategy`; the moments by replica.

        Raises CheckpointError for one that is damaged, or of another job or other clients.
        """
        path = newest(self._folder) if self._folder is not None else None
        if path is None:
            return {}
        tensors, record = load(path)
        require_same({**self._facts, "clients": list(trained.names)}, record, path)
        self._kept.restore(below("kept/", tensors))
        return unpack(tensors, record, trained, strategy, path)

    def completed(self, trained: Trained, rounds: int) -> bool:
        """Whether training was over already when the server stopped; `trained` then holds all of it.

        What is wrong with a checkpoint is left to `recall`: by then there are clients, who are told as well.
        """
        try:
            path = newest(self._folder) if self._folder is not None else None
            if path is None:
                return False
            tensors, record = load(path)
            if record.get("round", 0) < rounds:
                return False
            require_same(self._facts, record, path)
            unpack(tensors, record, trained, None, path)
        except CheckpointError:
            return False
        trained.names = tuple(record["facts"]["clients"])
        return True
