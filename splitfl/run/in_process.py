"""A whole run in one process: the same two ends as over the network, joined by channels in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from torch.utils.data import Dataset

from splitfl.run.blueprint import Blueprint
from splitfl.run.client import Client
from splitfl.run.enrollment import Enrollment
from splitfl.run.failure import first
from splitfl.run.federation import Options, Trained
from splitfl.run.pool import Inline
from splitfl.run.server import run_server
from splitfl.transport.memory import memory_pair


async def run_in_process(
    blueprint: Blueprint, datasets: Mapping[str, Dataset[Any]], *, options: Options, rounds: int
) -> Trained:
    """Train `rounds` rounds with one client for each data set, by name. Same bits as over gRPC."""
    pool = Inline()
    enrollment = Enrollment(blueprint, len(datasets))
    try:
        async with asyncio.TaskGroup() as group:
            for name, dataset in datasets.items():
                theirs, ours = memory_pair(name, "server")
                group.create_task(enrollment.admit(ours))
                group.create_task(Client(blueprint, dataset, name=name, channel=theirs, pool=pool).run())
            return await run_server(blueprint, enrollment, pool=pool, options=options, rounds=rounds)
    except BaseExceptionGroup as errors:
        raise first(errors) from None
