"""How training stands, for those who look on: kept by the server, told to every observer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from splitfl.run.failure import within
from splitfl.run.parting import PATIENCE
from splitfl.run.record import RoundRecord
from splitfl.transport.base import Channel
from splitfl.transport.messages import Status
from splitfl.version import __version__


class Standing:
    """The state of one training. `clients` gives the clients that ever came, by name, and how each one is.

    phase   "enrolling", "training", "draining", and at the end "finished", "stopped" or "failed"
    rounds  that are planned; None where nobody has said yet
    """

    def __init__(self, method: str, expected: int, *, clients: Callable[[], Mapping[str, str]]) -> None:
        self.phase = "enrolling"
        self.rounds: int | None = None
        self.last: RoundRecord | None = None
        self._method = method
        self._expected = expected
        self._clients = clients
        self._started = time.monotonic()
        self._changes = 0
        self._changed = asyncio.Condition()
        self._waking: set[asyncio.Task[None]] = set()

    @property
    def content(self) -> dict[str, Any]:
        """What an observer is told, ready for JSON."""
        return {
            "phase": self.phase,
            "method": self._method,
            "round": self.last.round if self.last else 0,
            "rounds": self.rounds,
            "clients": dict(self._clients()),
            "expected": self._expected,
            "seconds": round(time.monotonic() - self._started, 3),
            "version": __version__,
            "last": json.loads(self.last.to_json()) if self.last else None,
        }

    def note(self, *, phase: str | None = None, rounds: int | None = None, last: RoundRecord | None = None) -> None:
        """Take in what is new, and tell the observers."""
        self.phase = phase or self.phase
        self.rounds = self.rounds if rounds is None else rounds
        self.last = last or self.last
        self._changes += 1
        task = asyncio.get_running_loop().create_task(self._wake())
        self._waking.add(task)
        task.add_done_callback(self._waking.discard)

    async def show(self, channel: Channel) -> None:
        """Tell one observer how training stands, now and after every change, until it goes."""
        gone = asyncio.create_task(channel.wait_closed())
        try:
            while not gone.done():
                told = self._changes
                word = Status(json.dumps(self.content))
                await within(PATIENCE, channel.tell(word), what="the observer did not take the status")
                changed = asyncio.create_task(self._after(told))
                await asyncio.wait({gone, changed}, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
        finally:
            gone.cancel()

    async def _after(self, told: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._changes > told)

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()
