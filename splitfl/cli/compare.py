"""`splitfl compare`: the methods of a job side by side, averaged over seeds."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from splitfl.api.compare import Compared, compare, table
from splitfl.cli import console
from splitfl.cli.options import JobFile, Json, Report, Rounds
from splitfl.config import load_job


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command("compare")(compare_command)


def compare_command(job: JobFile, rounds: Rounds = None, report: Report = None, as_json: Json = False) -> None:
    """Train the runs of a job's [compare] section in one process, each with several seeds, and print one table."""

    def begins(name: str, number: int, count: int) -> None:
        if not as_json:
            console.say(f"{name}: seed {number} of {count}")

    lines = []
    for line in compare(load_job(job), rounds=rounds, on_seed=begins):
        lines.append(line)
        if as_json:
            console.emit("compared", **table([line])[0])
    if report is not None:
        from splitfl.report import write

        write([history for line in lines for history in line.histories[:1]], report)
    if as_json:
        return
    _print(lines)
    if report is not None:
        console.say(f"report of each run's first seed: {report}")


def _print(lines: Sequence[Compared]) -> None:
    rows = [
        (
            line.name,
            console.percent(line.accuracy),
            console.percent(line.spread),
            str(line.rounds),
            console.bytes_text(line.per_round("bytes_up")),
            console.bytes_text(line.per_round("bytes_down")),
            f"{line.per_round('seconds'):.2f} s",
        )
        for line in lines
    ]
    title = "per round: bytes of all clients, virtual time; +-: standard deviation over the seeds"
    console.table(title, ("run", "accuracy", "+-", "rounds", "up", "down", "time"), rows)
    for line in lines:
        for problem in line.problems:
            console.say(f"{line.name}: {problem}")
