"""`splitfl server`: waits for clients on other machines and trains with them."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from splitfl.api.override import override
from splitfl.api.server import serve
from splitfl.api.settings import data_from, fleet_from, job_from
from splitfl.cli import console
from splitfl.cli.options import Certificate, Clients, Insecure, JobFile, Json, Key, Method, Report, Rounds, Save
from splitfl.cli.progress import Progress
from splitfl.cli.training import conclude
from splitfl.config import JobSettings, load_job
from splitfl.errors import SplitflError
from splitfl.monitor import configure_logs
from splitfl.monitor.logs import Form, Level
from splitfl.run.access import Access
from splitfl.run.options import StoppedError
from splitfl.run.stragglers import Stragglers
from splitfl.run.tokens import load_tokens
from splitfl.transport import ServerTLS, SessionLimits


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command("server")(server)


def server(
    job: JobFile,
    address: Annotated[
        str | None, typer.Option("--address", help="HOST:PORT to listen on; port 0 takes a free one.")
    ] = None,
    certificate: Certificate = None,
    key: Key = None,
    client_ca: Annotated[
        Path | None, typer.Option("--client-ca", help="Only clients with a certificate of this authority.")
    ] = None,
    tokens: Annotated[
        Path | None, typer.Option("--tokens", help="Only clients with a token that this file knows.")
    ] = None,
    insecure: Insecure = False,
    method: Method = None,
    rounds: Rounds = None,
    clients: Clients = None,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="Folder for the weights after each round.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint in the folder.")] = False,
    metrics: Annotated[
        str | None, typer.Option("--metrics", help="HOST:PORT at which Prometheus finds the metrics.")
    ] = None,
    log_level: Annotated[
        Level | None, typer.Option("--log-level", help="Write events to stderr, from this level on.")
    ] = None,
    log_format: Annotated[Form, typer.Option("--log-format", help="How events are written.")] = "text",
    report: Report = None,
    save: Save = None,
    as_json: Json = False,
) -> None:
    """Wait for the job's clients and train with them."""
    if resume and checkpoint is None:
        raise SplitflError("--resume needs --checkpoint FOLDER: where the checkpoints are")
    settings = override(load_job(job), method=method, rounds=rounds, clients=clients)
    if log_level is not None:
        configure_logs(log_level, log_format)
    data = data_from(settings)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    progress = Progress(settings.method.name, rounds=settings.training.rounds, as_json=as_json)

    def listening(where: str) -> None:
        if as_json:
            console.emit("listening", address=where)
        wait = f"{settings.server.deadlines.enrollment:g} s at most"
        progress.say(f"listening on {where}, waiting for {settings.data.clients} clients, {wait}")

    def measured(url: str) -> None:
        if as_json:
            console.emit("metrics", url=url)
        progress.say(f"metrics at {url}")

    try:
        with progress:
            result = serve(
                job_from(settings, example_input=data.example_input),
                clients=settings.data.clients,
                rounds=settings.training.rounds,
                address=address or settings.server.address,
                tls=server_tls(settings, certificate, key, client_ca),
                insecure=insecure or settings.server.insecure,
                test=data.test,
                fleet=fleet_from(settings),
                metrics=metrics,
                on_listen=listening,
                on_metrics=measured,
                on_round=progress.round,
                checkpoint=checkpoint,
                resume=resume,
                stop=stop.is_set,
                **policies(settings, tokens),
            )
    except StoppedError as stopped:
        console.emit("stopped", message=str(stopped)) if as_json else console.say(str(stopped))
        return
    if save is not None:
        result.save(save)
    conclude([result.history], report=report, as_json=as_json)


def policies(settings: JobSettings, tokens: Path | None) -> dict[str, Any]:
    """What `serve` takes of [server] as it stands: who may come, how many, and when a round closes without some."""
    given = settings.server
    file = tokens or (settings.path(given.tokens) if given.tokens else None)
    limits = given.limits
    return {
        "access": Access(tokens=load_tokens(file) if file else {}, observers=frozenset(given.observers)),
        "stragglers": Stragglers(**given.stragglers.model_dump()),
        "sessions": SessionLimits(open=limits.sessions, per_minute=limits.sessions_per_minute),
        "largest": limits.message,
        "slots": given.slots,
    }


def server_tls(
    settings: JobSettings, certificate: Path | None, key: Path | None, client_ca: Path | None
) -> ServerTLS | None:
    """The server's identity from the command line, or else from the job file. SplitflError for half of one."""
    if (certificate is None) != (key is None):
        raise SplitflError("--certificate and --key go together: one of them is missing")
    given = settings.server.tls
    if certificate is not None and key is not None:
        return ServerTLS(certificate=certificate, key=key, client_ca=client_ca)
    if given is None:
        return None
    return ServerTLS(
        certificate=settings.path(given.certificate),
        key=settings.path(given.key),
        client_ca=settings.path(given.client_ca) if given.client_ca else None,
    )
