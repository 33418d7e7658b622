"""The page as a browser would read it: well formed, complete, closed to the network, and deaf to hostile names."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser

import plotly.graph_objects as go
import pytest

from splitfl.errors import SplitflError
from splitfl.report import Failure, History, ReportError, write

VOID = {"meta", "br", "img", "link", "input", "hr"}
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7 * 7 }}"


class Page(HTMLParser):
    """Elements, attributes and texts of a page; an element that is not closed in order is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)

    def text(self) -> str:
        return " ".join(text for parent, text in self.texts if parent not in ("script", "style"))

    def figures(self) -> dict[str, dict]:
        (embedded,) = [text for parent, text in self.texts if parent == "script" and text.startswith("[{")]
        return {figure["name"]: figure for figure in json.loads(embedded)}


@pytest.fixture
def page(runs, tmp_path) -> Page:
    return Page(write(runs, tmp_path / "report.html").read_text())


def rendered(history: History, tmp_path) -> Page:
    return Page(write([history], tmp_path / "report.html").read_text())


def test_the_summary_has_a_line_per_run_with_units(page):
    text = page.text()
    assert "Comparison of 3 runs" in text
    for cell in ("PiPar", "SplitFed V1", "FedAvg", "197 MB", "(real)", "95.7 %"):
        assert cell in text


def test_every_figure_has_its_place_and_its_data(page, runs):
    figures = page.figures()
    places = {attributes["id"] for tag, attributes in page.tags if tag == "div" and "id" in attributes}
    assert places == set(figures)
    expected = {"accuracy", "loss", "traffic", "idle"}
    expected |= {f"timeline-{index}-{kind}" for index in range(3) for kind in ("measured", "predicted")}
    assert set(figures) == expected
    assert figures["accuracy"]["traces"][1]["y"] == [100 * record.accuracy for record in runs[1].rounds]


def test_every_figure_is_one_that_plotly_accepts(page):
    for figure in page.figures().values():
        go.Figure(data=figure["traces"], layout=figure["layout"])


def test_curves_can_be_read_against_rounds_seconds_and_bytes(page, runs):
    axes = page.figures()["accuracy"]["traces"][0]["meta"]["x"]
    total = sum(record.bytes_up + record.bytes_down for record in runs[0].rounds)
    assert axes["round"] == list(range(1, 16))
    assert axes["seconds"][-1] == pytest.approx(sum(record.seconds for record in runs[0].rounds))
    assert axes["bytes"][-1] == pytest.approx(total / 1e6)
    titles = page.figures()["accuracy"]["layout"]["meta"]["x"]
    assert titles["seconds"] == "Time since the start, s (real clock)"
    assert titles["bytes"].endswith(", MB")


def test_every_axis_names_its_unit(page):
    for figure in page.figures().values():
        titles = [figure["layout"][axis].get("title", {}).get("text") for axis in ("xaxis", "yaxis")]
        stated = [title for title in titles if title]
        assert any(re.search(r", (%|s|ms|kB|MB|GB)$|^Mean loss per sample$", title) for title in stated)


def test_the_timeline_has_a_bar_per_instruction(page, runs):
    for index, history in enumerate(runs):
        for kind, spans in (("measured", history.measured), ("predicted", history.predicted)):
            figure = page.figures()[f"timeline-{index}-{kind}"]
            assert sum(len(trace["x"]) for trace in figure["traces"]) == len(spans)
            forward = next(trace for trace in figure["traces"] if trace["name"] == "forward")
            first = next(span for span in spans if span.instruction == "0F0.0")
            at = [entry[0] for entry in forward["customdata"]].index("0F0.0")
            assert forward["base"][at] == pytest.approx(first.start * 1e3)
            assert forward["x"][at] == pytest.approx((first.end - first.start) * 1e3)


def test_measured_and_predicted_share_rows_and_scale(page):
    measured, predicted = (page.figures()[f"timeline-0-{kind}"]["layout"] for kind in ("measured", "predicted"))
    assert measured["xaxis"]["range"] == predicted["xaxis"]["range"]
    assert measured["yaxis"]["ticktext"] == ["c0", "c1", "c2", "server, c0", "server, c1", "server, c2"]
    assert "predicted 196 ms (\N{MINUS SIGN}8 %)" in page.text()


def test_failures_are_listed_with_their_reason(page):
    assert "no message of step 4 within 120 s" in page.text()


def test_without_failures_it_says_so(runs, tmp_path):
    rounds = tuple(replace(record, failures=()) for record in runs[0].rounds)
    assert "No client failed" in rendered(replace(runs[0], rounds=rounds), tmp_path).text()


