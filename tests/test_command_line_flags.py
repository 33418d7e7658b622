"""Every command and every flag. A change here is a change for users and their scripts."""

from __future__ import annotations

import typer.main

from splitfl.cli import app

COMMON = {"--help", "--method", "--rounds", "--clients", "--json"}
FLAGS = {
    "simulate": {*COMMON, "--device", "--link", "--report", "--save"},
    "local": {*COMMON, "--link", "--plain", "--report", "--save"},
    "compare": {"--help", "--rounds", "--report", "--json"},
    "server": {
        *COMMON, "--address", "--certificate", "--key", "--client-ca", "--tokens", "--insecure", "--checkpoint",
        "--resume", "--metrics", "--log-level", "--log-format", "--report", "--save",
    },
    "client": {
        "--help", "--server", "--index", "--data", "--name", "--ca", "--certificate", "--key", "--token", "--state",
        "--link-key", "--insecure", "--method", "--clients", "--link", "--patience", "--json",
    },
    "status": {
        "--help", "--server", "--name", "--ca", "--certificate", "--key", "--token", "--insecure", "--follow",
        "--timeout", "--json",
    },
    "certificates": {"--help", "--host", "--client", "--json"},
    "tokens": {"--help", "--client", "--observer", "--json"},
    "methods": {"--help", "--json"},
    "show": {"--help", "--clients", "--micro-batches", "--stages", "--steps", "--step-only", "--phase", "--gantt"},
    "check": {"--help", "--method", "--clients", "--micro-batches", "--stages", "--phase"},
    "cuts": {"--help", "--samples", "--json"},
    "doctor": {"--help", "--json"},
}  # fmt: skip


def test_the_flags_of_every_command():
    commands = typer.main.get_command(app).commands
    context = typer.main.get_command(app).make_context("splitfl", ["doctor"], resilient_parsing=True)
    found = {
        name: {flag for parameter in command.get_params(context) for flag in parameter.opts if flag.startswith("--")}
        for name, command in commands.items()
    }
    assert found == FLAGS
