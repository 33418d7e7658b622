"""One run of the lab: a server and three clients as processes of their own, over TLS, each over a link that fails.

Processes are killed with SIGKILL, where they stand, and started again as a supervisor would do it.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import secrets
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from splitfl.transport import make_certificates
from tests.faults import ends, reference
from tests.faults.link import Fault, Link, call, cut, half_open, outage, slow, stall
from tests.faults.plan import CLIENTS, ROUNDS, Event, Plan

LONGEST = 150.0
"""Seconds after which a run hangs."""

RESTARTS = 6
"""Times that a supervisor starts a client which failed by itself."""

PORTS = (20_000, 32_000)
"""Where the server listens: below the ports that Linux gives to connections."""

SLOW = 20_000.0
"""Bytes a second of a slow link."""


@dataclass
class Outcome:
    """How a run ended: `problem` says what is wrong with it, and is None where nothing is.

    `counted`: a client was dropped and came back, so that steps were counted, and no bits compared. `unaware`: clients
    that failed since the last word to them was lost, and the server gone by then.
    """

    plan: Plan
    seconds: float = 0.0
    fired: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    problem: str | None = None
    counted: bool = False
    unaware: list[str] = field(default_factory=list)

    @property
    def undisturbed(self) -> bool:
        """Whether nobody was dropped, so that every bit had to be that of the undisturbed run."""
        return not self.failures


class Lab:
    """Carries out `plan` with its files in `folder`."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._place = ends.Place(folder)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["torch._dynamo", "splitfl", "tests.faults.ends"])
        self._processes: dict[str, BaseProcess] = {}
        self._links: dict[str, Link] = {}
        self._tokens = {name: secrets.token_hex(8) for name in CLIENTS}
        self._port = free_port()
        self._left: set[str] = set()
        self._unaware: set[str] = set()
        self._restarts = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> Outcome:
        """The run, to its end or for as long as a run may take."""
        outcome, start = Outcome(self._plan), time.monotonic()
        (self._folder / "states").mkdir(parents=True)
        make_certificates(self._folder, ["127.0.0.1"])
        try:
            await self._begin()
            outcome.problem = await self._watch(start + LONGEST)
        finally:
            await self._end()
        outcome.seconds = time.monotonic() - start
        outcome.unaware = sorted(self._unaware)
        outcome.fired = [name for link in self._links.values() for name in link.fired]
        if outcome.problem is None:
            self._judge(outcome)
        return outcome

    async def _begin(self) -> None:
        self._start("server")
        for name, rate, delay in zip(CLIENTS, self._plan.rates, self._plan.delays, strict=True):
            link = self._links[name] = Link(rate=rate, delay=delay)
            await link.start(self._port)
            for event in self._plan.events:
                if event.client == name:
                    link.arm(event.direction, event.at, self._fault(event))
            self._start(name)

    def _start(self, name: str) -> None:
        target: Callable[..., None]
        arguments: tuple[Any, ...]
        if name == "server":
            target, arguments = ends.server, (self._plan, self._folder, self._port, self._tokens)
        else:
            port = self._links[name].port
            target, arguments = ends.client, (self._plan, self._folder, name, port, self._tokens[name])
        process = self._context.Process(target=target, args=arguments, name=name, daemon=True)
        process.start()
        self._processes[name] = process

    def _fault(self, event: Event) -> Fault:
        match event.kind:
            case "cut":
                return cut()
            case "half-open":
                return half_open(event.seconds)
            case "outage":
                return outage(event.seconds)
            case "stall":
                return stall(event.seconds)
            case "slow":
                return slow(SLOW, event.seconds)
            case "pause":
                return call("pause", lambda: self._pause(event.client, event.seconds))
            case "leave":
                return call("leave", lambda: self._leave(event.client))
            case "kill client":
                return call("kill client", lambda: self._kill(event.client, event.seconds))
            case "kill server":
                return call("kill server", lambda: self._kill("server", event.seconds))

    async def _kill(self, name: str, seconds: float) -> None:
        if self._place.result.exists() or name in self._left:
            return
        self._processes[name].kill()
        self._later(seconds, name)

    def _later(self, seconds: float, name: str) -> None:
        async def start_again() -> None:
            old = self._processes[name]
            await asyncio.sleep(seconds)
            await asyncio.to_thread(old.join)
            if self._processes[name] is old:
                self._start(name)

        task = asyncio.create_task(start_again(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _leave(self, name: str) -> None:
        self._left.add(name)
        self._processes[name].kill()

    async def _pause(self, name: str, seconds: float) -> None:
        """The process stands still, as a laptop does whose lid is closed."""
        pid = self._processes[name].pid
        if pid is None or not self._processes[name].is_alive():
            return
        os.kill(pid, signal.SIGSTOP)
        asyncio.get_running_loop().call_later(seconds, _go_on, pid)

    async def _watch(self, deadline: float) -> str | None:
        """Wait until every process has ended well; a client that failed by itself is started again."""
        while time.monotonic() < deadline:
            await asyncio.sleep(0.02)
            waiting = {task.get_name() for task in self._tasks}
            alive = False
            for name, process in self._processes.items():
                if name in self._left | self._unaware or process.exitcode == 0:
                    continue
                alive = True
                if process.exitcode is None or name in waiting or process.exitcode == -signal.SIGKILL:
                    continue
                if name == "server" or self._restarts == RESTARTS:
                    return f"{name} failed with status {process.exitcode}: {self._last_words(name)}"
                if self._processes["server"].exitcode == 0:
                    # Its line was cut under the very last word: there is no server any more that could repeat it.
                    self._unaware.add(name)
                    continue
                self._restarts += 1
                self._later(0.2, name)
            if not alive:
                return None
        return f"not ended after {LONGEST:g} s: {', '.join(await self._stacks())}"

    async def _stacks(self) -> list[str]:
        """Have every living process write where it is into its log; their names."""
        living = [name for name, process in self._processes.items() if process.is_alive()]
        for name in living:
            os.kill(self._processes[name].pid or 0, signal.SIGUSR1)
        await asyncio.sleep(1.0)
        return [f"{name} still runs" for name in living]

    def _last_words(self, name: str) -> str:
        lines = (self._folder / f"{name}.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no words"

    async def _end(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for process in self._processes.values():
            process.kill()
            await asyncio.to_thread(process.join)
        for link in self._links.values():
            await link.stop()

    def _judge(self, outcome: Outcome) -> None:
        """Compare what the server wrote with the undisturbed run, less the clients that the records name."""
        found = load_file(self._place.result)
        records = [json.loads(line) for line in self._place.records.read_text().splitlines()]
        absent: dict[str, set[int]] = {}
        for record in records:
            for failure in record["failures"]:
                outcome.failures.append(f"round {record['round']}: {': '.join(failure)}")
            for name in set(CLIENTS) - set(record["participants"]):
                absent.setdefault(name, set()).add(record["round"])
        if [record["round"] for record in records] != list(range(1, ROUNDS + 1)):
            outcome.problem = f"the records are of rounds {[record['round'] for record in records]}"
            return
        last = {name: min(rounds) - 1 for name, rounds in absent.items()}
        expected = reference.undisturbed(self._plan, last)
        if all(rounds == set(range(min(rounds), ROUNDS + 1)) for rounds in absent.values()):
            outcome.problem = reference.difference(found, expected)
        else:  # somebody left and came back: at least no step may have been done twice
            outcome.counted = True
            most = reference.steps(reference.undisturbed(self._plan, {}))
            twice = {name: n for name, n in reference.steps(found).items() if n > most[name]}
            outcome.problem = f"steps were applied twice: {twice}, at most {most}" if twice else None


def free_port() -> int:
    """A port that nobody listens at, nor will before the server does, which may be killed and come back to it."""
    while True:
        port = random.randrange(*PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _go_on(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
