"""What a running server shows of itself: metrics, and that it is about to stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from splitfl.events import event
from splitfl.monitor import Live, Metrics, expose
from splitfl.run.enrollment import Enrollment
from splitfl.run.pool import Threads
from splitfl.run.record import RoundRecord
from splitfl.run.standing import Standing
from splitfl.transport import Server

LOOK = 0.2
"""Seconds between two looks at whether the server is asked to stop."""

_LOGGER = logging.getLogger(__name__)

OnRound = Callable[[RoundRecord], None]


@contextmanager
def measured(
    address: str | None, enrollment: Enrollment, pool: Threads, *, rounds: int, on_metrics: Callable[[str], None]
) -> Iterator[OnRound]:
    """Metrics at `address` ("host:port") while the block lasts; gives what is to be called with every record.

    Without an address there are none. Raises SplitflError where it cannot be listened at.
    """
    if address is None:
        yield lambda _: None
        return
    live = Live(clients=lambda: enrollment.states, queue=lambda: pool.waiting, traffic=enrollment.traffic)
    metrics = Metrics(method=enrollment.method, rounds=rounds, expected=enrollment.expected, live=live)
    endpoint = expose(metrics.registry, address)
    try:
        on_metrics(endpoint.url)
        yield metrics.round
    finally:
        endpoint.close()


async def drained(stop: Callable[[], bool], server: Server, standing: Standing) -> None:
    """Once `stop` says so, tell probes and observers that the server will end after the round."""
    while not stop():
        await asyncio.sleep(LOOK)
    event(_LOGGER, "draining")
    server.drain()
    standing.note(phase="draining")
