"""`splitfl simulate` and `splitfl local`: train on this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from splitfl.api.local import LocalRun, run_local
from splitfl.api.override import override
from splitfl.api.settings import data_from, job_from
from splitfl.api.simulation import simulate as run_simulation
from splitfl.cli import console
from splitfl.cli.options import Clients, JobFile, Json, Link, Method, Report, Rounds, Save
from splitfl.cli.progress import Progress
from splitfl.config import load_job
from splitfl.errors import SplitflError
from splitfl.run.record import History
from splitfl.run.virtual import emulated

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
    devices, links = device or settings.planning.device, link or settings.planning.link
    with Progress(settings.method.name, rounds=settings.training.rounds, as_json=as_json) as progress:
        fleet = f"{len(data.clients)} clients ({listed(devices)}) over {listed(links)}"
        progress.say(f"{settings.method.name}: {fleet}, in one process")
        result = run_simulation(
            job_from(settings, example_input=data.example_input),
            clients=data.clients,
            rounds=settings.training.rounds,
            test=data.test,
            devices=devices,
            link=links,
            on_round=progress.round,
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
    save: Save = None,
    as_json: Json = False,
) -> None:
    """Start a real server and real client processes on loopback, over TLS, and train."""
    methods: list[str | None] = [*method] if method else [None]
    if save is not None and len(methods) > 1:
        raise SplitflError(f"--save {save}: {len(methods)} methods train {len(methods)} models; expected one --method")
    if link is not None:
        emulated(link)
    jobs = [override(load_job(job), method=each, rounds=rounds, clients=clients) for each in methods]
    histories = []
    for each, settings in zip(methods, jobs, strict=True):
        run = LocalRun(
            job=job, method=each, rounds=rounds, clients=settings.data.clients, link=link, tls=not plain, save=save
        )
        with Progress(settings.method.name, rounds=settings.training.rounds, as_json=as_json) as progress:
            progress.say(f"{settings.method.name}: starting a server on 127.0.0.1, {'plain text' if plain else 'TLS'}")
            histories.append(run_local(run, on_progress=progress.say, on_round=progress.round))
    conclude(histories, report=report, as_json=as_json)


def listed(names: str | Sequence[str]) -> str:
    """One name, or several with commas."""
    return names if isinstance(names, str) else ", ".join(names)


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
