"""The tables of the report: one line per run, the settings side by side, and who failed and why."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any, NamedTuple

from splitfl.report.curves import Runs, mean_idle
from splitfl.report.gantt import makespan
from splitfl.report.units import NOTHING, as_bytes, as_number, as_percent, as_seconds
from splitfl.run.record import History

SUMMARY = (
    ("Method", False),
    ("Rounds", True),
    ("Accuracy", True),
    ("Best", True),
    ("Test loss", True),
    ("Time", True),
    ("Per round", True),
    ("Up", True),
    ("Down", True),
    ("Idle, clients", True),
    ("Idle, server", True),
    ("Failures", True),
)
"""Headings of the summary, with whether the column holds numbers."""


class Setting(NamedTuple):
    """One setting in every run; `differs` where the runs do not agree."""

    name: str
    values: tuple[str, ...]
    differs: bool


class Dropped(NamedTuple):
    """A client's failure, with the run and the round it happened in."""

    run: str
    round: int
    client: str
    reason: str


def summary(history: History) -> tuple[str, ...]:
    """One run in a line, in the order of SUMMARY."""
    rounds = history.rounds
    tested = [record.accuracy for record in rounds if record.accuracy is not None]
    losses = [record.loss for record in rounds if record.loss is not None]
    seconds = sum(record.seconds for record in rounds)
    clocks = {record.clock for record in rounds}
    clock = f" ({clocks.pop()})" if len(clocks) == 1 else ""
    idle = mean_idle(history)
    clients = [share for actor, share in idle.items() if actor != "server"]
    return (
        history.method,
        str(len(rounds)),
        as_percent(tested[-1] if tested else None),
        as_percent(max(tested, default=None)),
        as_number(losses[-1] if losses else None),
        f"{as_seconds(seconds)}{clock}" if rounds else NOTHING,
        as_seconds(seconds / len(rounds)) if rounds else NOTHING,
        as_bytes(sum(record.bytes_up for record in rounds)),
        as_bytes(sum(record.bytes_down for record in rounds)),
        as_percent(fmean(clients) if clients else None),
        as_percent(idle.get("server")),
        str(sum(len(record.failures) for record in rounds)),
    )


def clients(history: History) -> str:
    """The clients' names, each after the actor's name that the charts show where that is another."""
    actors = {f"c{index}": name for index, name in enumerate(history.clients)}
    return ", ".join(name if name == actor else f"{actor}: {name}" for actor, name in actors.items())


def settings(runs: Runs) -> list[Setting]:
    """Every setting that any run has, by its dotted name."""
    columns = [dict(_flat(history.settings)) for history in runs.values()]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = []
    for name in names:
        values = tuple(column.get(name, NOTHING) for column in columns)
        rows.append(Setting(name, values, len(set(values)) > 1))
    return rows


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, inner in value.items():
        name = f"{prefix}{key}"
        if isinstance(inner, Mapping) and inner:
            yield from _flat(inner, f"{name}.")
        else:
            yield name, inner if isinstance(inner, str) else json.dumps(inner, default=str, ensure_ascii=False)


def failures(runs: Runs) -> list[Dropped]:
    """Everyone who dropped out or was refused, in the order of the rounds."""
    return [
        Dropped(title, record.round, failure.client, failure.reason)
        for title, history in runs.items()
        for record in history.rounds
        for failure in record.failures
    ]


def prediction(history: History) -> str:
    """How far the simulator was from what was measured, as a sentence; empty where one of them is missing."""
    measured, predicted = makespan(history.measured), makespan(history.predicted)
    if not (measured and predicted):
        return ""
    error = (predicted / measured - 1) * 100
    return f"measured {as_seconds(measured)}, predicted {as_seconds(predicted)} ({error:+.0f} %)".replace(
        "-", "\N{MINUS SIGN}"
    )
