"""A whole run in one process: the same two ends as over the network, joined by channels in memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch.utils.data import Dataset

from splitfl.errors import SplitflError
from splitfl.run.blueprint import Blueprint
from splitfl.run.client import Client, Connect
from splitfl.run.enrollment import Enrollment
from splitfl.run.failure import first
from splitfl.run.options import Options
from splitfl.run.pool import Inline
from splitfl.run.seeds import derive
from splitfl.run.server import run_server
from splitfl.run.trained import Trained
from splitfl.transport.base import Channel
from splitfl.transport.memory import memory_pair

_LOGGER = logging.getLogger(__name__)


async def run_in_process(
    blueprint: Blueprint, datasets: Mapping[str, Dataset[Any]], *, options: Options, rounds: int
) -> Trained:
    """Train `rounds` rounds with one client for each data set, by name. Same bits as over gRPC.

    A client that fails while it trains is left out, as over gRPC. Raises SplitflError where one cannot enroll, or none
    is left.
    """
    # Nothing can be lost on the way from memory to memory, so nothing is kept to go back to.
    blueprint = replace(blueprint, deadlines=replace(blueprint.deadlines, rejoin=0.0))
    pool = Inline()
    key = f"{derive(blueprint.seed, 'linkage'):032x}".encode()  # no secret among clients in one process
    enrollment = Enrollment(blueprint, len(datasets))
    servers: list[BaseException] = []
    try:
        async with asyncio.TaskGroup() as group:
            for name, dataset in datasets.items():
                theirs, ours = memory_pair(name, "server")
                group.create_task(enrollment.admit(ours))
                client = Client(blueprint, dataset, name=name, connect=_opened(theirs), pool=pool, link_key=key)
                group.create_task(_take_part(client))
            try:
                return await run_server(blueprint, enrollment, pool=pool, options=options, rounds=rounds)
            except BaseException as error:
                servers.append(error)  # what happens to the clients then is only a consequence
                raise
    except BaseExceptionGroup as errors:
        cause = servers[0] if servers and not isinstance(servers[0], asyncio.CancelledError) else first(errors)
        raise cause from cause.__cause__


async def _take_part(client: Client) -> None:
    try:
        await client.run()
    except Exception as error:
        if not client.enrolled:
            raise
        known = isinstance(error, SplitflError)  # then the round's record says all that there is to say
        _LOGGER.warning("client %s failed: %s", client.name, error, exc_info=None if known else error)


def _opened(channel: Channel) -> Connect:
    async def connect() -> Channel:
        return channel

    return connect
