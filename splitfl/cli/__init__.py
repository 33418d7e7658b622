"""The command `splitfl`. Every error that a user can put right is one line on stderr and exit code 2.

With SPLITFL_DEBUG set to anything in the environment, tracebacks are printed too: of that error, and of failures in
the model, the loss or the data that a run survives.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence

import click
import typer

from splitfl.cli.client import register as register_client
from splitfl.cli.compare import register as register_compare
from splitfl.cli.identity import register as register_identity
from splitfl.cli.inspection import register as register_inspection
from splitfl.cli.schedules import register as register_schedules
from splitfl.cli.server import register as register_server
from splitfl.cli.status import register as register_status
from splitfl.cli.training import register as register_training
from splitfl.errors import SplitflError
from splitfl.schedule.error import ScheduleError

app = typer.Typer(
    help="Train models that are split between devices and a server.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for register in (
    register_training,
    register_compare,
    register_server,
    register_client,
    register_status,
    register_identity,
    register_schedules,
    register_inspection,
):
    register(app)


_SILENCE = logging.NullHandler()
"""Keeps what is logged from stderr, where Python would write it for want of another handler."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    if not _debugging():
        logging.getLogger("splitfl").addHandler(_SILENCE)
    try:
        outcome = app(args=None if arguments is None else list(arguments), standalone_mode=False)
    except (SplitflError, ScheduleError, OSError) as error:
        _complain(str(error))
        sys.exit(2)
    except click.ClickException as error:
        _complain(error.format_message())
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        _complain("interrupted")
        sys.exit(130)
    sys.exit(outcome if isinstance(outcome, int) else 0)


def _debugging() -> bool:
    return bool(os.environ.get("SPLITFL_DEBUG"))


def _complain(message: str) -> None:
    if _debugging():
        traceback.print_exc()
    for line in message.splitlines():
        sys.stderr.write(f"splitfl: {line.strip()}\n")
