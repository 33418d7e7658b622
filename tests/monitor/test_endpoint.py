"""The HTTP server of the metrics: scraped as Prometheus does, misused, closed."""

import contextlib
import gc
import http.client
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest

from splitfl.errors import SplitflError
from splitfl.monitor import MonitorError, expose
from splitfl.monitor.endpoint import SCRAPES


@pytest.fixture
def endpoint(metrics):
    """Metrics that are served on loopback."""
    made = expose(metrics().registry)
    yield made
    made.close()


def fetch(endpoint, path="/metrics", *, method="GET", **headers):
    request = urllib.request.Request(f"http://{endpoint.address}{path}", method=method, headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.status, answer.headers, answer.read()


def test_prometheus_gets_text_or_openmetrics(endpoint, scrape):
    assert scrape(endpoint.url)["splitfl_queue_depth",] == 3
    status, headers, body = fetch(endpoint)
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain")
    assert b"# HELP splitfl_queue_depth Instructions that wait" in body
    _, headers, body = fetch(endpoint, Accept="application/openmetrics-text; version=1.0.0")
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    _, headers, _ = fetch(endpoint, **{"Accept-Encoding": "gzip"})
    assert headers["Content-Encoding"] == "gzip"


def test_it_listens_on_loopback_unless_told_otherwise(endpoint):
    assert endpoint.address == f"127.0.0.1:{endpoint.port}"
    assert endpoint.port > 0


def test_ipv6(metrics, scrape):
    made = expose(metrics().registry, "[::1]:0")
    try:
        assert made.url == f"http://[::1]:{made.port}/metrics"
        assert scrape(made.url)["splitfl_queue_depth",] == 3
    finally:
        made.close()


def test_a_port_in_use_is_refused(metrics, endpoint):
    with pytest.raises(
        MonitorError, match=f"cannot listen at {endpoint.address}: Address already in use; choose another"
    ):
        expose(metrics().registry, endpoint.address)
    with pytest.raises(MonitorError, match=r"cannot listen at 192\.0\.2\.1:9100: Cannot assign requested address"):
        expose(metrics().registry, "192.0.2.1:9100")


@pytest.mark.parametrize("address", ["9100", "localhost", "http://127.0.0.1:1", "127.0.0.1:99999", ""])
def test_addresses_that_are_none_are_refused(metrics, address):
    with pytest.raises(SplitflError, match="expected host:port"):
        expose(metrics().registry, address)


def test_closed_it_is_gone_and_the_port_is_free(metrics, scrape):
    made = expose(metrics().registry)
    (thread,) = (each for each in threading.enumerate() if each.name == "metrics")
    start = time.monotonic()
    made.close()
    made.close()
    assert time.monotonic() - start < 5
    assert not thread.is_alive()
    with pytest.raises(OSError, match="refused"):
        scrape(made.url)
    again = expose(metrics().registry, made.address)
    assert scrape(again.url)["splitfl_queue_depth",] == 3
    again.close()
    gc.collect()  # a socket left open would warn, and a warning is an error


def test_other_methods_are_not_answered(endpoint):
    with pytest.raises(urllib.error.HTTPError) as refused:
        fetch(endpoint, method="POST")
    assert refused.value.code == 501
    refused.value.close()


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x00\xff" * 100,
        b"GET",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 70_000,
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"",
    ],
)
def test_noise_does_no_harm(endpoint, scrape, request_bytes, capfd):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", endpoint.port), timeout=5) as peer:
        peer.sendall(request_bytes)
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(65536):
            pass
    assert scrape(endpoint.url)["splitfl_queue_depth",] == 3
    assert capfd.readouterr().err == ""


def answering():
    """How many requests are being answered in this process."""
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_those_who_ask_nothing_are_few_and_leave_room_again(endpoint, scrape):
    silent = [socket.create_connection(("127.0.0.1", endpoint.port), timeout=5) for _ in range(3 * SCRAPES)]
    with pytest.raises((OSError, http.client.HTTPException)):
        scrape(endpoint.url)  # comes last, so that all of them have their place before it
    assert answering() == SCRAPES
    for peer in silent:
        peer.close()
    deadline = time.monotonic() + 20
    while answering():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert scrape(endpoint.url)["splitfl_queue_depth",] == 3


def test_those_who_ask_nothing_are_hung_up_on(metrics, monkeypatch):
    monkeypatch.setattr("splitfl.monitor.endpoint.PATIENCE", 0.2)
    made = expose(metrics().registry)
    with socket.create_connection(("127.0.0.1", made.port), timeout=20) as peer:
        peer.sendall(b"GET /metrics HT")
        assert peer.recv(10) == b""
    made.close()
