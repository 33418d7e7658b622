"""Figures of a round from what its turns left."""

from __future__ import annotations

from collections.abc import Sequence

from splitfl.planning.timeline import Timeline
from splitfl.run.enrollment import natural
from splitfl.run.turn import TurnOutcome


def train_loss(outcomes: Sequence[TurnOutcome]) -> float | None:
    """Mean training loss over all samples, from wherever the last loss is computed: the server or the clients."""
    loss, samples = 0.0, 0
    for outcome in outcomes:
        for client, report in outcome.reports.items():
            tally = outcome.tallies.get(client)
            if tally is not None:
                loss, samples = loss + tally.loss, samples + tally.samples
            elif "train_loss" in report.metrics:
                trained = int(report.metrics["train_samples"])
                loss, samples = loss + report.metrics["train_loss"] * trained, samples + trained
    return loss / samples if samples else None


def idle_shares(outcomes: Sequence[TurnOutcome], *, slots: int, seconds: float) -> dict[str, float]:
    """Share of a round's `seconds` in which each actor did not compute; the server has `slots` compute slots."""
    busy: dict[str, float] = {"server": sum(outcome.busy for outcome in outcomes) / slots}
    for outcome in outcomes:
        for client, report in outcome.reports.items():
            actor = f"c{client}"
            busy[actor] = busy.get(actor, 0.0) + report.metrics.get("busy", 0.0)
    return {actor: min(1.0, max(0.0, 1 - busy[actor] / seconds)) for actor in sorted(busy, key=natural)}


def in_sequence(timelines: Sequence[Timeline]) -> tuple[float, dict[str, float]]:
    """Seconds and idle shares of turns that follow one another."""
    seconds = sum(timeline.makespan for timeline in timelines)
    busy: dict[str, float] = {}
    for timeline in timelines:
        for actor, spent in timeline.busy.items():
            busy[actor] = busy.get(actor, 0.0) + spent / timeline.slots[actor]
    return seconds, {actor: 1 - busy[actor] / seconds if seconds else 0.0 for actor in sorted(busy, key=natural)}
