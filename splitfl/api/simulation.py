"""Training in one process: real mathematics, virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from splitfl.api.error import JobError
from splitfl.api.job import Job
from splitfl.api.loop import run_blocking
from splitfl.api.result import Result
from splitfl.run.evaluation import Evaluate
from splitfl.run.in_process import run_in_process
from splitfl.run.options import Options
from splitfl.run.record import History, RoundRecord
from splitfl.run.virtual import Fleet, predictor, server_alone

SLOTS = 4
"""Compute slots of the simulated server."""


def simulate(
    job: Job,
    *,
    clients: Sequence[Dataset[Any]] | Mapping[str, Dataset[Any]],
    rounds: int,
    test: Dataset[Any] | None = None,
    devices: str | Sequence[str] = "laptop",
    link: str | Sequence[str] = "wifi-50",
    server: str = "gpu-server",
    title: str | None = None,
    on_round: Callable[[RoundRecord], None] = lambda _: None,
    checkpoint: Path | None = None,
) -> Result:
    """Train `job` for `rounds` rounds with one client for each data set in `clients` (named c0, c1, ... in a list).

    The mathematics is real and gives the same bits as a run over gRPC with the same seed. Seconds, idle shares and
    the timeline come from the simulator, for the named `devices` and `link` (one for all clients, or a list that is
    dealt out in turn) and the `server` device; bytes are counted on the frames that really passed.

    Raises JobError and its relatives for a setting that cannot work.
    """
    if rounds < 1:
        raise JobError(f"rounds = {rounds}: expected 1 or more")
    datasets = dict(clients) if isinstance(clients, Mapping) else {f"c{i}": each for i, each in enumerate(clients)}
    if not datasets:
        raise JobError("clients = []: expected one data set or more")
    fleet = Fleet(devices, link, server=server)
    blueprint = job.blueprint(fleet)
    options = Options(
        strategy=job.flower_strategy(len(datasets)),
        evaluate=Evaluate(blueprint, test) if test is not None else None,
        predict=predictor(blueprint, fleet, slots=SLOTS),
        alone=server_alone(blueprint, fleet),
        virtual=True,
        on_round=on_round,
        checkpoint=checkpoint,
    )
    trained = run_blocking(run_in_process(blueprint, datasets, options=options, rounds=rounds))
    history = History(
        title=title or blueprint.method.name,
        method=blueprint.method.name,
        clients=tuple(datasets),
        settings=job.facts(blueprint),
        rounds=tuple(trained.rounds),
        predicted=trained.predicted,
    )
    return Result(history=history, state=trained.model, states=trained.models(), template=blueprint.model)
