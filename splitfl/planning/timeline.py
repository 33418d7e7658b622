"""What happened when: the result of a simulation, and the form in which a real run is recorded too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from splitfl.schedule import Instruction


class Event(NamedTuple):
    """One instruction carried out.

    `start` and `end` are seconds on the timeline's clock. A SEND lasts from when it is handed over until its last byte
    has left; a RECV from when the lane waits for it until the message is there. `nbytes` are those on the wire.
    """

    actor: str
    instruction: Instruction
    start: float
    end: float
    nbytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A schedule in time.

    events       in order of start
    makespan     seconds until the last instruction was complete
    busy         seconds of computing per actor, over all its slots
    slots        compute slots per actor
    traffic      bytes per (sender, receiver)
    peak_memory  bytes per actor, at the worst moment
    """

    events: tuple[Event, ...]
    makespan: float
    busy: Mapping[str, float]
    slots: Mapping[str, int]
    traffic: Mapping[tuple[str, str], int]
    peak_memory: Mapping[str, int]

    @property
    def idle(self) -> dict[str, float]:
        """Share of its slots' time in which each actor does not compute, 0 to 1."""
        if not self.makespan:
            return dict.fromkeys(self.busy, 0.0)
        return {actor: 1 - busy / (self.makespan * self.slots[actor]) for actor, busy in self.busy.items()}

    @property
    def bubble(self) -> float:
        """Seconds in which the busiest actor does not compute: what a better schedule could win at most."""
        return self.makespan - max((busy / self.slots[actor] for actor, busy in self.busy.items()), default=0.0)

    def order(self, actor: str) -> tuple[Instruction, ...]:
        """The instructions of one actor, by start."""
        return tuple(event.instruction for event in self.events if event.actor == actor)
