"""Options that several commands share, so that they read alike everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JobFile = Annotated[Path, typer.Argument(metavar="JOB", help="Job file (TOML).", show_default=False)]
Method = Annotated[str | None, typer.Option("--method", help="Another method than the job file's.")]
Rounds = Annotated[int | None, typer.Option("--rounds", min=1, help="Another number of rounds than the job file's.")]
Clients = Annotated[int | None, typer.Option("--clients", min=1, help="Another number of clients than the job file's.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object per line instead of text.")]
Report = Annotated[Path | None, typer.Option("--report", help="Write an HTML report to this file.")]
Save = Annotated[Path | None, typer.Option("--save", help="Write the trained weights to this file (safetensors).")]
Link = Annotated[str | None, typer.Option("--link", help="A link of the catalogue, such as wifi-50.")]
Certificate = Annotated[Path | None, typer.Option("--certificate", help="This end's certificate (PEM).")]
Key = Annotated[Path | None, typer.Option("--key", help="The certificate's private key (PEM).")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Allow plain text beyond this machine.")]
