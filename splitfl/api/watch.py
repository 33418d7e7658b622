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


class Drain:
    """Asks `stop` whether the server is to end after the round, and tells probes and observers once it is."""

    def __init__(self, stop: Callable[[], bool], server: Server, standing: Standing) -> None:
        self._stop = stop
        self._server = server
        self._standing = standing
        self._told = False

    def asked(self) -> bool:
        """Whether the server is asked to end."""
        if self._stop() and not self._told:
            self._told = True
            event(_LOGGER, "draining")
            self._server.drain()
            self._standing.note(phase="draining")
        return self._told

    async def watch(self) -> None:
        """Look again and again, since a round may last."""
        while not self.asked():
            await asyncio.sleep(LOOK)
