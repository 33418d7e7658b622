"""A client's part of a turn: its actor, its mini-batches, and where it can go back to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from torch.utils.data import Dataset

from splitfl.codecs import frame
from splitfl.data.batches import Batches
from splitfl.errors import SplitflError
from splitfl.methods import Phase
from splitfl.model.micro_batches import sizes, split
from splitfl.run.actor import Actor
from splitfl.run.blueprint import Blueprint
from splitfl.run.client_memory import ClientMemory, When
from splitfl.run.metrics import Recorder, traced_step
from splitfl.run.moments import give_moments
from splitfl.run.pool import Pool
from splitfl.run.seeds import derive
from splitfl.run.snapshots import Snapshots
from splitfl.run.turn_plan import personal_stages, step_topology
from splitfl.run.work import Feed, Work
from splitfl.schedule.instruction import Kind, Op, Program, Value
from splitfl.schedule.text import parse_program
from splitfl.schedule.topology import Topology
from splitfl.transport.base import Channel
from splitfl.transport.messages import Address, Begin, Report, Traced


class ClientTurn:
    """Carries out one Begin after the other with the same replicas; `number` and `steps` say how far it is."""

    def __init__(
        self,
        blueprint: Blueprint,
        dataset: Dataset[Any],
        *,
        client: int,
        pool: Pool,
        memory: ClientMemory | None = None,
    ) -> None:
        self.client = client
        self.number = 0
        self.steps = 0
        self._blueprint = blueprint
        self._dataset = dataset
        self._recorder = Recorder()
        # The server minds the time of single messages; it may serve many others before it answers this client.
        patience = blueprint.deadlines.round
        self._actor = Actor(f"c{client}", blueprint, pool=pool, recorder=self._recorder, channels={}, patience=patience)
        self._whole = blueprint.topology((client,))
        self._snapshots = Snapshots()
        self._seed: int | None = None
        update = blueprint.codecs.update
        leaves_over = update is not None and update.feedback
        own = leaves_over or blueprint.training.optimizer_state == "keep" or personal_stages(self._whole, client)
        self._memory = memory if own else None

    async def run(self, begin: Begin, channel: Channel) -> None:
        """Load, train the planned mini-batches from `begin.first` on, hand the weights back, and report."""
        start = time.monotonic()
        actor, phase = self._actor, _phase(begin)
        self._whole = self._blueprint.topology((self.client,), phase=phase)
        whole = self._work(begin, self._whole)
        actor.channels["server"] = channel
        programs = [self._program(text) for text in begin.programs]
        opening, closing = self._program(begin.opening), self._program(begin.closing)
        await self._go_back(begin)
        if begin.first == 0:
            self._keep(0)
            await self._remember("before", begin)
            actor.hold(self._whole, {})
            await actor.run(opening, whole)
        else:
            actor.hold(self._whole.without_aggregation(), {}, fresh=False)
        batches = self._batches(begin)
        for index, step in enumerate(begin.plan[begin.first :], begin.first):
            if not step.samples:  # others have this mini-batch to themselves
                self._complete(index + 1)
                continue
            topology = step_topology(self._blueprint, {self.client: step.samples}, index, phase)
            batch = await actor.pool.run(Op.FORWARD, batches.__getitem__, index)
            feed = self._feed(batch, sizes(step.samples, len(topology.micro(self.client))))
            work = self._work(begin, topology, step=index, samples={self.client: step.samples}, feed=feed)
            await actor.run(programs[step.program], work)
            self._complete(index + 1)
        await actor.run(closing, whole)
        await self._send_front(begin, channel)
        await self._remember("after", begin)
        await channel.tell(self._report(begin, start))

    def undo(self) -> None:
        """The turn came too late: its work counts for nothing, here as on the server."""
        if 0 in self._snapshots:
            self._actor.clear((self.client,))
            self._actor.discard(self._snapshots.restore(0, self._actor.replicas, self._actor.tally))
        self._actor.wire.changes.undo()
        self._seed, self.steps = None, 0

    async def _go_back(self, begin: Begin) -> None:
        """Put the replicas where mini-batch `begin.first` begins.

        A Begin with the seed of the turn before is that turn again, so whatever of it was done is undone. A process
        that has done no turn yet goes on from what an earlier one kept on the disk.
        """
        if self._seed is None and self._memory is not None and not self._actor.replicas:
            await self._recall(begin)
        actor, again = self._actor, begin.seed == self._seed
        self._seed, self.number, self.steps = begin.seed, begin.round, begin.first
        actor.clear((self.client,))
        if again:
            actor.wire.changes.undo()
        else:
            actor.wire.changes.turn_over()
            self._snapshots = Snapshots()
        if begin.first or begin.first in self._snapshots:
            actor.discard(self._snapshots.restore(begin.first, actor.replicas, actor.tally))

    async def _recall(self, begin: Begin) -> None:
        memory = self._memory
        if memory is None:
            return
        held, left_over = await asyncio.to_thread(memory.recall, begin.seed, self.client)
        self._actor.wire.changes.left_over |= left_over
        for key, (state, moments) in held.items():
            replica = self._actor.replica(key, self._whole)
            replica.load(state, reset_optimizer=True)
            give_moments(replica, moments)

    async def _remember(self, when: When, begin: Begin) -> None:
        if self._memory is not None:
            changes = self._actor.wire.changes
            left_over = changes.left_over if when == "before" else changes.left_for_next
            tensors = self._memory.pack(self._actor.replicas, left_over)
            await asyncio.to_thread(self._memory.keep, when, begin.seed, tensors)

    def _complete(self, steps: int) -> None:
        self._keep(steps)
        self.steps = steps

    def _keep(self, step: int) -> None:
        """Keep what may be gone back to: any mini-batch after a lost connection, the beginning if all start again."""
        if self._blueprint.deadlines.rejoin or (step == 0 and self._whole.shared):
            self._snapshots.take(step, self._actor.replicas, self._actor.tally)

    def _program(self, text: str) -> Program:
        program = parse_program(text)
        for instruction in program:
            if instruction.client != self.client or instruction.stage >= self._blueprint.stages:
                raise SplitflError(f"the server sent {instruction}, which is not for c{self.client} of this job")
        return program

    def _work(self, begin: Begin, topology: Topology, **options: Any) -> Work:
        return Work(topology=topology, turn=begin.round, seed=begin.seed, **{"step": 0, **options})

    def _batches(self, begin: Begin) -> Batches:
        return Batches(
            self._dataset,
            sizes=tuple(step.samples for step in begin.plan),
            seed=derive(begin.seed, "data", "linked" if self._blueprint.holders else self.client),
            shuffle=self._blueprint.training.shuffle,
        )

    def _feed(self, batch: tuple[Any, Any], parts: Sequence[int]) -> Feed:
        inputs, target = batch
        named = split(self._blueprint.bind(inputs, self.client), parts)
        labels = split(target, parts)
        return lambda micro: (named[micro], labels[micro])

    async def _send_front(self, begin: Begin, channel: Channel) -> None:
        """A front that is nobody else's goes to the server to be evaluated with the tail; it is never averaged."""
        for stage in personal_stages(self._whole, self.client):
            value = Value(Kind.PARAMS, stage, self.client)
            payload = frame.encode(self._actor.replica(value, self._whole).state())
            await channel.send(Address(begin.round, 0, value), payload)

    def _report(self, begin: Begin, start: float) -> Report:
        events = self._recorder.step(traced_step(len(begin.plan)), since=start)
        tally = self._actor.tally.get(self.client)
        return Report(
            begin.round,
            len(self._dataset),  # type: ignore[arg-type]
            {
                "busy": self._recorder.busy((self.client,)),
                "seconds": time.monotonic() - start,
                **(tally.metrics() if tally else {}),
            },
            tuple(Traced(str(event.instruction), event.start, event.end, event.nbytes) for event in events),
        )


def _phase(begin: Begin) -> Phase:
    """What the turn is for. Raises SplitflError for a word that this client does not know."""
    try:
        phase = Phase(begin.phase or Phase.TRAIN)
    except ValueError:
        phase = Phase.SERVER
    if phase is Phase.SERVER:
        raise SplitflError(f"the server begins a turn of phase {begin.phase!r}, expected train, front or upload")
    return phase
