"""A real run on one machine: a server process and client processes on loopback, started, watched and ended."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from splitfl.errors import SplitflError
from splitfl.run.record import History, RoundRecord
from splitfl.transport import make_certificates

START = 180.0
"""Seconds for the server process to come up: a slow machine reads its libraries for a minute."""
END = 30.0
"""Seconds for the processes to end once training is over."""
LINK_KEY = "link.key"
"""File, in the folder of a run, with the key by which clients link their records."""


class LocalError(SplitflError):
    """A process of a local run failed; the message is its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRun:
    """What to start: the job file, with what is changed of it, the emulated link, whether TLS is used, and the file
    for the trained weights."""

    job: Path
    clients: int
    method: str | None = None
    rounds: int | None = None
    link: str | None = None
    tls: bool = True
    save: Path | None = None

    def server(self, folder: Path) -> list[str]:
        """Arguments of the server process."""
        arguments = ["server", str(self.job), "--address", "127.0.0.1:0", "--json", *self._common()]
        if self.rounds is not None:
            arguments += ["--rounds", str(self.rounds)]
        if self.save is not None:
            arguments += ["--save", str(self.save)]
        if self.tls:
            arguments += ["--certificate", str(folder / "server.pem"), "--key", str(folder / "server.key")]
        return arguments

    def client(self, index: int, address: str, folder: Path) -> list[str]:
        """Arguments of one client process."""
        arguments = ["client", str(self.job), "--server", address, "--index", str(index), *self._common()]
        if self.link is not None:
            arguments += ["--link", self.link]
        if (folder / LINK_KEY).exists():
            arguments += ["--link-key", str(folder / LINK_KEY)]
        return arguments + (["--ca", str(folder / "ca.pem")] if self.tls else [])

    def _common(self) -> list[str]:
        return ["--clients", str(self.clients), *(["--method", self.method] if self.method else [])]


def run_local(
    run: LocalRun,
    *,
    on_progress: Callable[[str], None] = lambda _: None,
    on_round: Callable[[RoundRecord], None] = lambda _: None,
) -> History:
    """Carry out `run`; returns the server's history. `on_progress` is told what is waited for before the first round.

    Raises LocalError with the first failing process's own words.
    """
    with tempfile.TemporaryDirectory(prefix="splitfl-") as name:
        folder = Path(name)
        if run.tls:
            make_certificates(folder, ["127.0.0.1", "localhost"])
        (folder / LINK_KEY).write_text(secrets.token_hex(32))  # for methods in which clients link records
        with _Processes(folder) as processes:
            events = processes.server(run.server(folder))
            address = next(events)["address"]
            on_progress(f"listening on {address}, waiting for {run.clients} client processes")
            for index in range(run.clients):
                processes.client(f"c{index}", run.client(index, address, folder))
            for event in events:
                if event["event"] == "round":
                    on_round(RoundRecord.from_json(json.dumps(event["record"])))
                elif event["event"] == "done":
                    processes.wait()
                    return History.from_json(json.dumps(event["history"]))
    raise LocalError("the server process ended without a result")


class _Processes:
    """The processes of a run; all are ended, by process id, when the block is left."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def server(self, arguments: list[str]) -> Iterator[dict[str, Any]]:
        """Start the server; its events, in order, the first one within `START` seconds."""
        process = self._start("server", arguments, stdout=subprocess.PIPE)
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
        return self._events(lines)

    def client(self, name: str, arguments: list[str]) -> None:
        """Start a client."""
        self._start(name, arguments, stdout=subprocess.DEVNULL)

    def wait(self) -> None:
        """Wait until all have ended by themselves. Raises LocalError for one that does not."""
        for name, process in self._running.items():
            try:
                process.wait(timeout=END)
            except subprocess.TimeoutExpired:
                raise LocalError(f"{name} did not end within {END:g} s after training was complete") from None

    def _start(self, name: str, arguments: list[str], *, stdout: int) -> subprocess.Popen[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        with open(self._folder / f"{name}.err", "w", encoding="utf-8") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "splitfl", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=errors,
                text=True,
                env=environment,
            )
        self._running[name] = process
        return process

    def _events(self, lines: queue.Queue[str | None]) -> Iterator[dict[str, Any]]:
        deadline: float | None = time.monotonic() + START
        while True:
            try:
                line = lines.get(timeout=0.2)
            except queue.Empty:
                self._check_clients()
                if deadline is not None and time.monotonic() > deadline:
                    raise LocalError(f"the server process did not listen within {START:g} s") from None
                continue
            if line is None:
                self._running["server"].wait(timeout=END)
                raise LocalError(self._words("server"))
            deadline = None
            yield json.loads(line)

    def _check_clients(self) -> None:
        """Raise for a client that failed; the server might wait for it until its deadline."""
        for name, process in self._running.items():
            if name != "server" and process.poll():
                raise LocalError(self._words(name))

    def _words(self, name: str) -> str:
        """The last line that a process wrote to stderr."""
        lines = (self._folder / f"{name}.err").read_text(encoding="utf-8").strip().splitlines()
        said = lines[-1].removeprefix("splitfl: ") if lines else f"exit code {self._running[name].returncode}"
        return f"{name}: {said}"


def _read(stream: IO[str] | None, lines: queue.Queue[str | None]) -> None:
    with contextlib.suppress(ValueError):  # the stream is closed when the run is abandoned
        for line in stream or ():
            lines.put(line)
    lines.put(None)