def test_settings_that_differ_are_marked(page):
    marked = [attributes for tag, attributes in page.tags if tag == "tr" and attributes.get("class") == "differs"]
    assert len(marked) == 2  # method.name and method.micro_batches
    assert "training.optimizer.momentum" in page.text()
    assert "c0: phone-0, c1: phone-1, c2: raspberry" in page.text()


def test_the_page_loads_nothing(runs, tmp_path):
    page = Page(write(runs, tmp_path / "report.html").read_text())
    for tag, attributes in page.tags:
        assert tag not in {"link", "iframe", "object", "embed", "img", "base"}
        assert not {"src", "href", "srcset", "data", "action", "background"} & set(attributes)
    (policy,) = [a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy
    (style,) = [text for parent, text in page.texts if parent == "style"]
    assert "url(" not in style
    assert "@import" not in style


def test_hostile_names_are_text_and_nothing_else(runs, tmp_path):
    plain = rendered(runs[0], tmp_path)
    record = replace(runs[0].rounds[0], failures=(Failure(HOSTILE, HOSTILE),), idle={HOSTILE: 0.5})
    attacked = replace(
        runs[0],
        title=HOSTILE,
        method=HOSTILE,
        clients=(HOSTILE,),
        settings={HOSTILE: HOSTILE, "deep": {HOSTILE: [HOSTILE]}},
        rounds=(record, *runs[0].rounds[1:]),
        measured=tuple(span._replace(actor=f"{HOSTILE}{span.actor}") for span in runs[0].measured),
    )
    page = rendered(attacked, tmp_path)
    assert page.count("script") == plain.count("script") == 3
    assert page.count("img") == 0
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert HOSTILE in page.text()
    drawn = json.dumps(page.figures())
    assert "<script" not in drawn
    assert "<img" not in drawn
    assert "&lt;script&gt;" in drawn


def test_what_was_not_measured_is_left_out(tmp_path, runs):
    bare = tuple(replace(record, accuracy=None, loss=None, idle={}) for record in runs[0].rounds)
    page = rendered(replace(runs[0], rounds=bare, measured=(), predicted=()), tmp_path)
    assert set(page.figures()) == {"loss", "traffic"}
    assert [trace["name"] for trace in page.figures()["loss"]["traces"]] == ["PiPar, training"]


def test_a_run_without_rounds_is_still_a_page(tmp_path):
    page = rendered(History(title="empty", method="pipar"), tmp_path)
    assert page.text().count("empty") >= 2


def test_a_diverged_loss_is_a_gap(tmp_path, runs):
    first, second, third = runs[0].rounds[:3]
    broken = (first, replace(second, loss=math.nan), replace(third, loss=math.inf))
    page = rendered(replace(runs[0], rounds=broken), tmp_path)
    assert page.figures()["loss"]["traces"][0]["y"] == [first.loss, None, None]


def test_runs_of_one_title_are_told_apart(tmp_path, runs):
    text = Page(write([runs[0], runs[0]], tmp_path / "report.html").read_text()).text()
    assert "PiPar (2)" in text


def test_equal_curves_are_both_visible(tmp_path, runs):
    page = Page(write([runs[0], replace(runs[0], title="twin"), runs[2]], tmp_path / "report.html").read_text())
    assert [trace["meta"]["hidden"] for trace in page.figures()["accuracy"]["traces"]] == [1, 0, 0]


def test_virtual_and_real_clocks_are_named(tmp_path, runs):
    virtual = replace(runs[0], rounds=tuple(replace(record, clock="virtual") for record in runs[0].rounds))
    page = Page(write([virtual, runs[1]], tmp_path / "report.html").read_text())
    titles = page.figures()["accuracy"]["layout"]["meta"]["x"]
    assert titles["seconds"].endswith("(real and virtual clock)")
    assert "(virtual)" in page.text()


def test_nothing_to_show_is_refused(tmp_path):
    with pytest.raises(ReportError, match="no runs given"):
        write([], tmp_path / "report.html")


def test_a_path_that_cannot_be_written_is_named(tmp_path, runs):
    with pytest.raises(ReportError, match=r"absent/report\.html cannot be written: No such file"):
        write(runs, tmp_path / "absent" / "report.html")


@pytest.mark.parametrize("package", ["plotly.offline", "jinja2"])
def test_without_the_extra_the_error_says_how_to_get_it(runs, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SplitflError, match=r"pip install splitfl\[report\]"):
        write(runs, tmp_path / "report.html")
