"""`splitfl server`, `splitfl client` and `splitfl certificates`: the ends of a run on different machines."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from splitfl.api.network import join, serve
from splitfl.api.override import override
from splitfl.api.settings import data_from, fleet_from, job_from, own_data
from splitfl.cli import console
from splitfl.cli.options import Certificate, Clients, Insecure, JobFile, Json, Key, Link, Method, Report, Rounds, Save
from splitfl.cli.progress import Progress
from splitfl.cli.training import conclude
from splitfl.config import JobSettings, load_job
from splitfl.errors import SplitflError
from splitfl.run.federation import StoppedError
from splitfl.run.virtual import emulated
from splitfl.transport import ClientTLS, ServerTLS, make_certificates, make_client_certificate


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("server")(server)
    app.command("client")(client)
    app.command("certificates")(certificates)


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
    insecure: Insecure = False,
    method: Method = None,
    rounds: Rounds = None,
    clients: Clients = None,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="Folder for the weights after each round.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint in the folder.")] = False,
    report: Report = None,
    save: Save = None,
    as_json: Json = False,
) -> None:
    """Wait for the job's clients and train with them."""
    if resume and checkpoint is None:
        raise SplitflError("--resume needs --checkpoint FOLDER: where the checkpoints are")
    settings = override(load_job(job), method=method, rounds=rounds, clients=clients)
    data = data_from(settings)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    progress = Progress(settings.method.name, rounds=settings.training.rounds, as_json=as_json)

    def listening(where: str) -> None:
        if as_json:
            console.emit("listening", address=where)
        wait = f"{settings.server.deadlines.enrollment:g} s at most"
        progress.say(f"listening on {where}, waiting for {settings.data.clients} clients, {wait}")

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
                slots=settings.server.slots,
                fleet=fleet_from(settings),
                on_listen=listening,
                on_round=progress.round,
                checkpoint=checkpoint,
                resume=resume,
                stop=stop.is_set,
            )
    except StoppedError as stopped:
        console.emit("stopped", message=str(stopped)) if as_json else console.say(str(stopped))
        return
    if save is not None:
        result.save(save)
    conclude([result.history], report=report, as_json=as_json)


def client(
    job: JobFile,
    server: Annotated[str | None, typer.Option("--server", help="HOST:PORT of the server.")] = None,
    index: Annotated[
        int | None, typer.Option("--index", min=0, help="Which part of the job's data is this client's.")
    ] = None,
    data: Annotated[str | None, typer.Option("--data", help="This client's own data: file.py:function.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="This client's name.")] = None,
    ca: Annotated[
        Path | None, typer.Option("--ca", help="Authority that signed the server's certificate (PEM).")
    ] = None,
    certificate: Certificate = None,
    key: Key = None,
    insecure: Insecure = False,
    method: Method = None,
    clients: Clients = None,
    link: Link = None,
    patience: Annotated[float, typer.Option("--patience", min=0.1, help="Seconds to wait for the server.")] = 60.0,
    as_json: Json = False,
) -> None:
    """Take part in a server's training with the data of this machine."""
    settings = override(load_job(job), method=method, clients=clients)
    where = server or settings.client.server
    if where is None:
        raise SplitflError("--server is missing: say HOST:PORT of the server, or [client] server in the job file")
    dataset, example = own_data(settings, index=index, reference=data)
    own_name = name or settings.client.name or f"c{index or 0}"
    if not as_json:
        console.say(f"{own_name}: waiting for the server {where}, {patience:g} s at most")

    def connected() -> None:
        if as_json:
            console.emit("connected", server=where, client=own_name)
        else:
            console.say(f"{own_name}: connected, waiting for work")

    word = join(
        job_from(settings, example_input=example),
        dataset,
        server=where,
        name=own_name,
        tls=client_tls(settings, ca, certificate, key),
        insecure=insecure or settings.client.insecure,
        patience=patience,
        link=emulated(link) if link else None,
        fleet=fleet_from(settings),
        on_connect=connected,
    )
    if as_json:
        console.emit("finished", message=word)
    else:
        console.say(word)


def certificates(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the files go.", show_default=False)],
    host: Annotated[
        list[str] | None, typer.Option("--host", help="Name or address of the server; repeat for more.")
    ] = None,
    client: Annotated[
        list[str] | None, typer.Option("--client", help="Name of a client that gets a certificate too.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make an authority and certificates signed by it, for TLS between your own machines."""
    identity = make_certificates(folder, host or ["localhost", "127.0.0.1"])
    files = [folder / "ca.pem", identity.certificate, identity.key]
    for name in client or []:
        own = make_client_certificate(folder, name)
        files += [path for path in (own.certificate, own.key) if path is not None]
    if as_json:
        console.emit("certificates", files=[str(path) for path in files])
        return
    for path in files:
        console.say(str(path))


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


def client_tls(settings: JobSettings, ca: Path | None, certificate: Path | None, key: Path | None) -> ClientTLS | None:
    """Whom the client trusts and who it is, from the command line, or else from the job file."""
    if (certificate is None) != (key is None):
        raise SplitflError("--certificate and --key go together: one of them is missing")
    given = settings.client.tls
    if ca is not None:
        return ClientTLS(ca=ca, certificate=certificate, key=key)
    if given is None:
        return None
    own = (
        (settings.path(given.certificate), settings.path(given.key))
        if given.certificate and given.key
        else (None, None)
    )
    return ClientTLS(ca=settings.path(given.ca), certificate=own[0], key=own[1])
