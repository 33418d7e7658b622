"""The control messages of a session as bytes: one table lays them out, two short walks over it write and read.

The table says what proto/splitfl/v1/session.proto says; a test holds the two together. A field that this version does
not know is skipped, so that a newer client can still be told which version this server speaks.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from splitfl.codecs.proto3 import FIXED64, LENGTH, VARINT, as_text, fields, length_header, tag, uint_field
from splitfl.transport.base import EnvelopeError
from splitfl.transport.messages import Begin, Control, Finish, Hello, Refuse, Report, Status, Step, Traced, Welcome

CONTROL_LIMIT = 8 << 20
"""Bytes of one control message."""

CONTROLS: Mapping[int, type] = {1: Hello, 2: Welcome, 3: Begin, 4: Report, 5: Refuse, 6: Finish, 8: Status}
"""The control messages by their field number in `Envelope`."""

_NUMBERS = {message: number for number, message in CONTROLS.items()}


class _Metric(NamedTuple):
    name: str
    value: float


class _Field(NamedTuple):
    """A field: its number, the attribute it stands for, and its type. A type that is a class is a nested message."""

    number: int
    attribute: str
    type: str | type
    repeated: bool = False


_LAYOUTS: Mapping[type, tuple[_Field, ...]] = {
    Hello: (
        _Field(1, "protocol", "uint32"),
        _Field(2, "client", "string"),
        _Field(3, "fingerprint", "string"),
        _Field(4, "samples", "uint64"),
        _Field(5, "software", "string"),
        _Field(6, "token", "string"),
        _Field(7, "instance", "string"),
        _Field(8, "session", "string"),
        _Field(9, "turn", "uint32"),
        _Field(10, "steps", "uint32"),
        _Field(11, "role", "string"),
        _Field(12, "links", "string"),
    ),
    Welcome: (
        _Field(1, "session", "string"),
        _Field(2, "client", "uint32"),
        _Field(3, "clients", "uint32"),
        _Field(4, "settings", "string"),
        _Field(5, "links", "string"),
    ),
    Begin: (
        _Field(1, "round", "uint32"),
        _Field(2, "seed", "uint64"),
        _Field(3, "opening", "string"),
        _Field(4, "programs", "string", repeated=True),
        _Field(5, "closing", "string"),
        _Field(6, "plan", Step, repeated=True),
        _Field(7, "first", "uint32"),
        _Field(8, "phase", "string"),
    ),
    Report: (
        _Field(1, "round", "uint32"),
        _Field(2, "samples", "uint64"),
        _Field(3, "metrics", _Metric, repeated=True),
        _Field(4, "trace", Traced, repeated=True),
    ),
    Refuse: (_Field(1, "code", "string"), _Field(2, "message", "string")),
    Finish: (_Field(1, "reason", "string"),),
    Status: (_Field(1, "content", "string"),),
    Step: (_Field(1, "program", "uint32"), _Field(2, "samples", "uint32")),
    _Metric: (_Field(1, "name", "string"), _Field(2, "value", "double")),
    Traced: (
        _Field(1, "instruction", "string"),
        _Field(2, "start", "double"),
        _Field(3, "end", "double"),
        _Field(4, "nbytes", "uint64"),
    ),
}

_BITS = {"uint32": 32, "uint64": 64}


def encode_control(control: Control) -> bytes:
    """A control message as an envelope. Raises EnvelopeError for a value that does not fit its field."""
    body = _write(control)
    if len(body) > CONTROL_LIMIT:
        raise EnvelopeError(f"{type(control).__name__} has {len(body)} bytes, expected at most {CONTROL_LIMIT}")
    return length_header(_NUMBERS[type(control)], len(body)) + body


def decode_control(number: int, view: memoryview) -> Control:
    """The control message in field `number` of an envelope. Raises WireError for malformed bytes."""
    control: Control = _read(CONTROLS[number], view)
    return control


def _write(message: Any) -> bytes:
    return b"".join(
        _write_field(field, item, alone=not field.repeated, where=type(message).__name__)
        for field in _LAYOUTS[type(message)]
        for item in _items(message, field)
    )


def _items(message: Any, field: _Field) -> Sequence[Any]:
    value = getattr(message, field.attribute)
    if field.type is _Metric:
        return [_Metric(name, float(number)) for name, number in value.items()]
    return value if field.repeated else (value,)


def _write_field(field: _Field, value: Any, *, alone: bool, where: str) -> bytes:
    """A field's bytes; one that stands alone is left out where it holds its type's zero."""
    if field.type in _BITS:
        if not 0 <= value < 1 << _BITS[str(field.type)]:
            raise EnvelopeError(f"{where}.{field.attribute} = {value}, expected a {field.type}")
        return uint_field(field.number, value)
    if field.type == "double":
        packed = struct.pack("<d", value)
        return tag(field.number, FIXED64) + packed if any(packed) else b""
    content = value.encode(errors="replace") if field.type == "string" else _write(value)
    return length_header(field.number, len(content)) + content if content or not alone else b""


def _read(message: type, view: memoryview) -> Any:
    layout = {field.number: field for field in _LAYOUTS[message]}
    values: dict[str, Any] = {
        field.attribute: [] if field.repeated else _ZEROS[str(field.type)] for field in layout.values()
    }
    for number, wire_type, value in fields(view):
        field = layout.get(number)
        if field is None:
            continue
        read = _READERS.get(str(field.type))
        item = read(wire_type, value, field) if read else _read_nested(field, value)
        if field.repeated:
            values[field.attribute].append(item)
        else:
            values[field.attribute] = item
    if message is Report:
        values["metrics"] = dict(values["metrics"])
    return message(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def _read_nested(field: _Field, value: int | memoryview) -> Any:
    if isinstance(value, int) or not isinstance(field.type, type):
        raise EnvelopeError(f"{field.attribute} is a number, expected a message")
    return _read(field.type, value)


def _read_uint(wire_type: int, value: int | memoryview, field: _Field) -> int:
    if wire_type != VARINT or not isinstance(value, int) or value >= 1 << _BITS[str(field.type)]:
        raise EnvelopeError(f"{field.attribute} is no {field.type}")
    return value


def _read_string(wire_type: int, value: int | memoryview, field: _Field) -> str:
    if wire_type != LENGTH or isinstance(value, int):
        raise EnvelopeError(f"{field.attribute} is no string")
    return as_text(value, what=field.attribute)


def _read_double(wire_type: int, value: int | memoryview, field: _Field) -> float:
    if wire_type != FIXED64 or isinstance(value, int):
        raise EnvelopeError(f"{field.attribute} is no double")
    number: float = struct.unpack("<d", value)[0]
    return number


_READERS: Mapping[str, Callable[[int, int | memoryview, _Field], Any]] = {
    "uint32": _read_uint,
    "uint64": _read_uint,
    "string": _read_string,
    "double": _read_double,
}
_ZEROS: Mapping[str, Any] = {"uint32": 0, "uint64": 0, "string": "", "double": 0.0}
