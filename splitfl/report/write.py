"""The report: one HTML file that holds everything, looks at no network, and compares any number of runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from splitfl.errors import SplitflError
from splitfl.report import curves, gantt, tables
from splitfl.report.curves import Runs
from splitfl.report.figure import Figure, run_color
from splitfl.run.record import History
from splitfl.version import __version__

_HERE = Path(__file__).parent


class ReportError(SplitflError):
    """A report that cannot be written."""


def write(histories: Sequence[History], path: str | Path) -> Path:
    """Write the report of `histories` to `path`, and return the path.

    Names and reasons come from clients and are shown as text whatever they hold. Raises ReportError where there is
    nothing to show, where the file cannot be written, or where the extra `report` is not installed.
    """
    path = Path(path)
    if not histories:
        raise ReportError("report: no runs given, expected one or more")
    page = _render(_titled(histories))
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ReportError(f"report: {path} cannot be written: {error.strerror}") from None
    return path


def _titled(histories: Sequence[History]) -> dict[str, History]:
    """Histories by title; a title that occurs again gets a number."""
    runs: dict[str, History] = {}
    for history in histories:
        title, number = history.title, 1
        while title in runs:
            number += 1
            title = f"{history.title} ({number})"
        runs[title] = history
    return runs


def _render(runs: Runs) -> str:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
        from markupsafe import Markup
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ReportError(f"report: {error.name} is missing, install it by: pip install splitfl[report]") from None
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    shown = {name: figure for name, figure in _curves(runs).items() if any(_plotted(trace) for trace in figure.traces)}
    lines = {title: gantt.timelines(f"timeline-{index}", runs[title]) for index, title in enumerate(runs)}
    figures = [*shown.values(), *(figure for found in lines.values() for figure in found)]
    return environment.get_template("page.html").render(
        clients_of=tables.clients,
        colors={title: run_color(index) for index, title in enumerate(runs)},
        data=Markup(_embedded(figures)),
        failures=tables.failures(runs),
        figures=shown,
        headings=tables.SUMMARY,
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        operations=gantt.operations(runs.values()),
        plotly=Markup(get_plotlyjs()),
        predictions={title: tables.prediction(history) for title, history in runs.items()},
        runs=runs,
        script=Markup((_HERE / "page.js").read_text(encoding="utf-8")),
        settings=tables.settings(runs),
        style=Markup((_HERE / "page.css").read_text(encoding="utf-8")),
        summaries={title: tables.summary(history) for title, history in runs.items()},
        timelines={title: found for title, found in lines.items() if found},
        version=__version__,
    )


def _curves(runs: Runs) -> dict[str, Figure]:
    figures = (curves.accuracy(runs), curves.loss(runs), curves.traffic(runs), curves.idle(runs))
    return {figure.name: figure for figure in figures}


def _plotted(trace: dict[str, Any]) -> bool:
    return any(value is not None for value in trace["y"])


def _embedded(figures: Sequence[Figure]) -> str:
    """Figures as JSON that can stand inside a script element: nothing in it can close the element."""
    text = json.dumps([asdict(figure) for figure in figures], allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
