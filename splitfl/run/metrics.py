"""What happened: events with the simulator's own names, and running sums of the training loss."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from splitfl.planning.timeline import Event
from splitfl.schedule.instruction import Op

COMPUTE = frozenset({Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT, Op.STEP})


@dataclass(slots=True)
class Recorder:
    """Events of the turns that are under way, by step."""

    events: list[tuple[int, Event]] = field(default_factory=list)

    def add(self, step: int, event: Event) -> None:
        """Record one instruction of mini-batch `step`; its times are monotonic seconds."""
        self.events.append((step, event))

    def busy(self, clients: Collection[int]) -> float:
        """Seconds that were spent computing for `clients`, or for all together."""
        mine = (event for _, event in self.events if _is_of(event, clients) and event.instruction.op in COMPUTE)
        return sum(event.end - event.start for event in mine)

    def forget(self, clients: Collection[int]) -> None:
        """Forget the events of `clients`, and those of all together."""
        self.events = [(step, event) for step, event in self.events if not _is_of(event, clients)]

    def step(self, step: int, *, since: float, client: int | None = None) -> list[Event]:
        """The events of one mini-batch (of one client, or all), with times counted from `since`."""
        return [
            event._replace(start=event.start - since, end=event.end - since)
            for at, event in self.events
            if at == step and (client is None or event.instruction.client == client)
        ]


def _is_of(event: Event, clients: Collection[int]) -> bool:
    return event.instruction.client is None or event.instruction.client in clients


def traced_step(steps: int) -> int:
    """The mini-batch of a turn whose events go into the report: one in the middle, past the warm-up."""
    return steps // 2


@dataclass(slots=True)
class Tally:
    """Sums over the samples of one client in one turn; a mean over all samples whatever the batch sizes."""

    loss: float = 0.0
    samples: int = 0

    def add(self, loss: float, samples: int) -> None:
        """Add a micro-batch with a mean loss over its samples."""
        self.loss += loss * samples
        self.samples += samples

    @property
    def mean(self) -> float | None:
        """Mean loss over the samples; None without any."""
        return self.loss / self.samples if self.samples else None

    def metrics(self) -> dict[str, float]:
        """Mean training loss, and over how many samples."""
        if not self.samples:
            return {}
        return {"train_loss": self.loss / self.samples, "train_samples": self.samples}
