"""Figures of a round from what its turns left."""

from __future__ import annotations

import math
from collections.abc import Sequence

from splitfl.planning.timeline import Timeline
from splitfl.run.enrollment import natural
from splitfl.run.options import Evaluate
from splitfl.run.trained import Trained
from splitfl.run.turn import TurnOutcome
from splitfl.transport.messages import Report


def metrics_of(trained: Trained, evaluate: Evaluate | None) -> dict[str, float]:
    """Test metrics of the trained model; of personal models, their mean."""
    if evaluate is None:
        return {}
    states = list(trained.models().values()) or [trained.model]
    found = [evaluate(state) for state in states]
    return {name: sum(each[name] for each in found) / len(found) for name in found[0]}


def train_loss(outcomes: Sequence[TurnOutcome]) -> float | None:
    """Mean training loss over all samples, from wherever the last loss is computed: the server or the clients.

    Summed by client id, so that who was done first does not show in the last bits.
    """
    loss, samples = 0.0, 0.0
    for outcome in outcomes:
        for client, report in sorted(outcome.reports.items()):
            tally = outcome.tallies.get(client)
            if tally is not None:
                loss, samples = loss + tally.loss, samples + tally.samples
            elif (trained := _reported(report, "train_samples")) > 0:
                loss, samples = loss + report.metrics.get("train_loss", math.nan) * trained, samples + trained
    return loss / samples if samples else None


def _reported(report: Report, name: str) -> float:
    """A metric of a client; 0 where it is missing or no number that makes sense."""
    value = report.metrics.get(name, 0.0)
    return value if math.isfinite(value) and value > 0 else 0.0


def idle_shares(
    outcomes: Sequence[TurnOutcome], *, slots: int, seconds: float, server_alone: float = 0.0
) -> dict[str, float]:
    """Share of a round's `seconds` in which each actor did not compute; the server has `slots` compute slots.

    `server_alone`: seconds in which it trained on its own, on one of them.
    """
    busy: dict[str, float] = {"server": (server_alone + sum(outcome.busy for outcome in outcomes)) / slots}
    for outcome in outcomes:
        for client, report in outcome.reports.items():
            actor = f"c{client}"
            busy[actor] = busy.get(actor, 0.0) + _reported(report, "busy")
    return {actor: min(1.0, max(0.0, 1 - busy[actor] / seconds)) for actor in sorted(busy, key=natural)}


def in_sequence(
    timelines: Sequence[Timeline], *, server_alone: float = 0.0, spent: float | None = None
) -> tuple[float, dict[str, float]]:
    """Seconds and idle shares of turns that follow one another, and of `server_alone` seconds of the server's own.

    `spent`: the seconds, where the turns did not follow one another; a client's work then counts where it arrives.
    """
    seconds = sum(timeline.makespan for timeline in timelines) + server_alone if spent is None else spent
    busy: dict[str, float] = {"server": server_alone} if server_alone else {}
    for timeline in timelines:
        for actor, spent in timeline.busy.items():
            busy[actor] = busy.get(actor, 0.0) + spent / timeline.slots[actor]
    return seconds, {
        actor: max(0.0, 1 - busy[actor] / seconds) if seconds else 0.0 for actor in sorted(busy, key=natural)
    }
