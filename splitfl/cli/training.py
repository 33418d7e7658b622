"""`splitfl simulate` and `splitfl local`: train on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from splitfl.api.local import LocalRun, run_local
from splitfl.api.override import override
from splitfl.api.settings import data_from, job_from
from splitfl.api.simulation import simulate as run_simulation
from splitfl.cli import console
from splitfl.cli.options import Clients, JobFile, Json, Link, Method, Report, Rounds, Save
from splitfl.config import load_job
from splitfl.run.record import History, RoundRecord

Device = Annotated[str | None, typer.Option("--device", help="The clients' device in the catalogue.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("simulate")(simulate)
    app.command("local")(local)


def simulate(
    job: JobFile,
    method: Method = None,
    rounds: Rounds = None,
    clients: Clients = None,
    device: Device = None,
    link: Link = None,
    report: Report = None,
    save: Save = None,
    as_json: Json = False,
) -> None:
    """Train in one process: real mathematics, virtual time for the devices and links of the job."""
    settings = override(load_job(job), method=method, rounds=rounds, clients=clients)
    data = data_from(settings)
    result = run_simulation(
        job_from(settings, example_input=data.example_input),
        clients=data.clients,
        rounds=settings.training.rounds,
        test=data.test,
        devices=device or settings.planning.device,
        link=link or settings.planning.link,
        on_round=show_round(as_json),
    )
    if save is not None:
        result.save(save)
    conclude([result.history], report=report, as_json=as_json)


def local(
    job: JobFile,
    method: Annotated[list[str] | None, typer.Option("--method", help="Method; repeat it to compare several.")] = None,
    rounds: Rounds = None,
    clients: Clients = None,
    link: Link = None,
    plain: Annotated[bool, typer.Option("--plain", help="Plain text instead of TLS, on loopback.")] = False,
    report: Report = None,
    as_json: Json = False,
) -> None:
    """Start a real server and real client processes on loopback, over TLS, and train."""
    histories = []
    methods: list[str | None] = [*method] if method else [None]
    for each in methods:
        settings = override(load_job(job), method=each, rounds=rounds, clients=clients)
        run = LocalRun(job=job, method=each, rounds=rounds, clients=settings.data.clients, link=link, tls=not plain)
        if not as_json:
            secured = "plain text" if plain else "TLS"
            console.say(f"{settings.method.name}: a server and {run.clients} clients on 127.0.0.1, {secured}")
        histories.append(run_local(run, on_round=show_round(as_json)))
    conclude(histories, report=report, as_json=as_json)


def show_round(as_json: bool) -> Callable[[RoundRecord], None]:
    """What to do with a finished round: print it."""

    def show(record: RoundRecord) -> None:
        if as_json:
            console.emit("round", record=json.loads(record.to_json()))
        else:
            console.say(console.round_line(record))

    return show


def conclude(histories: list[History], *, report: Path | None, as_json: bool) -> None:
    """Print what the runs came to, and write the report."""
    if report is not None:
        from splitfl.report import write

        write(histories, report)
    if as_json:
        for history in histories:
            console.emit("done", history=json.loads(history.to_json()))
        return
    console.comparison(histories)
    if report is not None:
        console.say(f"report: {report}")
