"""What a scrape says of a server: totals of its rounds, the newest round, and what is alive at that moment."""

import math
import subprocess
import sys
import threading

import pytest
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from splitfl.monitor import Live, Metrics, MonitorError, expose
from splitfl.monitor.metrics import ATTEMPTS
from splitfl.monitor.totals import BOUNDS, Totals
from splitfl.run.record import Failure
from splitfl.version import __version__


@pytest.fixture
def samples():
    """The samples of a registry by name and labels."""

    def read(metrics):
        text = generate_latest(metrics.registry).decode()
        return {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    return read


def test_before_the_first_round(metrics, samples):
    found = samples(metrics())
    assert found["splitfl_build_info", ("method", "pipar"), ("version", __version__)] == 1
    assert found["splitfl_rounds_planned",] == 10
    assert found["splitfl_rounds_total",] == found["splitfl_round",] == found["splitfl_round_seconds_count",] == 0
    assert [found["splitfl_clients", ("state", s)] for s in ("connected", "lost", "dropped", "expected")] == [
        1,
        1,
        0,
        2,
    ]
    assert found["splitfl_queue_depth",] == 3
    assert [found["splitfl_bytes_total", ("direction", way)] for way in ("up", "down")] == [1000, 2000]
    assert (
        found["splitfl_failures_total", ("client", "pi")] == found["splitfl_failures_total", ("client", "server")] == 0
    )
    assert not {name for name, *_ in found} & {"splitfl_accuracy", "splitfl_loss", "splitfl_server_idle_ratio"}


def test_rounds_add_up(metrics, samples, record):
    made = metrics()
    idle = {"server": 0.25, "c0": 0.5, "c1": 0.75}
    made.round(record(4, seconds=2.0, accuracy=0.5, loss=1.5, train_loss=2.5, idle=idle))
    failures = (Failure("phone", "gone"), Failure("server", "the disk is full"))
    made.round(
        record(5, seconds=40.0, accuracy=0.75, loss=math.nan, idle={"server": 0.5, "c0": 1.0}, failures=failures)
    )
    found = samples(made)
    assert (found["splitfl_rounds_total",], found["splitfl_round",]) == (2, 5)
    assert (found["splitfl_round_seconds_sum",], found["splitfl_round_seconds_count",]) == (42, 2)
    buckets = {
        bound: found["splitfl_round_seconds_bucket", ("le", bound)] for bound in ("1", "2.5", "30", "60", "+Inf")
    }
    assert buckets == {"1": 0, "2.5": 1, "30": 1, "60": 2, "+Inf": 2}
    assert found["splitfl_accuracy",] == 0.75
    assert math.isnan(found["splitfl_loss",])
    assert ("splitfl_train_loss",) not in found
    assert found["splitfl_server_idle_ratio",] == 0.5
    assert found["splitfl_client_idle_ratio", ("client", "pi")] == 1
    assert ("splitfl_client_idle_ratio", ("client", "phone")) not in found
    failed = {name: found["splitfl_failures_total", ("client", name)] for name in ("pi", "phone", "server")}
    assert failed == {"pi": 0, "phone": 1, "server": 1}


@pytest.mark.parametrize("seconds", [0.0, BOUNDS[0], BOUNDS[3], BOUNDS[-1], BOUNDS[-1] + 1])
def test_a_round_is_in_one_class(record, seconds):
    totals = Totals().and_round(record(seconds=seconds))
    assert sum(totals.classes) == 1
    place = totals.classes.index(1)
    assert place == len(BOUNDS) or seconds <= BOUNDS[place]
    assert place == 0 or seconds > BOUNDS[place - 1]


def test_live_values_are_read_at_every_scrape(metrics, samples):
    depth, traffic = [0], [(1, 2)]
    made = metrics(queue=lambda: depth[0], traffic=lambda: traffic[0])
    assert samples(made)["splitfl_queue_depth",] == 0
    depth[0], traffic[0] = 7, (10, 20)
    found = samples(made)
    assert found["splitfl_queue_depth",] == 7
    assert found["splitfl_bytes_total", ("direction", "down")] == 20


def test_there_are_no_more_labels_than_clients(metrics, samples, record):
    made = metrics()
    strangers = tuple(Failure(f"stranger-{number}", "who knows") for number in range(500))
    made.round(record(1, idle={f"c{number}": 0.5 for number in range(500)}, failures=strangers))
    clients = {label for _, *labels in samples(made) for label in labels if label[0] == "client"}
    assert clients == {("client", "pi"), ("client", "phone"), ("client", "server")}


def test_names_that_no_page_could_hold(metrics, samples):
    found = samples(metrics(clients={'a"b\\c\nd': "connected", "\ud800": "connected"}))
    assert found["splitfl_failures_total", ("client", r'a"b\c\nd')] == 0
    assert found["splitfl_failures_total", ("client", r"\ud800")] == 0


def test_the_process_itself(metrics, samples):
    found = samples(metrics())
    assert found["process_resident_memory_bytes",] > 1e6
    assert found["process_cpu_seconds_total",] > 0


def test_two_servers_in_one_process_do_not_meet(metrics, record, scrape):
    before = generate_latest(REGISTRY).count(b"splitfl")
    one, two = metrics(method="pipar"), metrics(method="fedavg")
    one.round(record(1, accuracy=0.5))
    first, second = expose(one.registry), expose(two.registry)
    try:
        assert first.port != second.port
        assert scrape(first.url)["splitfl_rounds_total",] == 1
        assert scrape(second.url)["splitfl_rounds_total",] == 0
        assert ("splitfl_build_info", ("method", "fedavg"), ("version", __version__)) in scrape(second.url)
    finally:
        first.close()
        second.close()
    assert generate_latest(REGISTRY).count(b"splitfl") == before


def test_what_cannot_be_read_is_left_out(metrics, samples, caplog):
    def broken():
        raise KeyError("no such thing")

    found = samples(metrics(queue=broken))
    assert ("splitfl_queue_depth",) not in found
    assert found["splitfl_bytes_total", ("direction", "up")] == 1000
    assert "metric of the queue cannot be read" in caplog.text


def test_a_dictionary_that_changes_meanwhile_is_read_again(metrics, samples, caplog):
    calls = []

    def changing():
        calls.append(None)
        if len(calls) < ATTEMPTS:
            raise RuntimeError("dictionary changed size during iteration")
        return 9

    assert samples(metrics(queue=changing))["splitfl_queue_depth",] == 9
    assert caplog.records == []


def test_scrapes_while_clients_come_and_rounds_end(record):
    """Every scrape is whole and consistent, whatever another thread does at that moment."""
    states: dict[str, str] = {}
    live = Live(
        clients=lambda: {name: state for name, state in states.items()},  # noqa: C416  (in Python, as the roster's)
        queue=lambda: len(states),
        traffic=lambda: (len(states), len(states)),
    )
    made = Metrics(method="pipar", rounds=5000, expected=500, live=live)
    failed: list[BaseException] = []
    done = threading.Event()

    def read():
        try:
            while not done.is_set():
                text = generate_latest(made.registry).decode()
                found = {each.name: each for each in text_string_to_metric_families(text)}
                (rounds,) = found["splitfl_rounds"].samples
                last = found["splitfl_round_seconds"].samples
                assert rounds.value == next(each.value for each in last if each.name.endswith("_count"))
        except BaseException as error:
            failed.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(1, 501):
        states[f"c{number}"] = "connected"
        made.round(record(number, idle={f"c{number - 1}": 0.5}))
    done.set()
    for reader in readers:
        reader.join()
    assert failed == []
    assert made.registry.get_sample_value("splitfl_rounds_total") == 500


WITHOUT = """
import sys
sys.modules["prometheus_client"] = None
from splitfl.monitor import Live, Metrics, MonitorError, configure_logs
try:
    Metrics(method="pipar", rounds=1, expected=1, live=Live(clients=dict, queue=int, traffic=lambda: (0, 0)))
except MonitorError as error:
    print(error)
"""


@pytest.mark.slow
def test_without_the_package_the_error_says_how_to_get_it():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == 'metrics need prometheus-client: pip install "splitfl[monitor]"\n'


def test_without_the_package_in_this_process(metrics, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MonitorError, match=r'pip install "splitfl\[monitor\]"'):
        metrics()
