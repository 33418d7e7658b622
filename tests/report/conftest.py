"""Histories as real as they get without training: time lines from the simulator, rounds that learn and fail."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from splitfl.methods import METHODS
from splitfl.planning import Link, StageCost, simulate, stage_costs
from splitfl.run.record import Failure, History, RoundRecord, Span, spans
from splitfl.schedule import generator, lower

CLIENTS = ("phone-0", "phone-1", "raspberry")
WIFI = Link(bandwidth=6.25e6, latency=0.004)


def predicted(method: str, micro_batches: int) -> tuple[Span, ...]:
    """A mini-batch of three clients on the simulator: front on the client, tail on a server with two slots."""
    made = METHODS[method]()
    topology = made.topology((0, 1, 2), stages=2, micro_batches=micro_batches).without_aggregation()
    stages = [
        StageCost(forward=0.040, backward=0.030, weight=0.040, step=0.004, activation=200_000),
        StageCost(forward=0.024, backward=0.026, weight=0.022, step=0.006),
    ]
    links = {pair: WIFI for c in topology.clients for pair in ((f"c{c}", "server"), ("server", f"c{c}"))}
    costs = stage_costs(
        stages, pace={"c2": 1.6}, links=links, slots={"server": 2}, size=lambda _client, _micro: 1 / micro_batches
    )
    schedule = lower(generator(str(made.schedule))(topology), topology)
    return spans(simulate(schedule, topology, costs).events)


def measured(planned: tuple[Span, ...], *, seed: int) -> tuple[Span, ...]:
    """The same with the scatter of a real machine."""
    noise = random.Random(seed)
    return tuple(
        replace_times(span, 1.06 + 0.02 * noise.random(), 1.06 + 0.03 + 0.02 * noise.random()) for span in planned
    )


def replace_times(span: Span, begin: float, finish: float) -> Span:
    return span._replace(start=span.start * begin, end=span.end * finish)


def history(title: str, method: str, *, micro_batches: int = 1, seconds: float = 2.0, rounds: int = 15) -> History:
    noise = random.Random(title)
    planned = predicted(method, micro_batches)
    records = []
    for number in range(1, rounds + 1):
        progress = 1 - math.exp(-number / 4)
        records.append(
            RoundRecord(
                round=number,
                seconds=seconds * (1 + 0.1 * noise.random()),
                accuracy=0.1 + 0.87 * progress + 0.01 * noise.random(),
                loss=2.3 - 2.15 * progress + 0.03 * noise.random(),
                train_loss=2.2 - 2.15 * progress + 0.02 * noise.random(),
                bytes_up=int(4.1e6 * (1 if method == "fedavg" else 3.2)),
                bytes_down=int(4.1e6 * (1 if method == "fedavg" else 2.9)),
                idle={"c0": 0.3 + 0.05 * noise.random(), "c1": 0.32, "c2": 0.08, "server": 0.55 * noise.random() + 0.2},
                participants=CLIENTS,
            )
        )
    lost = Failure("raspberry", "no message of step 4 within 120 s: the round goes on without it")
    records[6] = replace(records[6], participants=CLIENTS[:2], failures=(lost,))
    return History(
        title=title,
        method=method,
        clients=CLIENTS,
        settings={
            "method": {"name": method, "micro_batches": micro_batches},
            "training": {"rounds": rounds, "batch_size": 32, "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9}},
            "data": {"name": "digits", "split": "dirichlet", "alpha": 0.5, "clients": 3},
            "model": {"build": "models.py:cnn", "cut": "conv2"},
        },
        rounds=tuple(records),
        measured=measured(planned, seed=1),
        predicted=planned,
    )


@pytest.fixture
def runs() -> list[History]:
    """Three methods on the same job."""
    return [
        history("PiPar", "pipar", micro_batches=4, seconds=1.1),
        history("SplitFed V1", "splitfed-v1", seconds=2.0),
        history("FedAvg", "fedavg", seconds=2.6),
    ]
