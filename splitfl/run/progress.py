"""One round under way: who was asked, what came of it, and the record that it leaves."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from splitfl.aggregation import Refusal
from splitfl.aggregation.values import Reply
from splitfl.errors import SplitflError
from splitfl.methods import Phase
from splitfl.planning.timeline import Timeline
from splitfl.run.metrics import Tally
from splitfl.run.options import Options
from splitfl.run.record import Failure, RoundRecord
from splitfl.run.stragglers import Stragglers
from splitfl.run.summary import idle_shares, in_sequence, train_loss
from splitfl.run.turn import TurnOutcome


@dataclass(slots=True)
class Progress:
    """What a round has done so far.

    traffic   bytes from and to the clients before it
    clock     the virtual time when it began, where rounds overlap
    asked     clients that were to train
    refused   those whose work does not count, and why
    alone     what the server trained on its own, and in how many seconds
    """

    number: int
    phase: Phase
    names: Mapping[int, str]
    traffic: tuple[int, int] = (0, 0)
    clock: float = 0.0
    outcomes: list[TurnOutcome] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    asked: set[int] = field(default_factory=set)
    alone: Tally | None = None
    alone_seconds: float = 0.0
    begun: float = field(default_factory=time.monotonic)

    def refuse(self, replies: Iterable[Reply]) -> None:
        """Take down who of `replies` failed."""
        self.refused.extend(reply for reply in replies if isinstance(reply, Refusal))

    def participants(self) -> tuple[str, ...]:
        """Names of those whose work is in the weights, by id."""
        refused = {refusal.client for refusal in self.refused}
        clients = {client for turn in self.outcomes for client in turn.reports} - refused
        return tuple(self.names[client] for client in sorted(clients))

    def require_quorum(self, stragglers: Stragglers) -> None:
        """Raise SplitflError where too few of the clients that were asked have work in the round."""
        asked, delivered = len(self.asked), len(self.participants())
        needed = max(stragglers.needed(asked), 1)
        if delivered < needed:
            reasons = "; ".join(map(str, self.refused)) or "more were not asked"
            found = (
                f"{delivered} of {asked} clients delivered, the quorum is {needed}" if delivered else "nobody trained"
            )
            raise SplitflError(f"round {self.number}: {found} ({reasons})")

    def record(
        self,
        metrics: Mapping[str, float],
        *,
        seconds: float,
        traffic: tuple[int, int],
        slots: int,
        options: Options,
        clock: float | None,
    ) -> RoundRecord:
        """The round as it went.

        seconds  that it really took
        traffic  bytes from and to the clients by now
        slots    compute slots of the server
        clock    the virtual time by now, where rounds overlap
        """
        up, down = (now - then for now, then in zip(traffic, self.traffic, strict=True))
        loss = train_loss(self.outcomes)
        idle = idle_shares(self.outcomes, slots=slots, seconds=seconds, server_alone=self.alone_seconds)
        if options.virtual:
            spent = None if clock is None else clock - self.clock
            alone = options.alone(self.alone)
            seconds, idle = in_sequence(_timelines(self.outcomes, options), server_alone=alone, spent=spent)
        return RoundRecord(
            round=self.number,
            seconds=seconds,
            clock="virtual" if options.virtual else "real",
            accuracy=metrics.get("accuracy"),
            loss=metrics.get("loss"),
            train_loss=self.alone.mean if loss is None and self.alone else loss,
            bytes_up=up,
            bytes_down=down,
            idle=idle,
            participants=self.participants(),
            failures=tuple(Failure(refusal.name, refusal.reason) for refusal in self.refused),
        )


def _timelines(outcomes: Sequence[TurnOutcome], options: Options) -> list[Timeline]:
    return [options.predict(outcome.plans) for outcome in outcomes if outcome.plans and options.predict]
