"""A real training, watched: what the metrics and the logs say is what the result holds."""

import json
import logging
import re
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import splitfl
from splitfl.monitor import MonitorError

DOCUMENT = (Path(__file__).parents[2] / "docs/monitoring.md").read_text(encoding="utf-8")


def job():
    def build():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))

    return splitfl.Job(
        model=build,
        example_input=torch.zeros(1, 1, 8, 8),
        cut="1",
        method=splitfl.methods.pipar(micro_batches=2),
        loss=nn.functional.cross_entropy,
        optimizer=splitfl.sgd(lr=0.1),
        batch_size=64,
    )


@pytest.fixture
def train(tmp_path):
    """Trains three rounds with two clients of these names, on threads of their own."""
    digits = splitfl.load("digits")

    def run(*names, **options):
        jobs = [job() for _ in names]  # models are traced one after the other
        parts = splitfl.dirichlet(digits.train, len(names), alpha=5.0)
        threads = []

        def start(address):
            for name, part, own in zip(names, parts, jobs, strict=True):
                threads.append(
                    threading.Thread(target=splitfl.join, args=(own, part), kwargs={"server": address, "name": name})
                )
                threads[-1].start()
                threads[-1].join(0.3)

        result = splitfl.serve(
            job(), clients=len(names), rounds=3, test=digits.test, on_listen=start, checkpoint=tmp_path, **options
        )
        for thread in threads:
            thread.join(30)
        return result.history

    return run


def test_the_metrics_are_the_records(train, scrape):
    urls, scrapes = [], []
    history = train(
        "pi",
        "phone",
        metrics="127.0.0.1:0",
        on_metrics=urls.append,
        on_round=lambda _: scrapes.append(scrape(urls[0])),
    )
    assert [found["splitfl_round",] for found in scrapes] == [1, 2, 3]
    last, record = scrapes[-1], history.rounds[-1]
    assert last["splitfl_rounds_total",] == last["splitfl_rounds_planned",] == last["splitfl_round_seconds_count",] == 3
    assert last["splitfl_round_seconds_sum",] == pytest.approx(sum(each.seconds for each in history.rounds))
    assert (last["splitfl_accuracy",], last["splitfl_loss",]) == (record.accuracy, record.loss)
    assert last["splitfl_train_loss",] == record.train_loss
    assert last["splitfl_server_idle_ratio",] == record.idle["server"]
    idle = {name: last["splitfl_client_idle_ratio", ("client", name)] for name in ("phone", "pi")}
    assert idle == {"phone": record.idle["c0"], "pi": record.idle["c1"]}
    assert history.clients == ("phone", "pi")
    assert [last["splitfl_clients", ("state", state)] for state in ("connected", "expected")] == [2, 2]
    for direction, field in (("up", "bytes_up"), ("down", "bytes_down")):
        recorded = sum(getattr(each, field) for each in history.rounds)
        assert recorded <= last["splitfl_bytes_total", ("direction", direction)] < 1.02 * recorded + 10_000
    assert last["splitfl_queue_depth",] == 0
    with pytest.raises(OSError, match="refused"):
        scrape(urls[0])


def test_metrics_that_cannot_be_served_stop_the_server_before_anybody_comes(train):
    with pytest.raises(MonitorError, match=r"metrics: cannot listen at 192\.0\.2\.1:9464"):
        train("pi", metrics="192.0.2.1:9464")


def test_the_events_are_those_of_the_document(train, written):
    stream = written("info", "json")
    history = train("pi", "phone")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    ours = [line for line in lines if line["logger"].startswith(("splitfl.run", "splitfl.api", "splitfl.transport"))]
    fields = {
        name: set(re.findall(r"`(\w+)`", listed))
        for name, listed in re.findall(r"^\| `(\w+)` \| (?:info|warning|error) \| (.+) \|$", DOCUMENT, re.M)
    }
    for line in ours:
        given = set(line) - {"time", "level", "logger", "message"}
        assert given <= fields[line["message"]], line
    names = [line["message"] for line in ours]
    assert names[0] == "server_started"
    assert names[-1] == "server_stopped"
    for name, times in {"client_connected": 2, "client_enrolled": 2, "round_started": 3, "checkpoint_saved": 3}.items():
        assert names.count(name) == times, name
    finished = [line for line in ours if line["message"] == "round_finished"]
    assert [line["accuracy"] for line in finished] == [each.accuracy for each in history.rounds]
    assert {line["client"] for line in ours if line["message"] == "client_enrolled"} == {"pi", "phone"}
    assert "client_lost" not in names
    assert all(logging.getLevelName(line["level"].upper()) <= logging.INFO for line in ours)
