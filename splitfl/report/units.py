"""Numbers for human eyes, each with its unit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

NOTHING = "\N{EN DASH}"
"""What a table shows where nothing was measured."""


class Unit(NamedTuple):
    """A unit for an axis: its sign, and how many base units it holds."""

    sign: str
    size: float


_BYTES = (Unit("B", 1), Unit("kB", 1e3), Unit("MB", 1e6), Unit("GB", 1e9), Unit("TB", 1e12))
_SECONDS = (Unit("ms", 1e-3), Unit("s", 1))


def byte_unit(counts: Iterable[float]) -> Unit:
    """The largest decimal unit of bytes that the greatest of `counts` fills."""
    return _fitting(_BYTES, counts)


def second_unit(seconds: Iterable[float]) -> Unit:
    """Milliseconds or seconds, whichever suits the greatest of `seconds`."""
    return _fitting(_SECONDS, seconds)


def _fitting(units: tuple[Unit, ...], values: Iterable[float]) -> Unit:
    greatest = max(values, default=0.0)
    return next((unit for unit in reversed(units) if greatest >= unit.size), units[0])


def as_bytes(count: float) -> str:
    """`1.25 MB`."""
    unit = byte_unit([count])
    return (
        f"{count / unit.size:.3g} {unit.sign}" if count < 999.5 * unit.size else f"{count / unit.size:.0f} {unit.sign}"
    )


def as_seconds(seconds: float) -> str:
    """`85 ms`, `2.41 s`, `3 min 20 s`, `1 h 05 min`."""
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def as_percent(share: float | None) -> str:
    """`97.2 %` of a share from 0 to 1."""
    return NOTHING if share is None else f"{share * 100:.1f} %"


def as_number(value: float | None) -> str:
    """Three significant digits."""
    return NOTHING if value is None else f"{value:.3g}"
