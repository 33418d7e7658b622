"""Logs that are written to memory, records of rounds, and metrics fetched over HTTP as Prometheus does."""

import io
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from splitfl.monitor import Live, Metrics, configure_logs
from splitfl.run.record import RoundRecord


@pytest.fixture
def written():
    """`written(level, form)` sets logs up and returns the stream they go to; everything is put back afterwards."""
    handlers = []

    def start(level="info", form="text", **options):
        stream = io.StringIO()
        handlers.append(configure_logs(level, form, stream=stream, **options))
        return stream

    yield start
    for handler in handlers:
        handler.close()


@pytest.fixture
def record():
    """A finished round."""

    def make(number=1, *, seconds=2.0, **fields):
        return RoundRecord(round=number, seconds=seconds, **fields)

    return make


@pytest.fixture
def metrics():
    """Metrics of a server with two clients, one of them lost, and figures that do not change."""

    def make(*, clients=None, queue=lambda: 3, traffic=lambda: (1000, 2000), **options):
        states = {"pi": "connected", "phone": "lost"} if clients is None else clients
        live = Live(clients=lambda: states, queue=queue, traffic=traffic)
        return Metrics(**{"method": "pipar", "rounds": 10, "expected": 2, "live": live, **options})

    return make


def scrape(url, *, timeout=10):
    """The samples at `url` by name and labels, as the parser of Prometheus' own client reads them."""
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture(name="scrape")
def scraping():
    """Fetches and parses what an endpoint says."""
    return scrape
