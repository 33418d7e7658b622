"""The actor: a loop over instructions, with one handler for each operation. Every method runs through it.

The slots of an actor hold what `effects` says: an instruction's values are taken before its handler runs and put after
it. Weights are values too: the slot `params[s,c]` holds the replica.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from splitfl.errors import SplitflError
from splitfl.model import Replica
from splitfl.model.micro_batches import weight
from splitfl.planning.timeline import Event
from splitfl.run.blueprint import Blueprint
from splitfl.run.failure import PeerError, blame, first, in_words, within
from splitfl.run.metrics import Recorder, Tally
from splitfl.run.pool import Pool
from splitfl.run.scales import TOO_FAR, Scales
from splitfl.run.seeds import derive
from splitfl.run.slots import Slots
from splitfl.run.store import Store
from splitfl.run.target import join_target, split_target
from splitfl.run.together import Together, Written
from splitfl.run.wire import Wire
from splitfl.run.work import Work
from splitfl.schedule.instruction import Instruction, Kind, Op, Program, Value, effects, initial_values
from splitfl.schedule.lanes import Entry, lanes
from splitfl.schedule.topology import CLIENT, Topology
from splitfl.transport.base import Channel
from splitfl.transport.messages import Address

Tensors = dict[str, torch.Tensor]

_LOGGER = logging.getLogger(__name__)


class Actor:
    """One participant: its replicas, its channels to the others, and the loop that runs its programs.

    `patience` is how many seconds one message may take on its way to a peer or from it: the deadline of a step unless
    given. `awaited` names the peers whose message is, or was, waited for and did not come.
    """

    def __init__(
        self,
        name: str,
        blueprint: Blueprint,
        *,
        pool: Pool,
        recorder: Recorder,
        channels: dict[str, Channel],
        patience: float | None = None,
    ) -> None:
        self.name = name
        self.slots = Slots()
        self.recorder = recorder
        self.channels = channels
        self.replicas: dict[Value, Replica] = {}
        self.collected: dict[int, dict[int, Tensors]] = {}
        self.tally: dict[int, Tally] = {}
        self.awaited: set[str] = set()
        self.pool = pool
        self.blueprint = blueprint
        self._patience = blueprint.deadlines.step if patience is None else patience
        self.wire = Wire(blueprint)
        self.store = Store()
        self.scales = Scales()
        self._copies = blueprint.method.front_stages if blueprint.method.keeps_activations else None
        self._resets = blueprint.training.optimizer_state == "reset"
        self._handlers: dict[Op, Callable[[Instruction, list[Any], Work], Awaitable[Written]]] = {
            Op.FORWARD: self._forward,
            Op.BACKWARD: self._backward,
            Op.BACKWARD_INPUT: self._backward_input,
            Op.BACKWARD_WEIGHT: self._backward_weight,
            Op.STEP: self._step,
            Op.STORE: self._store,
            Op.SEND: self._send,
            Op.RECV: self._recv,
            Op.AGGREGATE: self._aggregate,
            Op.LOAD: self._load,
        }
        self._for_all = self._handlers | Together(self).handlers

    def clear(self, clients: Collection[int]) -> None:
        """Forget what `clients` left in an ended turn, and what they share; replicas stay."""
        self.forget(clients)
        for states in self.collected.values():
            for client in clients:
                states.pop(client, None)
        self.awaited -= {f"c{client}" for client in clients}
        self.recorder.forget(clients)

    def forget(self, clients: Iterable[int]) -> None:
        """Forget what `clients` left in an attempt that is given up, and what they share."""
        for client in (None, *clients):
            self.slots.discard(client)
            if client is not None:
                self.tally.pop(client, None)
                self.scales.forget(client)

    def discard(self, replicas: Iterable[Value]) -> None:
        """Forget replicas; one that is needed again is made with the initial weights."""
        for key in replicas:
            del self.replicas[key]

    def hold(self, topology: Topology, averages: Mapping[int, Tensors], *, fresh: bool = True) -> None:
        """Put what is alive on this actor before a turn: the average for each client, or weights that stay here.

        `fresh` says that a turn begins: then optimizers start anew where that is the job's rule.
        """
        for value, holder in initial_values(topology).items():
            if holder != self.name:
                continue
            if value.kind is Kind.AVG and value.client is not None:
                self.slots.put(value, self.blueprint.stage_state(averages[value.client], value.stage, value.client))
            else:
                replica = self.replica(value, topology)
                if fresh and self._resets:
                    replica.reset_optimizer()
                self.slots.put(value, replica)

    def replica(self, params: Value, topology: Topology) -> Replica:
        """The replica whose weights are named `params`, made with the initial weights when first asked for."""
        if params not in self.replicas:
            self.replicas[params] = self.blueprint.replica(params, topology)
        return self.replicas[params]

    async def run(self, program: Program, work: Work) -> None:
        """Carry out `program`: lanes side by side, the instructions of a lane in order, until all sends are out."""
        done = [asyncio.Event() for _ in program]
        try:
            async with asyncio.TaskGroup() as group:
                for lane in lanes(program, work.topology).values():
                    group.create_task(self._run_lane(lane, work, done))
        except BaseExceptionGroup as errors:
            error = first(errors)
            raise error from error.__cause__

    async def _run_lane(self, lane: Sequence[Entry], work: Work, done: list[asyncio.Event]) -> None:
        async with asyncio.TaskGroup() as sends:
            for index, instruction, after in lane:
                for other in after:
                    await done[other].wait()
                if instruction.op is Op.SEND:
                    sends.create_task(self._execute(instruction, self._take(instruction, work), work))
                else:
                    await self._execute(instruction, self._take(instruction, work), work)
                done[index].set()

    def _take(self, instruction: Instruction, work: Work) -> list[Any]:
        taken = [self.slots.take(value) for value in effects(instruction, work.topology).consumes]
        if instruction.op is Op.SEND:  # of a replica its weights as they are now, whatever step comes next
            return [each.state() if isinstance(each, Replica) else each for each in taken]
        return taken

    async def _execute(self, instruction: Instruction, taken: list[Any], work: Work) -> None:
        merged = instruction.client is None and instruction.micro_batch is not None
        handlers = self._for_all if merged else self._handlers
        written = await handlers[instruction.op](instruction, taken, work)
        for value in effects(instruction, work.topology).writes:
            self.slots.put(value, written[value if value in written else value.kind])

    async def compute(self, instruction: Instruction, work: Work, function: Callable[[], Any]) -> Any:
        """What `function` gives, computed in the pool; PeerError where it fails on a client's data."""

        def timed() -> tuple[Any, float, float]:
            start = time.monotonic()
            return function(), start, time.monotonic()

        try:
            outcome, start, end = await self.pool.run(instruction.op, timed)
        except Exception as error:
            if instruction.client is None or self.name == f"c{instruction.client}":
                raise
            # What is computed here for a client is made of what it sent: others can go on without it.
            if not isinstance(error, SplitflError):
                _LOGGER.warning("%s on data of c%d failed", instruction, instruction.client, exc_info=error)
            raise PeerError(f"c{instruction.client}", f"{instruction} on its data: {in_words(error)}") from error
        self.recorder.add(work.step, Event(self.name, instruction, start, end))
        return outcome

    async def _forward(self, at: Instruction, taken: list[Any], work: Work) -> Written:
        client, micro = _place(at)
        received, target = work.batch(micro) if at.stage == 0 else split_target(taken[0])
        if work.topology.placement[at.stage] == CLIENT and at.stage > 0:
            target = work.batch(micro)[1]
        if at.stage > 0 and work.topology.placement[at.stage - 1] == CLIENT:
            self.examine(at, client, received, work)
        if at.stage == self._copies:
            self.store.put(at, work.step, taken[0])
        samples, reduction = work.micro_samples(client, micro), self.blueprint.reduction
        replica: Replica = self.slots.peek(effects(at, work.topology).reads[0])
        if at.stage in work.topology.frozen:
            given = await self.compute(at, work, lambda: replica.infer(received))
            carried = self.blueprint.carries_target(at.stage, work.topology, client)
            return {Kind.ACT: join_target(given, target) if carried else given}
        seed = derive(work.seed, work.step, client, at.stage, micro)
        whole = sum(work.samples.values()) if work.topology.joint else work.samples[client]
        share = weight(samples, whole, reduction)
        outputs, stash = await self.compute(
            at, work, lambda: replica.forward(received, seed=seed, target=target, weight=share)
        )
        if stash.loss is not None:
            self._note_loss(at, stash.loss if reduction == "mean" else stash.loss / samples, samples, work)
        if self.blueprint.carries_target(at.stage, work.topology, client):
            outputs = join_target(outputs, target)
        return {Kind.ACT: outputs, Kind.STASH: stash}

    def _note_loss(self, at: Instruction, mean: float, samples: int, work: Work) -> None:
        if at.stage in work.topology.shared and not math.isfinite(mean):
            raise self.spoiled(at, at.client or 0, mean)
        if at.stage == work.topology.last:
            self.tally.setdefault(at.client or 0, Tally()).add(mean, samples)

    def examine(self, at: Instruction, client: int, received: Tensors, work: Work) -> None:
        """Look at what `client` sent. PeerError for whoever sends numbers that would spoil weights of all."""
        self.scales.note(client, received.values())
        outlier = self.scales.outlier(TOO_FAR) if at.stage in work.topology.shared else None
        if outlier is not None:
            raise PeerError(f"c{outlier[0]}", f"{at}: {outlier[1]}, which would spoil weights of all")

    def spoiled(self, at: Instruction, client: int, loss: float) -> PeerError:
        """What is wrong where the loss of `client` at shared weights is no number, and whose doing that is."""
        outlier = self.scales.outlier()
        if outlier is None or outlier[0] == client:
            return PeerError(f"c{client}", f"{at}: the loss on its data is {loss}, which would spoil weights of all")
        return PeerError(f"c{outlier[0]}", f"{at}: the loss on the data of c{client} is {loss}: {outlier[1]}")

    async def _backward(self, at: Instruction, taken: list[Any], work: Work) -> Written:
        replica: Replica = self.slots.peek(effects(at, work.topology).reads[0])
        stash, gradient = taken[0], taken[1] if len(taken) > 1 else None
        below = await self.compute(at, work, lambda: replica.backward(stash, gradient))
        return {Kind.GRAD: below, Kind.PGRAD: None}

    async def _backward_input(self, at: Instruction, taken: list[Any], work: Work) -> Written:
        replica: Replica = self.slots.peek(effects(at, work.topology).reads[0])
        stash, gradient = taken[0], taken[1] if len(taken) > 1 else None
        below, rest = await self.compute(at, work, lambda: replica.backward_input(stash, gradient))
        return {Kind.GRAD: below, Kind.WSTASH: (replica, rest)}

    async def _backward_weight(self, at: Instruction, taken: list[Any], work: Work) -> Written:
        replica, rest = taken[0]
        await self.compute(at, work, lambda: replica.backward_weight(rest))
        return {Kind.PGRAD: None}

    async def _step(self, at: Instruction, taken: list[Any], work: Work) -> Written:
        replica: Replica = taken[0]
        await self.compute(at, work, replica.step)
        return {Kind.PARAMS: replica}

    async def _store(self, at: Instruction, taken: list[Any], work: Work) -> Written:
        self.store.put(at, work.step, taken[0])
        return {}

    async def _send(self, at: Instruction, taken: list[Any], work: Work) -> Written:
        draw = derive(work.seed, work.step, str(at.value))
        address = Address(work.turn, work.step, at.value)
        with blame(at.peer):
            payload = await self.pool.run(at.op, lambda: self.wire.pack(at.value, taken[0], draw=draw))
            start = time.monotonic()
            sending = self.channels[str(at.peer)].send(address, payload)
            sent = await within(self._patience, sending, what=f"it did not take {address}")
        self.recorder.add(work.step, Event(self.name, at, start, time.monotonic(), sent))
        return {}

    async def _recv(self, at: Instruction, taken: list[Any], work: Work) -> Written:
        del taken
        start = time.monotonic()
        address = Address(work.turn, work.step, at.value)
        self.awaited.add(str(at.peer))
        with blame(at.peer):
            payload = await self.channels[str(at.peer)].receive(address, timeout=self._patience)
            self.awaited.discard(str(at.peer))
            self.recorder.add(work.step, Event(self.name, at, start, time.monotonic(), len(payload)))
            tensors = await self.pool.run(at.op, self.wire.unpack, at.value, payload, work.topology, work.samples)
        return {at.value.kind: tensors}

    async def _aggregate(self, at: Instruction, taken: list[Any], work: Work) -> Written:
        states = [held.state() if isinstance(held, Replica) else held for held in taken]
        self.collected.setdefault(at.stage, {}).update(zip(work.topology.clients, states, strict=True))
        return {Kind.AVG: None}

    async def _load(self, at: Instruction, taken: list[Any], work: Work) -> Written:
        replica = self.replica(effects(at, work.topology).writes[0], work.topology)
        await self.compute(at, work, lambda: replica.load(taken[0], reset_optimizer=self._resets))
        return {Kind.PARAMS: replica}


def _place(at: Instruction) -> tuple[int, int]:
    if at.client is None or at.micro_batch is None:
        raise ValueError(f"{at} names no client or no micro-batch")
    return at.client, at.micro_batch
