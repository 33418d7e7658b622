"""How many may come to a server, and how often: decided before a session costs anything."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

WINDOW = 60.0
"""Seconds over which the sessions of one host are counted."""

HOSTS = 4096
"""Hosts whose sessions are counted; beyond it the longest silent one is forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """What a server takes on.

    open        sessions at the same time
    per_minute  new sessions of one host in a minute, lost ones that come back included
    """

    open: int = 1024
    per_minute: int = 600


class Gate:
    """Counts the sessions of one server. `clock` gives seconds that never run backwards."""

    def __init__(self, limits: SessionLimits, *, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._recent: dict[str, deque[float]] = {}

    def objection(self, host: str, *, open_sessions: int) -> str | None:
        """Why one more session of `host` is refused; None lets it in, and counts it."""
        if open_sessions >= self._limits.open:
            return f"this server has {open_sessions} sessions, as many as it takes: try again later"
        now = self._clock()
        recent = self._recent.pop(host, None) or deque()
        while recent and recent[0] <= now - WINDOW:
            recent.popleft()
        self._recent[host] = recent  # at the end: the first in the dictionary is the longest silent
        if len(recent) >= self._limits.per_minute:
            return f"{host} opened {len(recent)} sessions within a minute, as many as one host may: try again later"
        recent.append(now)
        if len(self._recent) > HOSTS:
            del self._recent[next(iter(self._recent))]
        return None
