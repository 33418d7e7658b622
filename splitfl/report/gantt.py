"""The timeline of one mini-batch: a row per actor, a bar per instruction, colored by operation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from splitfl.report.figure import Figure, Trace, drawn
from splitfl.report.units import as_bytes, second_unit
from splitfl.run.record import History, Span
from splitfl.schedule import Op

OPERATIONS = {
    Op.FORWARD: "forward",
    Op.BACKWARD: "backward",
    Op.BACKWARD_INPUT: "backward for inputs",
    Op.BACKWARD_WEIGHT: "backward for weights",
    Op.STEP: "optimizer step",
    Op.SEND: "sending",
    Op.RECV: "waiting for a message",
    Op.AGGREGATE: "aggregating",
    Op.LOAD: "loading weights",
}
"""What a legend calls each operation, in its order."""

# Where a bar lies in its row: computing in the middle, the link below it, waiting as a thin line.
_PLACE = {Op.SEND: (0.36, 0.16), Op.RECV: (0.0, 0.06)}
_COMPUTING = (-0.06, 0.56)


class Bar(NamedTuple):
    """A span with what its text says: the row it belongs to, and its operation."""

    row: str
    op: Op
    span: Span


def bars(spans: Iterable[Span]) -> list[Bar]:
    """Spans sorted into rows: one per client, and on every other actor one for each client that it serves."""
    found = []
    for span in spans:
        match = re.match(r"\d+([A-Z])(\d*)", span.instruction)
        if match is None or match[1] not in {op.value for op in Op}:
            continue
        own = re.fullmatch(r"c\d+", span.actor) or not match[2]
        row = span.actor if own else f"{span.actor}, c{match[2]}"
        found.append(Bar(row, Op(match[1]), span))
    return found


def operations(histories: Iterable[History]) -> list[tuple[str, str]]:
    """(letter, name) of every operation that occurs in the timelines, for the legend."""
    seen = {bar.op for history in histories for bar in bars((*history.measured, *history.predicted))}
    return [(op.value, name) for op, name in OPERATIONS.items() if op in seen]


def makespan(spans: Sequence[Span]) -> float:
    """Seconds from the first start to the last end."""
    return max((span.end for span in spans), default=0.0) - min((span.start for span in spans), default=0.0)


def timelines(name: str, history: History) -> list[Figure]:
    """The measured and the predicted timeline of a run, as far as there are any, on the same time axis."""
    shown = {"measured": bars(history.measured), "predicted": bars(history.predicted)}
    longest = max((bar.span.end for found in shown.values() for bar in found), default=0.0)
    rows = _ordered({bar.row for found in shown.values() for bar in found})
    return [
        _timeline(f"{name}-{kind}", f"The {kind} timeline of a mini-batch", found, rows=rows, longest=longest)
        for kind, found in shown.items()
        if found
    ]


def _timeline(name: str, label: str, found: Sequence[Bar], *, rows: Sequence[str], longest: float) -> Figure:
    unit = second_unit([longest])
    height = {row: index for index, row in enumerate(rows)}
    traces = []
    for op in sorted(OPERATIONS, key=lambda op: op is not Op.RECV):  # waiting lies under whatever else happens
        of_op = [bar for bar in found if bar.op is op]
        if of_op:
            traces.append(_trace(op, of_op, height=height, unit=unit))
    layout: dict[str, Any] = {
        "barmode": "overlay",
        "hovermode": "closest",
        "xaxis": {"title": {"text": f"Time, {unit.sign}"}, "range": [0, longest / unit.size * 1.01]},
        "yaxis": {
            "range": [len(rows) - 0.45, -0.55],
            "tickvals": list(range(len(rows))),
            "ticktext": [drawn(row) for row in rows],
            "showgrid": False,
            "automargin": True,
        },
    }
    return Figure(name=name, label=label, traces=traces, layout=layout, height=70 + 38 * len(rows))


def _trace(op: Op, found: Sequence[Bar], *, height: dict[str, int], unit: Any) -> Trace:
    offset, width = _PLACE.get(op, _COMPUTING)
    spans = [bar.span for bar in found]
    return {
        "type": "bar",
        "orientation": "h",
        "name": OPERATIONS[op],
        "base": [span.start / unit.size for span in spans],
        "x": [(span.end - span.start) / unit.size for span in spans],
        "y": [height[bar.row] + offset for bar in found],
        "width": width,
        "customdata": [[drawn(span.instruction), (span.end - span.start) / unit.size, _moved(span)] for span in spans],
        "hovertemplate": (
            f"<b>%{{customdata[0]}}</b> {OPERATIONS[op]}<br>%{{base:.4g}} {unit.sign}, "
            f"for %{{customdata[1]:.4g}} {unit.sign}%{{customdata[2]}}<extra></extra>"
        ),
        "meta": {"color": f"op-{op.value}", "outlined": op not in _PLACE},
    }


def _moved(span: Span) -> str:
    return f"<br>{as_bytes(span.nbytes)}" if span.nbytes else ""


def _ordered(rows: Iterable[str]) -> list[str]:
    """Clients first, by number; then the other actors' rows."""

    def key(row: str) -> tuple[bool, list[tuple[int, str]]]:
        parts = re.split(r"(\d+)", row)
        return re.fullmatch(r"c\d+", row) is None, [(int(p), "") if p.isdigit() else (-1, p) for p in parts]

    return sorted(rows, key=key)
