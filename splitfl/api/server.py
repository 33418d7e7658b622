"""The server's end of a run over gRPC: what it listens to, whom it lets in, and what it tells of itself."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from splitfl.api.error import JobError
from splitfl.api.job import Job
from splitfl.api.loop import run_blocking
from splitfl.api.result import Result
from splitfl.api.watch import Drain, OnRound, measured
from splitfl.events import event
from splitfl.run.access import Access
from splitfl.run.blueprint import Blueprint
from splitfl.run.enrollment import Enrollment
from splitfl.run.evaluation import Evaluate
from splitfl.run.limits import channel_limits
from splitfl.run.options import Options
from splitfl.run.pool import Threads
from splitfl.run.record import History, RoundRecord
from splitfl.run.server import run_server
from splitfl.run.stragglers import Stragglers
from splitfl.run.trained import Trained
from splitfl.run.virtual import Fleet, predictor
from splitfl.transport import ServerTLS, SessionLimits
from splitfl.transport import serve as listen

_LOGGER = logging.getLogger(__name__)


def serve(
    job: Job,
    *,
    clients: int,
    rounds: int,
    address: str = "127.0.0.1:0",
    tls: ServerTLS | None = None,
    insecure: bool = False,
    access: Access | None = None,
    stragglers: Stragglers | None = None,
    sessions: SessionLimits | None = None,
    largest: int | None = None,
    test: Dataset[Any] | None = None,
    slots: int | None = None,
    fleet: Fleet | None = None,
    title: str | None = None,
    metrics: str | None = None,
    on_listen: Callable[[str], None] = lambda _: None,
    on_metrics: Callable[[str], None] = lambda _: None,
    on_round: Callable[[RoundRecord], None] = lambda _: None,
    checkpoint: Path | None = None,
    resume: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Listen on `address`, wait for `clients` clients, and train `job` with them for `rounds` rounds.

    tls        certificate and key; without them the text is plain, which is allowed on loopback or with `insecure`;
               with `client_ca`, the name in a client's certificate must be the one that it comes under
    access     tokens that clients must show, and the roles of names
    stragglers  when a round closes without some of its clients
    sessions, largest  how many may connect, and how often; bytes of the largest bundle of tensors, from the job
               unless given
    slots      instructions computed at the same time, each on one thread; all cores unless given
    fleet      devices and links, for "auto" settings and for the prediction beside the measurement
    metrics    "host:port" at which Prometheus finds the metrics, in plain HTTP; none unless given
    checkpoint, resume  folder for the state after every round; whether to go on from the newest one in it
    stop       asked after every round: whether to end here, to be resumed later
    on_listen, on_metrics  called with the address that clients can connect to, and with the metrics' URL

    Raises SplitflError where the address cannot be used, clients are missing, or a round cannot go on.
    """
    if clients < 1 or rounds < 1:
        raise JobError(f"clients = {clients}, rounds = {rounds}: expected 1 or more of each")
    blueprint = job.blueprint(fleet)
    pool = Threads(slots or os.cpu_count() or 1)
    options = Options(
        strategy=job.flower_strategy(clients),
        evaluate=Evaluate(blueprint, test) if test is not None else None,
        predict=predictor(blueprint, fleet, slots=pool.slots) if fleet is not None else None,
        checkpoint=checkpoint,
        resume=resume,
        stragglers=stragglers or Stragglers(),
    )
    access = replace(access or Access(), certificates=tls is not None and tls.client_ca is not None)

    async def run() -> Trained:
        enrollment = Enrollment(blueprint, clients, access=access)
        limits = channel_limits(blueprint, largest, clients=clients)
        with measured(metrics, enrollment, pool, rounds=rounds, on_metrics=on_metrics) as note:
            server = await listen(
                address,
                enrollment.admit,
                tls=tls,
                insecure=insecure,
                limits=limits,
                sessions=sessions,
                silence=job.deadlines.silence,
            )
            drain = Drain(stop, server, enrollment.standing)
            watching = asyncio.create_task(drain.watch())
            try:
                event(_LOGGER, "server_started", address=server.address, method=blueprint.method.name, clients=clients)
                on_listen(server.address)
                told = replace(options, on_round=_both(note, on_round), stop=drain.asked)
                return await run_server(blueprint, enrollment, pool=pool, options=told, rounds=rounds)
            finally:
                watching.cancel()
                await server.stop(grace=5.0)
                event(_LOGGER, "server_stopped", phase=enrollment.standing.phase)

    try:
        trained = run_blocking(run())
    finally:
        pool.close()
    return _result(job, blueprint, trained, title=title)


def _both(first: OnRound, second: OnRound) -> OnRound:
    def on_round(record: RoundRecord) -> None:
        first(record)
        second(record)

    return on_round


def _result(job: Job, blueprint: Blueprint, trained: Trained, *, title: str | None) -> Result:
    history = History(
        title=title or blueprint.method.name,
        method=blueprint.method.name,
        clients=trained.names,
        settings=job.facts(blueprint),
        rounds=tuple(trained.rounds),
        measured=trained.measured,
        predicted=trained.predicted,
    )
    return Result(history=history, state=trained.model, states=trained.models(), template=blueprint.model)
