"""Options that several commands share, so that they read alike everywhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def writable(path: Path | None) -> Path | None:
    """A file that can be written when training is over, so that nobody learns only then that it cannot be."""
    if path is None:
        return None
    folder = path.absolute().parent
    if path.is_dir():
        raise typer.BadParameter(f"{path} cannot be written: it is a folder")
    if not folder.is_dir():
        raise typer.BadParameter(f"{path} cannot be written: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise typer.BadParameter(f"{path} cannot be written: no permission in {folder}")
    return path


JobFile = Annotated[Path, typer.Argument(metavar="JOB", help="Job file (TOML).", show_default=False)]
Method = Annotated[str | None, typer.Option("--method", help="Another method than the job file's.")]
Rounds = Annotated[int | None, typer.Option("--rounds", min=1, help="Another number of rounds than the job file's.")]
Clients = Annotated[int | None, typer.Option("--clients", min=1, help="Another number of clients than the job file's.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object per line instead of text.")]
Report = Annotated[Path | None, typer.Option("--report", callback=writable, help="Write an HTML report to this file.")]
Save = Annotated[
    Path | None, typer.Option("--save", callback=writable, help="Write the trained weights to this file (safetensors).")
]
Link = Annotated[str | None, typer.Option("--link", help="A link of the catalogue, such as wifi-50.")]
Certificate = Annotated[Path | None, typer.Option("--certificate", help="This end's certificate (PEM).")]
Key = Annotated[Path | None, typer.Option("--key", help="The certificate's private key (PEM).")]
Authority = Annotated[Path | None, typer.Option("--ca", help="Authority that signed the server's certificate (PEM).")]
Token = Annotated[Path | None, typer.Option("--token", help="File with this client's secret.")]
LinkKey = Annotated[
    Path | None, typer.Option("--link-key", help="File with the secret by which holders link records of one sample.")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Allow plain text beyond this machine.")]
