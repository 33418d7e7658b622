"""`docs/monitoring.md` lists the metrics and events that there are, and its Python runs."""

import asyncio
import contextlib
import io
import json
import logging
import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from splitfl.events import LEVELS, Name, event
from splitfl.transport import serve
from splitfl.transport.tls import make_certificates

TEXT = (Path(__file__).parents[2] / "docs/monitoring.md").read_text(encoding="utf-8")


def blocks():
    """The indented blocks of the document."""
    return [re.sub(r"^    ", "", block, flags=re.M) for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", TEXT, re.M)]


def test_metrics_are_listed_with_their_kinds(metrics, record):
    made = metrics()
    made.round(record(1, accuracy=0.5, loss=1.0, train_loss=1.0, idle={"server": 0.5, "c0": 0.5}))
    families = text_string_to_metric_families(generate_latest(made.registry).decode())
    there = {(family.name, family.type) for family in families if family.name.startswith("splitfl")}
    listed = re.findall(r"^\| `(splitfl_\w+)` \| (\w+) \|", TEXT, re.M)
    assert {(name.removesuffix("_total") if kind == "counter" else name, kind) for name, kind in listed} == there


def test_events_are_listed_with_their_levels():
    listed = re.findall(r"^\| `(\w+)` \| (info|warning|error) \|", TEXT, re.M)
    levels = {10: "debug", 20: "info", 30: "warning", 40: "error"}
    assert dict(listed) == {name: levels[LEVELS.get(name, 20)] for name in Name.__args__}


def test_the_health_check_runs(tmp_path, monkeypatch):
    (code,) = (block for block in blocks() if "check_health" in block)
    assert code.count("training.example.org:9070") == 1
    monkeypatch.chdir(tmp_path)

    async def run():
        server = await serve("127.0.0.1:0", lambda _: None, tls=make_certificates(tmp_path, ["127.0.0.1"]))
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            await asyncio.to_thread(exec, code.replace("training.example.org:9070", server.address), {})
        await server.stop(1)
        return out.getvalue()

    assert asyncio.run(run()) == "SERVING\n"


def test_logs_of_an_own_program_are_set_up(capsys):
    (code,) = (block for block in blocks() if "configure_logs" in block)
    names = {}
    exec(code, names)
    try:
        event(logging.getLogger("splitfl.test"), "draining", why="and this neither, what must never show")
    finally:
        names["handler"].close()
    assert json.loads(capsys.readouterr().err)["why"] == "***, ***"


@pytest.mark.parametrize("kind", ["scrape_configs", "readinessProbe"])
def test_configurations_are_yaml(kind):
    yaml = pytest.importorskip("yaml")
    (text,) = (block for block in blocks() if kind in block)
    assert yaml.safe_load(text)
