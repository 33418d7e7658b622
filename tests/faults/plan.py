"""What goes wrong in one run of the lab, all of it drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

METHODS = ("fedavg", "sl", "splitfed-v1", "splitfed-v2", "splitfed-v3", "pipar")

CLIENTS = ("ada", "bob", "cyd")

ROUNDS = 3

Kind = Literal["cut", "half-open", "outage", "stall", "slow", "pause", "kill client", "kill server", "leave"]

KINDS: tuple[Kind, ...] = ("cut", "half-open", "outage", "stall", "slow", "pause", "kill client", "kill server")

HORIZON = 21_000
"""Bytes of one direction of a client's link within which something happens; a run moves about as many, or more."""


@dataclass(frozen=True)
class Event:
    """One fault: it happens when `at` bytes have gone in `direction` over the link of `client`.

    seconds  how long it lasts: a stall, an outage, a pause, or until a killed process is started again
    """

    kind: Kind
    client: str
    direction: Literal["up", "down"]
    at: int
    seconds: float

    def __str__(self) -> str:
        lasts = "" if self.kind in ("cut", "leave") else f" for {self.seconds:.1f} s"
        return f"{self.kind} at byte {self.at} {self.direction} of {self.client}{lasts}"


@dataclass(frozen=True)
class Plan:
    """A job and its faults. Links of clients have a rate in bytes a second, or none, and a delay in seconds."""

    seed: int
    method: str
    optimizer_state: Literal["reset", "keep"]
    rates: tuple[float | None, ...]
    delays: tuple[float, ...]
    events: tuple[Event, ...]


def plan(seed: int) -> Plan:
    """The run of `seed`: a method, links, and one to four faults; in one of eight a client leaves for good."""
    draw = random.Random(seed)
    leaving = draw.random() < 1 / 8
    events = [_event(draw, leaving) for _ in range(draw.randint(1, 4))]
    if leaving:
        events.append(Event("leave", draw.choice(CLIENTS), "up", draw.randrange(5_000, HORIZON), 0.0))
    return Plan(
        seed=seed,
        method=METHODS[seed % len(METHODS)],
        optimizer_state=draw.choice(("reset", "keep")),
        rates=tuple(draw.choice((None, None, 400_000.0)) for _ in CLIENTS),
        delays=tuple(draw.choice((0.0, 0.0, 0.003)) for _ in CLIENTS),
        events=tuple(sorted(events, key=lambda event: event.at)),
    )


def _event(draw: random.Random, leaving: bool) -> Event:
    # A server that starts again waits for all of its clients: one that left for good would end the training.
    kinds = [kind for kind in KINDS if not (leaving and kind == "kill server")]
    return Event(
        kind=draw.choice(kinds),
        client=draw.choice(CLIENTS),
        direction=draw.choice(("up", "down")),
        at=draw.randrange(1, HORIZON),
        seconds=draw.uniform(0.1, 1.5),
    )
