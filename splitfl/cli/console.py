"""What commands print: tables and progress for people, one JSON object per line for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from splitfl.run.record import History, RoundRecord


def say(text: str) -> None:
    """A line for people."""
    Console(highlight=False, soft_wrap=True).print(text, markup=False)


def emit(event: str, **fields: Any) -> None:
    """One JSON object on a line of its own, at once: another process may be waiting for it."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = True) -> None:
    """A table; the first column is text that may wrap, the others are numbers unless said otherwise."""
    made = Table(title=title or None, title_justify="left", title_style="", header_style="bold", box=box.SIMPLE_HEAD)
    made.show_edge = made.pad_edge = False
    made.collapse_padding = True
    for index, column in enumerate(columns):
        figure = numbers and index > 0
        made.add_column(column, justify="right" if figure else "left", no_wrap=figure, overflow="fold")
    for row in rows:
        made.add_row(*row)
    Console(highlight=False).print(made)


def bytes_text(count: float) -> str:
    """Bytes for people: 1.5 MB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def count_text(count: float) -> str:
    """A count for people: exact below a hundred thousand, then 626.7 k, 1.8 M, 3.6 G."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= max(size, 1e5):
            return f"{count / size:,.1f} {unit}"
    return f"{count:,.0f}"


def percent(share: float | None) -> str:
    """A share for people, or a dash."""
    return "-" if share is None else f"{100 * share:.1f} %"


def mean(values: Sequence[float]) -> float | None:
    """The mean, or None of nothing."""
    return sum(values) / len(values) if values else None


def comparison(histories: Sequence[History]) -> None:
    """A table with one run per line."""
    rows = []
    for history in histories:
        rounds = history.rounds
        idle = _idle(rounds)
        rows.append(
            (
                history.title,
                percent(rounds[-1].accuracy),
                f"{sum(each.seconds for each in rounds):.2f} s",
                bytes_text(sum(each.bytes_up for each in rounds)),
                bytes_text(sum(each.bytes_down for each in rounds)),
                percent(idle.get("server")),
                percent(mean([share for actor, share in idle.items() if actor != "server"])),
            )
        )
    say("")
    table("", ("run", "accuracy", "time", "up", "down", "server idle", "clients idle"), rows)


def _idle(rounds: Sequence[RoundRecord]) -> Mapping[str, float]:
    """Idle shares over all rounds, each round weighted by its length."""
    total = sum(each.seconds for each in rounds) or 1.0
    actors = dict.fromkeys(actor for each in rounds for actor in each.idle)
    return {actor: sum(each.idle.get(actor, 1.0) * each.seconds for each in rounds) / total for actor in actors}
