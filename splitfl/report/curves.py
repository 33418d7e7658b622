"""Learning curves of several runs, against rounds, time and bytes, and what the rounds cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from math import isclose
from statistics import fmean
from typing import Any

from splitfl.report.figure import Figure, Trace, drawn, numbers, run_color
from splitfl.report.units import byte_unit, second_unit
from splitfl.run.record import History

FEW = 12
"""Up to so many rounds each has its own tick."""

Runs = Mapping[str, History]
"""Histories by the title that the page calls them."""

Curve = Sequence[float | None]
"""A value per round; None where nothing was measured."""


def accuracy(runs: Runs) -> Figure:
    """Test accuracy in percent."""
    scales = _Scales(runs)
    shares = [numbers(record.accuracy for record in history.rounds) for history in runs.values()]
    curves = [[None if share is None else 100 * share for share in found] for found in shares]
    traces = [
        scales.trace(index, title, values=curves[index], hover="%{y:.1f} %", hidden=_hidden(curves, index))
        for index, title in enumerate(runs)
    ]
    layout = scales.layout("Test accuracy, %")
    return Figure(name="accuracy", label="Test accuracy of every run", traces=traces, layout=layout)


def loss(runs: Runs) -> Figure:
    """Loss on the test data as a line, on the training data dotted."""
    scales = _Scales(runs)
    test = [numbers(record.loss for record in history.rounds) for history in runs.values()]
    train = [numbers(record.train_loss for record in history.rounds) for history in runs.values()]
    traces: list[Trace] = []
    for index, title in enumerate(runs):
        for curves, dashed in ((test, False), (train, True)):
            if any(value is not None for value in curves[index]):
                name, hidden = f"{title}, training" if dashed else title, _hidden(curves, index)
                traces.append(
                    scales.trace(index, name, values=curves[index], hover="%{y:.3g}", hidden=hidden, dashed=dashed)
                )
    label = "Loss of every run on test and training data"
    return Figure(name="loss", label=label, traces=traces, layout=scales.layout("Mean loss per sample"))


def _hidden(curves: Sequence[Curve], index: int) -> int:
    """How many later curves lie on this one: exact methods coincide, and the page draws the lower one wider."""
    pairs = [zip(curves[index], other, strict=False) for other in curves[index + 1 :]]
    return sum(all(a == b or (a and b and isclose(a, b, rel_tol=0.003)) for a, b in pair) for pair in pairs)


class _Scales:
    """The three x axes that the curves share: rounds, seconds and bytes since the beginning."""

    def __init__(self, runs: Runs) -> None:
        self._runs = list(runs.values())
        self._seconds = second_unit(max(_sums(history, "seconds"), default=0.0) for history in self._runs)
        self._bytes = byte_unit(max(_traffic(history), default=0.0) for history in self._runs)

    def trace(self, index: int, name: str, *, values: Curve, hover: str, hidden: int, dashed: bool = False) -> Trace:
        history = self._runs[index]
        axes = {
            "round": [record.round for record in history.rounds],
            "seconds": [value / self._seconds.size for value in _sums(history, "seconds")],
            "bytes": [value / self._bytes.size for value in _traffic(history)],
        }
        line = {"width": 1.6, "dash": "dot"} if dashed else {"width": 2.4}
        return {
            "type": "scatter",
            "mode": "lines" if dashed or len(values) > 40 else "lines+markers",
            "name": drawn(name),
            "x": axes["round"],
            "y": values,
            "line": line,
            "marker": {"size": 6},
            "hovertemplate": f"{drawn(name)}: {hover}<extra></extra>",
            "meta": {"color": run_color(index), "x": axes, "hidden": hidden},
        }

    def layout(self, title: str) -> dict[str, Any]:
        clocks = sorted({record.clock for history in self._runs for record in history.rounds})
        clock = f" ({' and '.join(clocks)} clock)" if clocks else ""
        longest = max((len(history.rounds) for history in self._runs), default=0)
        titles = {
            "round": "Round",
            "seconds": f"Time since the start, {self._seconds.sign}{clock}",
            "bytes": f"Traffic since the start, both directions, {self._bytes.sign}",
        }
        return {
            "xaxis": {"title": {"text": titles["round"]}},
            "yaxis": {"title": {"text": title}},
            "meta": {"x": titles, "step": {"round": 1} if longest <= FEW else {}},
        }


def _sums(history: History, field: str) -> list[float]:
    return list(accumulate(getattr(record, field) for record in history.rounds))


def _traffic(history: History) -> list[float]:
    return list(accumulate(float(record.bytes_up + record.bytes_down) for record in history.rounds))


def traffic(runs: Runs) -> Figure:
    """Bytes of each round, up and down stacked, the runs beside each other."""
    counts = [record.bytes_up + record.bytes_down for history in runs.values() for record in history.rounds]
    unit = byte_unit(counts)
    longest = max((len(history.rounds) for history in runs.values()), default=0)
    traces = [trace for index, title in enumerate(runs) for trace in _bars(index, title, runs[title], unit=unit)]
    layout = {
        "barmode": "relative",
        "bargap": 0.3,
        "xaxis": {"title": {"text": "Round"}} | ({"dtick": 1} if longest <= FEW else {}),
        "yaxis": {"title": {"text": f"Traffic per round, {unit.sign}"}, "rangemode": "tozero"},
    }
    return Figure(name="traffic", label="Bytes per round, up and down", traces=traces, layout=layout)


def _bars(index: int, title: str, history: History, *, unit: Any) -> Iterator[Trace]:
    for direction, opacity in (("up", 1.0), ("down", 0.45)):
        yield {
            "type": "bar",
            "name": drawn(f"{title}, {direction}"),
            "x": [record.round for record in history.rounds],
            "y": [getattr(record, f"bytes_{direction}") / unit.size for record in history.rounds],
            "offsetgroup": str(index),
            "opacity": opacity,
            "hovertemplate": f"{drawn(title)}, {direction}: %{{y:.3g}} {unit.sign}<extra></extra>",
            "meta": {"color": run_color(index)},
        }


def idle(runs: Runs) -> Figure:
    """Mean share of the rounds in which each actor computed nothing, in percent."""
    actors = list(dict.fromkeys(name for history in runs.values() for name in mean_idle(history)))
    traces: list[Trace] = []
    for index, (title, history) in enumerate(runs.items()):
        shares = mean_idle(history)
        present = [actor for actor in actors if actor in shares]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": drawn(title),
                "y": [drawn(actor) for actor in present],
                "x": [100 * shares[actor] for actor in present],
                "hovertemplate": f"{drawn(title)}, %{{y}}: %{{x:.1f}} %<extra></extra>",
                "meta": {"color": run_color(index)},
            }
        )
    layout = {
        "barmode": "group",
        "bargap": 0.3,
        "hovermode": "closest",
        "xaxis": {"title": {"text": "Idle share of the round, %"}, "range": [0, 101]},
        "yaxis": {"type": "category", "autorange": "reversed", "showgrid": False, "automargin": True},
    }
    height = max(300, 90 + len(actors) * (14 * len(runs) + 10))
    return Figure(name="idle", label="Idle share per actor", traces=traces, layout=layout, height=height)


def mean_idle(history: History) -> dict[str, float]:
    """Each actor's idle share, 0 to 1, averaged over the rounds it is recorded in."""
    actors = dict.fromkeys(actor for record in history.rounds for actor in record.idle)
    return {actor: fmean(record.idle[actor] for record in history.rounds if actor in record.idle) for actor in actors}
