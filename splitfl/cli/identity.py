"""`splitfl certificates` and `splitfl tokens`, and who a client is by its options and its job file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from splitfl.cli import console
from splitfl.cli.options import Json
from splitfl.config import JobSettings
from splitfl.errors import SplitflError
from splitfl.run.tokens import SERVER_FILE, issue, load_token
from splitfl.transport import ClientTLS, make_certificates, make_client_certificate
from splitfl.transport.messages import OBSERVER, TRAINER

TOKEN_VARIABLE = "SPLITFL_TOKEN"
"""Environment variable with a client's token, where a file is unhandy."""


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("certificates")(certificates)
    app.command("tokens")(tokens)


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


def tokens(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the files go.", show_default=False)],
    client: Annotated[list[str] | None, typer.Option("--client", help="Name of a client; repeat for more.")] = None,
    observer: Annotated[
        list[str] | None, typer.Option("--observer", help="Name of one that only looks on; repeat for more.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a secret for each client, which it shows to the server; a new one replaces the old."""
    named = [(name, TRAINER) for name in client or []] + [(name, OBSERVER) for name in observer or []]
    if not named:
        raise SplitflError("--client NAME or --observer NAME is missing: whom the tokens are for")
    files = [str(issue(folder, name, role=role)) for name, role in named]
    if as_json:
        console.emit("tokens", server=str(folder / SERVER_FILE), files=files)
        return
    console.say(f"for the server: {folder / SERVER_FILE}")
    for (name, role), path in zip(named, files, strict=True):
        console.say(f"for {name} ({role}): {path}")


def own_token(settings: JobSettings | None, file: Path | None) -> str:
    """A client's token: from the file that is named, from the job file's, or from the environment; else empty."""
    if file is not None:
        return load_token(file)
    if settings is not None and settings.client.token:
        return load_token(settings.path(settings.client.token))
    return os.environ.get(TOKEN_VARIABLE, "").strip()


def own_link_key(settings: JobSettings, file: Path | None) -> bytes:
    """The secret that holders of features share: from the file that is named, or the job file's; else empty."""
    path = file or (settings.path(settings.client.link_key) if settings.client.link_key else None)
    if path is None:
        return b""
    try:
        return path.read_bytes().strip()
    except OSError as error:
        raise SplitflError(f"cannot read the linkage key {path}: {error.strerror}") from None


def client_tls(
    settings: JobSettings | None, ca: Path | None, certificate: Path | None, key: Path | None
) -> ClientTLS | None:
    """Whom the client trusts and who it is, from the command line, or else from the job file."""
    if (certificate is None) != (key is None):
        raise SplitflError("--certificate and --key go together: one of them is missing")
    if ca is not None:
        return ClientTLS(ca=ca, certificate=certificate, key=key)
    given = settings.client.tls if settings else None
    if settings is None or given is None:
        return None
    own = (
        (settings.path(given.certificate), settings.path(given.key))
        if given.certificate and given.key
        else (None, None)
    )
    return ClientTLS(ca=settings.path(given.ca), certificate=own[0], key=own[1])
