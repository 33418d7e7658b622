"""The deployed client: takes part in the training that its configuration names, under this machine's host name.

    python main.py client.toml --data data.py:load

Everything after the configuration is an option of `splitfl client`; `--name` or `[client] name` give another name. A
server knows a client by its name, so no two may share one.
"""

import re
import socket
import sys
import tomllib
from pathlib import Path

from splitfl.cli import main


def command(configuration: str, *options: str) -> list[str]:
    """The command line of a client. The host name serves where neither file nor options give a name."""
    named = any(option.partition("=")[0] == "--name" for option in options) or _has_name(Path(configuration))
    host = re.sub(r"[^\w.-]", "-", socket.gethostname())[:64] or "client"
    return ["client", configuration, *options, *([] if named else ["--name", host])]


def _has_name(configuration: Path) -> bool:
    try:
        return "name" in tomllib.loads(configuration.read_text(encoding="utf-8")).get("client", {})
    except (OSError, ValueError, AttributeError):
        return False  # the command itself says what is wrong with the file


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python main.py CONFIGURATION.toml --data FILE.py:FUNCTION [options of splitfl client]")
    main(command(*sys.argv[1:]))
