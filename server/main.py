"""The deployed server: trains the job of its configuration, and after a restart goes on where it was.

    python main.py server.toml STATE

STATE is a folder that outlives the process. It holds the checkpoints of every round and, in the end,
`model.safetensors` and `report.html`. Everything else stands in the configuration; further arguments are those of
`splitfl server`.
"""

import sys
from pathlib import Path

from splitfl.cli import main


def command(configuration: str, state: str, *more: str) -> list[str]:
    """The command line of a server that keeps everything in the folder `state`, which is made where it is missing."""
    folder = Path(state)
    folder.mkdir(parents=True, exist_ok=True)
    kept = {"--checkpoint": "checkpoints", "--save": "model.safetensors", "--report": "report.html"}
    files = [part for flag, name in kept.items() for part in (flag, str(folder / name))]
    return ["server", configuration, *files, "--resume", *more]


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python main.py CONFIGURATION.toml STATE_FOLDER [options of splitfl server]")
    main(command(*sys.argv[1:]))
