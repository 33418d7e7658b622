"""`splitfl client`: takes part in a server's training with the data of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from splitfl.api.client import join
from splitfl.api.override import override
from splitfl.api.settings import fleet_from, job_from, own_data
from splitfl.cli import console
from splitfl.cli.identity import client_tls, own_link_key, own_token
from splitfl.cli.options import (
    Authority,
    Certificate,
    Clients,
    Insecure,
    JobFile,
    Json,
    Key,
    Link,
    LinkKey,
    Method,
    Token,
)
from splitfl.config import load_job
from splitfl.errors import SplitflError
from splitfl.run.virtual import emulated


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command("client")(client)


def client(
    job: JobFile,
    server: Annotated[str | None, typer.Option("--server", help="HOST:PORT of the server.")] = None,
    index: Annotated[
        int | None, typer.Option("--index", min=0, help="Which part of the job's data is this client's.")
    ] = None,
    data: Annotated[str | None, typer.Option("--data", help="This client's own data: file.py:function.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="This client's name.")] = None,
    ca: Authority = None,
    certificate: Certificate = None,
    key: Key = None,
    token: Token = None,
    state: Annotated[
        Path | None, typer.Option("--state", help="Folder for what must survive a restart of this client.")
    ] = None,
    link_key: LinkKey = None,
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
        token=own_token(settings, token),
        state=state or (settings.path(settings.client.state) if settings.client.state else None),
        link_key=own_link_key(settings, link_key),
        patience=patience,
        link=emulated(link) if link else None,
        fleet=fleet_from(settings),
        on_connect=connected,
    )
    if as_json:
        console.emit("finished", message=word)
    else:
        console.say(word)
