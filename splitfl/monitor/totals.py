"""What a server's rounds add up to: a value that grows by one record at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from splitfl.run.record import RoundRecord

BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
"""Upper bounds, in seconds, of the classes into which rounds are sorted by their length; the last class is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Rounds since this server started.

    rounds    how many were finished
    seconds   that they took together
    classes   how many took at most `BOUNDS[i]` seconds, but more than the bound before
    failures  of each client, by name: rounds that it dropped out of, or in which its update was refused
    last      record of the newest round, None before the first
    """

    rounds: int = 0
    seconds: float = 0.0
    classes: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    failures: Mapping[str, int] = field(default_factory=dict)
    last: RoundRecord | None = None

    def and_round(self, record: RoundRecord) -> Totals:
        """These totals and one more round."""
        place = next((i for i, bound in enumerate(BOUNDS) if record.seconds <= bound), len(BOUNDS))
        classes = tuple(count + (i == place) for i, count in enumerate(self.classes))
        failed = Counter(self.failures) + Counter({failure.client for failure in record.failures})
        return replace(
            self,
            rounds=self.rounds + 1,
            seconds=self.seconds + record.seconds,
            classes=classes,
            failures=dict(failed),
            last=record,
        )
