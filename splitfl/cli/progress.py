"""A run as it goes: what it waits for, and a line for each round."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rich.console import Console

from splitfl.cli import console
from splitfl.run.record import RoundRecord

COLUMNS = (("accuracy", 10), ("loss", 8), ("time", 10), ("up", 10), ("down", 10), ("idle: server", 14), ("clients", 9))
"""Heads of a round's line after its number, with their widths: 80 columns with the number."""


class Progress:
    """Prints the progress of one run, for people or for machines. A terminal also shows what goes on right now.

    run     what the events of machines call the run
    rounds  how many there will be
    """

    def __init__(self, run: str, *, rounds: int, as_json: bool) -> None:
        self._run = run
        self._rounds = rounds
        self._as_json = as_json
        self._console = Console(highlight=False, soft_wrap=True)
        self._headed = False
        lively = self._console.is_terminal and not as_json
        self._status = self._console.status("") if lively else None

    def __enter__(self) -> Progress:
        self._shown.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._shown.__exit__(*error)

    def say(self, text: str) -> None:
        """A line for people about what happens now."""
        if not self._as_json:
            self._console.print(text, markup=False)
        self._now(text)

    def round(self, record: RoundRecord) -> None:
        """A round is over."""
        if self._as_json:
            console.emit("round", run=self._run, record=json.loads(record.to_json()))
            return
        if not self._headed:
            self._headed = True
            self._console.print(head(record))
        self._console.print(line(record), markup=False)
        if record.round < self._rounds:
            self._now(f"{self._run}: round {record.round + 1} of {self._rounds}")

    def _now(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text)

    @property
    def _shown(self) -> AbstractContextManager[Any]:
        return self._status or nullcontext()


def head(record: RoundRecord) -> str:
    """The line above the rounds. Virtual time is called so."""
    clock = "virtual" if record.clock == "virtual" else "time"
    return " " * 9 + "".join(f"{clock if name == 'time' else name:>{width}}" for name, width in COLUMNS)


def line(record: RoundRecord) -> str:
    """One round in one line, and a line below it for each client that failed."""
    clients = [share for actor, share in record.idle.items() if actor != "server"]
    cells = (
        console.percent(record.accuracy),
        "-" if record.loss is None else f"{record.loss:.4f}",
        f"{record.seconds:.2f} s",
        console.bytes_text(record.bytes_up),
        console.bytes_text(record.bytes_down),
        console.percent(record.idle.get("server")),
        console.percent(console.mean(clients)),
    )
    written = "".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, COLUMNS, strict=True))
    failed = "".join(f"\n    {failure.client}: {failure.reason}" for failure in record.failures)
    return f"round {record.round:>3}{written}{failed}"
