"""A client's end of a session: enroll, then carry out the turns that the server asks for."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

from torch.utils.data import Dataset

from splitfl.codecs import frame
from splitfl.data.batches import Batches
from splitfl.errors import SplitflError
from splitfl.model.micro_batches import sizes, split
from splitfl.run.actor import Actor, Feed, Work
from splitfl.run.blueprint import Blueprint
from splitfl.run.metrics import Recorder, traced_step
from splitfl.run.pool import Pool
from splitfl.run.seeds import derive
from splitfl.run.turn_plan import personal_stages, step_topology
from splitfl.schedule.instruction import Kind, Program, Value
from splitfl.schedule.text import parse_program
from splitfl.schedule.topology import Topology
from splitfl.transport.base import Channel
from splitfl.transport.messages import PROTOCOL, Address, Begin, Finish, Hello, Refuse, Report, Traced, Welcome
from splitfl.version import __version__


class Client:
    """One client: its data, its replicas, and the session with the server over `channel`."""

    def __init__(
        self, blueprint: Blueprint, dataset: Dataset[Any], *, name: str, channel: Channel, pool: Pool, token: str = ""
    ) -> None:
        self.name = name
        self._blueprint = blueprint
        self._dataset = dataset
        self._channel = channel
        self._pool = pool
        self._token = token
        self._recorder = Recorder()
        self._id = -1
        self._actor: Actor | None = None

    async def run(self) -> str:
        """Take part until the server finishes; returns its last word. Raises SplitflError when refused or cut off."""
        await self._enroll()
        turn: asyncio.Task[None] | None = None
        deadline = self._blueprint.deadlines.round
        while True:
            hearing = asyncio.create_task(self._channel.hear(timeout=deadline, what="the server's next round"))
            try:
                message = await self._hear_beside(hearing, turn)
                if isinstance(message, Begin):
                    await _end(turn)
                    turn = asyncio.create_task(self._turn(message))
                elif isinstance(message, Finish):
                    return message.reason
                elif isinstance(message, Refuse):
                    raise SplitflError(f"the server dropped {self.name}: {message.message}")
            except BaseException:
                await _end(hearing)
                await _end(turn)
                raise

    async def _enroll(self) -> None:
        samples = len(self._dataset)  # type: ignore[arg-type]
        fingerprint = json.dumps(self._blueprint.fingerprints())
        await self._channel.tell(
            Hello(PROTOCOL, self.name, fingerprint, samples, f"splitfl {__version__}", self._token)
        )
        deadline = self._blueprint.deadlines.enrollment
        reply = await self._channel.hear(timeout=deadline, what="the server's welcome, once all clients are enrolled")
        if isinstance(reply, Refuse):
            raise SplitflError(f"the server refused {self.name}: {reply.message}")
        if not isinstance(reply, Welcome):
            raise SplitflError(f"the server answered the hello with {type(reply).__name__}, expected Welcome")
        self._id = reply.client
        self._actor = Actor(
            f"c{self._id}",
            self._blueprint,
            pool=self._pool,
            recorder=self._recorder,
            channels={"server": self._channel},
        )

    async def _hear_beside(self, hearing: asyncio.Task[Any], turn: asyncio.Task[None] | None) -> Any:
        """The next control message; an error of the running turn is told to the server and raised."""
        if turn is not None:
            await asyncio.wait({hearing, turn}, return_when=asyncio.FIRST_COMPLETED)
            if turn.done() and not turn.cancelled() and (error := turn.exception()) is not None:
                if not self._channel.closed:
                    await self._channel.tell(Refuse("failed", f"{type(error).__name__}: {error}"))
                raise error
        return await hearing

    async def _turn(self, begin: Begin) -> None:
        start = time.monotonic()
        actor = self._ready_actor()
        whole = self._blueprint.topology((self._id,))
        programs = [self._program(text) for text in begin.programs]
        batches = self._batches(begin)
        await actor.run(self._program(begin.opening), self._work(begin, whole))
        for index, step in enumerate(begin.plan):
            topology = step_topology(self._blueprint, {self._id: step.samples})
            feed = self._feed(batches[index], sizes(step.samples, len(topology.micro(self._id))))
            work = self._work(begin, topology, step=index, samples={self._id: step.samples}, feed=feed)
            await actor.run(programs[step.program], work)
        events = self._recorder.step(traced_step(len(begin.plan)), since=start)
        trace = tuple(Traced(str(event.instruction), event.start, event.end, event.nbytes) for event in events)
        await actor.run(self._program(begin.closing), self._work(begin, whole))
        for stage in personal_stages(whole, self._id):
            value = Value(Kind.PARAMS, stage, self._id)
            payload = frame.encode(actor.replica(value, whole).state())
            await self._channel.send(Address(begin.round, 0, value), payload)
        tally = actor.tally.get(self._id)
        metrics = {"busy": self._recorder.busy, "seconds": time.monotonic() - start}
        metrics |= tally.metrics() if tally else {}
        await self._channel.tell(Report(begin.round, len(self._dataset), metrics, trace))  # type: ignore[arg-type]

    def _ready_actor(self) -> Actor:
        """The actor at the start of a turn: holding what `initial_values` places on this client."""
        if self._actor is None:
            raise RuntimeError("a turn before the welcome")
        self._actor.clear()
        self._actor.hold(self._blueprint.topology((self._id,)), averages={})
        return self._actor

    def _program(self, text: str) -> Program:
        program = parse_program(text)
        for instruction in program:
            if instruction.client != self._id or instruction.stage >= self._blueprint.stages:
                raise SplitflError(f"the server sent {instruction}, which is not for c{self._id} of this job")
        return program

    def _work(self, begin: Begin, topology: Topology, **options: Any) -> Work:
        return Work(topology=topology, turn=begin.round, seed=begin.seed, **{"step": 0, **options})

    def _batches(self, begin: Begin) -> Batches:
        training = self._blueprint.training
        return Batches(
            self._dataset,
            sizes=tuple(step.samples for step in begin.plan),
            seed=derive(begin.seed, "data", self._id),
            shuffle=training.shuffle,
        )

    def _feed(self, batch: tuple[Any, Any], parts: Sequence[int]) -> Feed:
        inputs, target = batch
        named = split(self._blueprint.partition.bind(inputs), parts)
        labels = split(target, parts)
        return lambda micro: (named[micro], labels[micro])


async def _end(task: asyncio.Task[Any] | None) -> None:
    if task is None:
        return
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
