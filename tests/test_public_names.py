"""The front door: what `import splitfl` offers, and every flag of the command. A change here is a change for users."""

from __future__ import annotations

from types import ModuleType

import typer.main

import splitfl
from splitfl.cli import app

NAMES = {
    "ClientTLS", "Deadlines", "Job", "JobError", "Result", "ServerTLS", "SplitflError", "__version__", "adam",
    "by_user", "codec", "dirichlet", "iid", "join", "load", "methods", "optimizer", "partition", "possible_cuts", "serve", "sgd",
    "shards", "simulate",
}  # fmt: skip

METHOD_NAMES = {
    "METHODS", "Method", "ScheduleSource", "fedavg", "pipar", "sl", "splitfed_v1", "splitfed_v2", "splitfed_v3",
}  # fmt: skip

COMMON = {"--help", "--method", "--rounds", "--clients", "--json"}
FLAGS = {
    "simulate": {*COMMON, "--device", "--link", "--report", "--save"},
    "local": {*COMMON, "--link", "--plain", "--report"},
    "server": {
        *COMMON, "--address", "--certificate", "--key", "--client-ca", "--insecure", "--checkpoint", "--resume",
        "--report", "--save",
    },
    "client": {
        "--help", "--server", "--index", "--data", "--name", "--ca", "--certificate", "--key", "--insecure", "--method",
        "--clients", "--link", "--patience", "--json",
    },
    "certificates": {"--help", "--host", "--client", "--json"},
    "methods": {"--help", "--json"},
    "show": {"--help", "--clients", "--micro-batches", "--stages", "--steps", "--step-only", "--gantt"},
    "check": {"--help", "--method", "--clients", "--micro-batches", "--stages"},
    "cuts": {"--help", "--samples", "--json"},
    "doctor": {"--help", "--json"},
}  # fmt: skip


def offered(module: ModuleType) -> set[str]:
    """What a module exports: names that are not private, and no sub-modules that an import happened to leave there."""
    return {
        name
        for name, value in vars(module).items()
        if (not name.startswith("_") or name == "__version__")
        and (not isinstance(value, ModuleType) or name == "methods")
        and name not in ("annotations", "Callable", "Literal")
    }


def test_the_names_of_the_package():
    assert offered(splitfl) == NAMES


def test_the_names_of_the_methods():
    assert offered(splitfl.methods) == METHOD_NAMES


def test_the_flags_of_every_command():
    commands = typer.main.get_command(app).commands
    context = typer.main.get_command(app).make_context("splitfl", ["doctor"], resilient_parsing=True)
    found = {
        name: {flag for parameter in command.get_params(context) for flag in parameter.opts if flag.startswith("--")}
        for name, command in commands.items()
    }
    assert found == FLAGS
