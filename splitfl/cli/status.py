"""`splitfl status`: how the training at a server stands."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from splitfl.api.observe import observe
from splitfl.cli import console
from splitfl.cli.identity import client_tls, own_token
from splitfl.cli.options import Authority, Certificate, Insecure, Json, Key, Token


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command("status")(status)


def status(
    server: Annotated[str, typer.Option("--server", help="HOST:PORT of the server.", show_default=False)],
    name: Annotated[str, typer.Option("--name", help="Name that the token or certificate is for.")] = "observer",
    ca: Authority = None,
    certificate: Certificate = None,
    key: Key = None,
    token: Token = None,
    insecure: Insecure = False,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with every round, until training ends.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds for the server to answer.")] = 10.0,
    as_json: Json = False,
) -> None:
    """Ask a server how its training stands."""
    show = _emit if as_json else _say
    last = observe(
        server,
        name=name,
        tls=client_tls(None, ca, certificate, key),
        token=own_token(None, token),
        insecure=insecure,
        timeout=timeout,
        follow=show if follow else None,
    )
    if not follow:
        show(last)


def _emit(standing: dict[str, Any]) -> None:
    console.emit("status", **standing)


def _say(standing: dict[str, Any]) -> None:
    rounds = "?" if standing["rounds"] is None else standing["rounds"]
    console.say(f"{standing['method']}: {standing['phase']}, round {standing['round']} of {rounds} is done")
    states: dict[str, list[str]] = {}
    for client, state in standing["clients"].items():
        states.setdefault(state, []).append(client)
    there = "; ".join(f"{state}: {', '.join(clients)}" for state, clients in states.items()) or "none"
    console.say(f"clients ({len(standing['clients'])} of {standing['expected']}): {there}")
    last = standing["last"]
    if last:
        figures = f"accuracy {console.percent(last['accuracy'])}, {last['seconds']:.2f} s"
        console.say(f"round {last['round']}: {figures}, {console.bytes_text(last['bytes_up'])} up")
        for client, reason in last["failures"]:
            console.say(f"  {client}: {reason}")
