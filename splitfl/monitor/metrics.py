"""A server's figures in the words of Prometheus. They are made when somebody asks: nothing is counted twice.

A scrape comes on a thread of its own. What rounds add up to is one frozen value that is replaced as a whole; what is
alive (clients, queue, bytes) is read at that moment through callables.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from splitfl.errors import SplitflError
from splitfl.events import one_line
from splitfl.monitor.totals import BOUNDS, Totals
from splitfl.run.record import RoundRecord
from splitfl.version import __version__

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric
    from prometheus_client.core import GaugeMetricFamily

T = TypeVar("T")

STATES = ("connected", "lost", "dropped")
"""How an enrolled client can be. How many are expected stands beside them."""

ATTEMPTS = 5
"""A dictionary that grows while another thread walks through it raises; it does not do so five times in a row."""

_LOGGER = logging.getLogger(__name__)


class MonitorError(SplitflError):
    """Metrics cannot be served as asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What is read at every scrape, on the scrape's thread: each must be quick, and wait for nothing.

    clients  how each client is (one of `STATES`) by name, in the order of their ids: the second is the actor `c1`
    queue    instructions that wait for a free worker
    traffic  bytes from the clients and to the clients since the server started
    """

    clients: Callable[[], Mapping[str, str]]
    queue: Callable[[], int]
    traffic: Callable[[], tuple[int, int]]


class Metrics:
    """The metrics of one server, in a registry of their own: two servers in one process do not meet.

    method    name of the method that is trained
    rounds    that are planned
    expected  clients that the server waits for
    live      what is read at every scrape
    """

    def __init__(self, *, method: str, rounds: int, expected: int, live: Live) -> None:
        prometheus = prometheus_client()
        self.registry: CollectorRegistry = prometheus.CollectorRegistry()
        self._method = method
        self._rounds = rounds
        self._expected = expected
        self._live = live
        self._totals = Totals()
        self.registry.register(cast(Any, self))
        prometheus.ProcessCollector(registry=self.registry)

    def round(self, record: RoundRecord) -> None:
        """A round is over."""
        self._totals = self._totals.and_round(record)

    def collect(self) -> Iterator[Metric]:
        """All that there is to say right now; what nobody knows yet is left out."""
        totals = self._totals
        clients = _read(self._live.clients, "clients") or {}
        yield from _about(self._method, self._rounds)
        yield from _progress(totals)
        if totals.last is not None:
            yield from _last_round(totals.last, tuple(clients))
        yield _states(clients, self._expected)
        yield _failures(totals, clients)
        queue = _read(self._live.queue, "queue")
        if queue is not None:
            yield _gauge("queue_depth", "Instructions that wait for a free worker of the server.", queue)
        traffic = _read(self._live.traffic, "traffic")
        if traffic is not None:
            yield _traffic(*traffic)


def prometheus_client() -> Any:
    """The package of that name. MonitorError, saying how to install it, where it is missing."""
    try:
        import prometheus_client
    except ImportError:
        raise MonitorError('metrics need prometheus-client: pip install "splitfl[monitor]"') from None
    return prometheus_client


def _about(method: str, rounds: int) -> Iterator[Metric]:
    from prometheus_client.core import InfoMetricFamily

    facts = {"version": __version__, "method": method}
    yield InfoMetricFamily("splitfl_build", "The server's version of splitfl, and the method that it trains.", facts)
    yield _gauge("rounds_planned", "Rounds that the training is to have.", rounds)


def _progress(totals: Totals) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    yield CounterMetricFamily("splitfl_rounds", "Rounds finished since the server started.", totals.rounds)
    number = totals.last.round if totals.last else 0
    yield _gauge("round", "Number of the newest finished round; it goes on where a resumed training was.", number)
    bounds = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
    counts = list(zip(bounds, itertools.accumulate(totals.classes), strict=True))
    text = "Length of the rounds finished since the server started."
    yield HistogramMetricFamily("splitfl_round_seconds", text, buckets=counts, sum_value=totals.seconds)


def _last_round(record: RoundRecord, names: tuple[str, ...]) -> Iterator[Metric]:
    """Figures of the newest round; `names` by id."""
    server = record.idle.get("server")
    figures = (
        ("accuracy", "Share of the test samples predicted right, after the newest round.", record.accuracy),
        ("loss", "Mean loss over the test samples after the newest round.", record.loss),
        ("train_loss", "Mean loss over the training samples of the newest round.", record.train_loss),
        ("server_idle_ratio", "Share of the newest round in which the server computed nothing.", server),
    )
    yield from (_gauge(name, text, value) for name, text, value in figures if value is not None)
    idle = _gauge("client_idle_ratio", "Share of the newest round in which a client computed nothing.", label="client")
    for client, name in enumerate(names):
        if (share := record.idle.get(f"c{client}")) is not None:
            idle.add_metric([one_line(name)], share)
    yield idle


def _states(clients: Mapping[str, str], expected: int) -> GaugeMetricFamily:
    text = "Clients by state: connected, lost (they may come back), dropped; and how many are expected."
    made = _gauge("clients", text, label="state")
    states = list(clients.values())
    for state in STATES:
        made.add_metric([state], states.count(state))
    made.add_metric(["expected"], expected)
    return made


def _failures(totals: Totals, clients: Mapping[str, str]) -> Metric:
    """A figure for each enrolled client and the server: there are never more of them, whatever records hold."""
    from prometheus_client.core import CounterMetricFamily

    text = "Rounds in which a client dropped out or its update was refused; the server's are checkpoints not written."
    made = CounterMetricFamily("splitfl_failures", text, labels=["client"])
    for name in dict.fromkeys([*clients, "server"]):
        made.add_metric([one_line(name)], totals.failures.get(name, 0))
    return made


def _traffic(up: int, down: int) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    text = "Bytes between server and clients: up from the clients, down to them."
    made = CounterMetricFamily("splitfl_bytes", text, labels=["direction"])
    made.add_metric(["up"], up)
    made.add_metric(["down"], down)
    return made


def _gauge(name: str, text: str, value: float | None = None, *, label: str | None = None) -> GaugeMetricFamily:
    """A gauge with this value, or, with a label, one whose values are still to be added."""
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(f"splitfl_{name}", text, value=value, labels=None if label is None else [label])


def _read(live: Callable[[], T], what: str) -> T | None:
    """What `live` gives; None, and a line in the log, where it fails: the other metrics are still worth having."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return live()
        except RuntimeError as error:
            if attempt == ATTEMPTS:
                _LOGGER.warning("the metric of the %s cannot be read: %s", what, error)
        except Exception:
            _LOGGER.warning("the metric of the %s cannot be read", what, exc_info=True)
            break
    return None
