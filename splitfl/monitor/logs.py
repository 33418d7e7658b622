"""Logs of everything under `splitfl`, as text for people or as one JSON object per line for machines."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Literal, TextIO, get_args

from splitfl.errors import SplitflError
from splitfl.events import Event, one_line, plain
from splitfl.monitor.redaction import Redaction

Level = Literal["debug", "info", "warning", "error"]
Form = Literal["text", "json"]

LONGEST = 10_000
"""Characters of one message, field or traceback that are written."""

_ROOT = "splitfl"
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
"""What every record has: all else was given as `extra`."""

_OWN = ("time", "level", "logger", "message", "exception")
"""Keys of a JSON line that no field may take the place of."""


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes records to a stream, made by `configure_logs`."""

    def __init__(self, stream: TextIO, form: Form, redaction: Redaction) -> None:
        super().__init__(stream)
        self._redaction = redaction
        self.setFormatter(JsonForm(redaction) if form == "json" else TextForm(redaction))

    def conceal(self, secret: str) -> None:
        """Write `***` wherever `secret` would stand, from now on."""
        self._redaction.conceal(secret)

    def close(self) -> None:
        """Write no more, and leave logging as it was; the stream stays open."""
        logger = logging.getLogger(_ROOT)
        if self in logger.handlers:
            logger.removeHandler(self)
            logger.setLevel(logging.NOTSET)
        super().close()


def configure_logs(
    level: str = "info", form: str = "text", *, stream: TextIO | None = None, secrets: Iterable[str] = ()
) -> LogHandler:
    """Write what splitfl logs, from `level` on, to `stream` (stderr), and replace what an earlier call set up.

    form     "text": `2026-01-01T00:00:00Z INFO server: client_enrolled client=pi samples=812`;
             "json": an object per line with time, level, logger, message, the fields, and exception where there is one
    secrets  strings that must not appear; more through the handler's `conceal`

    Only the logger `splitfl` is touched. Raises SplitflError for an unknown level or form.
    """
    if level not in get_args(Level):
        raise SplitflError(f"log level {level!r}: expected {', '.join(get_args(Level))}")
    if form not in ("text", "json"):
        raise SplitflError(f"log format {form!r}: expected {' or '.join(get_args(Form))}")
    logger = logging.getLogger(_ROOT)
    for earlier in [each for each in logger.handlers if isinstance(each, LogHandler)]:
        earlier.close()
    handler = LogHandler(stream or sys.stderr, "json" if form == "json" else "text", Redaction(secrets))
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    return handler


class TextForm(logging.Formatter):
    """A line per record. A traceback follows on indented lines, so that no line but ours begins with a time."""

    def __init__(self, redaction: Redaction) -> None:
        super().__init__()
        self._redaction = redaction

    def format(self, record: logging.LogRecord) -> str:
        """The record's line, and those of its traceback."""
        place = record.name.rpartition(".")[2]
        line = f"{_time(record, 'seconds')} {record.levelname} {place}: {_message(record, self._redaction)}"
        for name, value in _fields(record, self._redaction).items():
            line += f" {one_line(name)}={plain(value)}"
        trace = _exception(self, record, self._redaction)
        return "\n    ".join([one_line(line), *map(one_line, trace.splitlines())])


class JsonForm(logging.Formatter):
    """A JSON object per record, in ASCII: nothing in it can end the line."""

    def __init__(self, redaction: Redaction) -> None:
        super().__init__()
        self._redaction = redaction

    def format(self, record: logging.LogRecord) -> str:
        """The record's object on one line."""
        written: dict[str, object] = {
            "time": _time(record, "milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record, self._redaction),
        }
        for name, value in _fields(record, self._redaction).items():
            written[f"{name}_" if name in _OWN else name] = _jsonable(value)
        if trace := _exception(self, record, self._redaction):
            written["exception"] = trace
        # JSON does not ask for DEL to be escaped; terminals act on it.
        return json.dumps(written, allow_nan=False).replace("\x7f", "\\u007f")


def _time(record: logging.LogRecord, precision: str) -> str:
    moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec=precision)
    return moment.removesuffix("+00:00") + "Z"


def _message(record: logging.LogRecord, redaction: Redaction) -> str:
    """An event's name; what any other record says."""
    if isinstance(record.msg, Event):
        return record.msg.name
    return _short(redaction.text(record.getMessage()))


def _fields(record: logging.LogRecord, redaction: Redaction) -> dict[str, object]:
    """The event's fields and the record's `extra`, without secrets."""
    own = record.msg.fields if isinstance(record.msg, Event) else {}
    extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    shown = {name: redaction.field(name, value) for name, value in {**own, **extra}.items()}
    return {name: _short(value) if isinstance(value, str) else value for name, value in shown.items()}


def _exception(form: logging.Formatter, record: logging.LogRecord, redaction: Redaction) -> str:
    """The traceback and the stack that belong to a record, or nothing."""
    parts = [form.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
    if record.stack_info:
        parts.append(form.formatStack(record.stack_info))
    return _short(redaction.text("\n".join(parts)))


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text) - LONGEST} more characters)"


def _jsonable(value: object) -> object:
    """A value for JSON, which has no NaN: figures that are none are written as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {name: _jsonable(each) for name, each in value.items()}
    return [_jsonable(each) for each in value] if isinstance(value, list) else value
