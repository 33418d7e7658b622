"""What happens to a run, as log records with a name and fields: people read a line, machines a JSON object.

    event(_LOGGER, "client_enrolled", client="pi-kitchen", samples=812)

It goes through the standard `logging`, so that whoever embeds splitfl decides where it ends. Values may come from
clients: the line that an event turns into has no line breaks and no control characters, whatever they hold.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Name = Literal[
    "server_started",
    "client_connected",
    "client_enrolled",
    "client_refused",
    "client_lost",
    "client_returned",
    "client_late",
    "client_dropped",
    "round_started",
    "round_finished",
    "checkpoint_saved",
    "checkpoint_failed",
    "draining",
    "server_stopped",
]
"""Every event that there is; `docs/monitoring.md` says what each means and which fields it has."""

LEVELS: Mapping[str, int] = {
    "client_refused": logging.WARNING,
    "client_lost": logging.WARNING,
    "client_late": logging.WARNING,
    "client_dropped": logging.WARNING,
    "checkpoint_failed": logging.ERROR,
}
"""How much each event matters; those that are not listed are information."""

_PLAIN = re.compile(r"[\w.:/@%+-]+")


@dataclass(frozen=True, slots=True)
class Event:
    """The message of a log record: an event's name and its fields."""

    name: str
    fields: Mapping[str, object]

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{field}={plain(value)}" for field, value in self.fields.items())])


def event(logger: logging.Logger, name: Name, /, **fields: object) -> None:
    """Log that `name` happened, at the level that `LEVELS` gives it."""
    level = LEVELS.get(name, logging.INFO)
    if logger.isEnabledFor(level):
        logger.log(level, Event(name, fields), stacklevel=2)


def plain(value: object) -> str:
    """A value on one line, in quotes where it would not be one word."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if _PLAIN.fullmatch(text) else one_line(json.dumps(text, ensure_ascii=False))


def one_line(text: str) -> str:
    """`text` with everything escaped that could break a line, move a cursor or turn the writing's direction."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
