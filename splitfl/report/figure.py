"""Figures as plain values: what Plotly draws, with colors named for the page's light and dark palettes to fill in."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Trace = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One chart.

    name     id in the page
    label    what a screen reader says
    traces   Plotly traces; `meta.color` names a color of the page, `meta.x` holds other x values to choose from
    layout   Plotly layout without colors and fonts
    height   in pixels
    """

    name: str
    label: str
    traces: Sequence[Trace]
    layout: dict[str, Any] = field(default_factory=dict)
    height: int = 300


def run_color(index: int) -> str:
    """The page's color for the run at `index`; there are six, after which they begin again."""
    return f"run-{index % 6}"


def drawn(text: str) -> str:
    """Text as Plotly draws it: its labels understand tags, and a name is not to be one."""
    return html.escape(text, quote=False)


def numbers(values: Iterable[float | None]) -> list[float | None]:
    """Values for a chart: what is missing or not finite is a gap, since JSON has no NaN."""
    return [value if value is not None and math.isfinite(value) else None for value in values]
