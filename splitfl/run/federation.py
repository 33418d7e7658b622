"""The rounds: what the server does from the first enrolled client to the trained model."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

import torch

from splitfl.aggregation import Assignment, Outcome, Refusal, StrategyRounds, Update, handover
from splitfl.aggregation.guards import is_finite
from splitfl.aggregation.values import Reply
from splitfl.errors import SplitflError
from splitfl.events import event
from splitfl.methods import Phase
from splitfl.run.actor import Actor
from splitfl.run.ahead import Ahead
from splitfl.run.balancing import Balancing
from splitfl.run.blueprint import Blueprint
from splitfl.run.moments import give_moments
from splitfl.run.options import Options, StoppedError
from splitfl.run.progress import Progress
from splitfl.run.record import Failure, RoundRecord, spans
from splitfl.run.roster import Roster
from splitfl.run.server_memory import ServerMemory
from splitfl.run.server_training import ServerTraining
from splitfl.run.summary import metrics_of
from splitfl.run.trained import Trained
from splitfl.run.turn import TurnOutcome, Turns
from splitfl.run.turn_plan import traced
from splitfl.schedule.instruction import weights

Tensors = dict[str, torch.Tensor]

_LOGGER = logging.getLogger(__name__)


class Federation:
    """Runs the rounds of a job with the members that enrolled."""

    def __init__(self, blueprint: Blueprint, roster: Roster, actor: Actor, options: Options) -> None:
        self._blueprint = blueprint
        self._roster = roster
        self._turns = Turns(blueprint, actor, roster, options.stragglers)
        self._actor = actor
        self._options = options
        self._names = roster.names
        self._samples = {client: member.samples for client, member in roster.members.items()}
        self._topology = blueprint.topology(tuple(sorted(roster.members)))
        self._server = ServerTraining(blueprint, actor, self._topology)
        self._balancing = Balancing(blueprint, actor, self._server, self._topology)
        kept = actor.store if blueprint.method.transfer == "replayed" else self._balancing.gaussians
        self._memory = ServerMemory(options.checkpoint, blueprint, options.strategy, kept)
        self._trained = Trained.initial(blueprint, tuple(self._names.values()))
        self._now = Progress(0, Phase.TRAIN, self._names)
        self._ahead: Ahead | None = None
        self._strategy: StrategyRounds | None = None
        if options.strategy is not None:
            averaged, buffers = self._averaged(), blueprint.buffers
            holds = {client: stage.state_names for client, stage in enumerate(blueprint.holders)} or None
            self._strategy = StrategyRounds(
                options.strategy, averaged, seed=blueprint.seed, buffers=buffers, holds=holds
            )

    async def run(self, rounds: int) -> Trained:
        """Train up to round `rounds`. Raises SplitflError where a round cannot go on with anybody."""
        self._memory.require_writable()
        if self._options.resume:
            await asyncio.to_thread(self._resume)
        try:
            if self._blueprint.method.rounds != "in step":
                predict = self._options.predict if self._options.virtual else None
                self._ahead = Ahead(self._blueprint, self._roster, self._turns, predict=predict, last=rounds)
            return await self._rounds(rounds)
        finally:
            if self._ahead is not None:
                await self._ahead.close()

    async def _rounds(self, rounds: int) -> Trained:
        for number in range(len(self._trained.rounds) + 1, rounds + 1):
            if not self._roster.members:
                raise SplitflError(f"round {number}: no client is left; {self._last_words()}")
            phase, clock = self._blueprint.method.phase(number, rounds), self._ahead.clock if self._ahead else 0.0
            self._now = Progress(number, phase, self._names, self._traffic(), clock)
            event(_LOGGER, "round_started", round=number, clients=len(self._roster.members))
            await self._round(number)
            record = await self._record(time.monotonic() - self._now.begun)
            self._trained.rounds.append(record)
            event(_LOGGER, "round_finished", **record.figures())
            await self._keep()
            self._options.on_round(self._trained.rounds[-1])
            if number < rounds and self._options.stop():
                raise StoppedError(f"stopped after round {number} of {rounds}, as asked")
        self._trace()
        return self._trained

    def _trace(self) -> None:
        """Keep one mini-batch of the last turn in which somebody trained, measured and predicted."""
        last = next((outcome for outcome in reversed(self._now.outcomes) if outcome.plans), None)
        if last is None:
            return
        self._trained.measured = () if self._options.virtual else tuple(last.timeline)
        if self._options.predict is not None:
            self._trained.predicted = spans(self._options.predict([traced(plan) for plan in last.plans]).events)

    def _last_words(self) -> str:
        failures = [f"{name}: {reason}" for record in self._trained.rounds for name, reason in record.failures]
        return "; ".join(failures) or "nobody enrolled"

    async def _round(self, number: int) -> None:
        if self._now.phase in (Phase.UPLOAD, Phase.SERVER):
            await self._on_its_own(number)
        elif self._strategy is not None and self._ahead is not None:
            await self._without_waiting(number, self._strategy, self._ahead)
        elif self._strategy is not None:
            await self._aggregated(number, self._strategy)
        elif self._blueprint.method.in_turn:
            await self._relay(number)
        else:
            await self._apart(number)

    async def _relay(self, number: int) -> None:
        """Clients in turn, each from the weights that the one before it handed on."""
        for client in sorted(self._roster.members):
            replies = await self._train(number, [Assignment(client, self._averaged())])
            if any(isinstance(reply, Update) for reply in replies):
                outcome = handover(replies, self._averaged())
                self._now.refused.extend(outcome.refused)
                self._take(outcome)
            else:
                self._now.refuse(replies)
        self._now.require_quorum(self._options.stragglers)

    async def _apart(self, number: int) -> None:
        """All clients, each with a front of its own, on a tail that they share: there is nothing to average."""
        replies = await self._train(number, [Assignment(client, {}) for client in sorted(self._roster.members)])
        self._now.refuse(replies)
        self._now.require_quorum(self._options.stragglers)
        self._take(Outcome({}))

    async def _on_its_own(self, number: int) -> None:
        """The server trains the tail on what it keeps, which the clients send anew where this is the round for it."""
        store = self._actor.store
        if self._now.phase is Phase.UPLOAD or not store:
            self._now.phase = Phase.UPLOAD
            store.clear()
            front = self._averaged()
            replies = await self._train(number, [Assignment(c, front) for c in sorted(self._roster.members)])
            self._now.refuse(replies)
            self._now.require_quorum(self._options.stragglers)
            for refusal in self._now.refused:
                store.forget(refusal.client)
        self._now.alone = await self._server.train_tail(number)
        self._take(Outcome({}))

    async def _align(self, number: int) -> None:
        """Fit the auxiliary networks to what the tail makes of the round's activations, where this is the round."""
        for refusal in self._now.refused:
            self._actor.store.forget(refusal.client)
        if self._actor.store and number % self._blueprint.method.align_every == 0:
            self._trained.state |= await self._server.align(number, self._trained.state)
        self._actor.store.clear()

    async def _aggregated(self, number: int, strategy: StrategyRounds) -> None:
        """All clients that the strategy asks, and its average of what they hand over. A strategy blocks its thread."""
        loop = asyncio.get_running_loop()
        under_way: list[Future[list[Reply]]] = []

        def train(assignments: Sequence[Assignment]) -> list[Reply]:
            under_way.append(asyncio.run_coroutine_threadsafe(self._train(number, assignments), loop))
            return under_way[-1].result()

        clients = {client: member.name for client, member in self._roster.members.items()}
        try:
            outcome = await asyncio.to_thread(strategy.round, number, self._averaged(), train, clients)
        except asyncio.CancelledError:
            for training in under_way:
                training.cancel()
            raise
        self._now.refused.extend(outcome.refused)
        self._now.require_quorum(self._options.stragglers)
        self._take(outcome)
        if self._blueprint.method.align_every:
            await self._align(number)

    async def _without_waiting(self, number: int, strategy: StrategyRounds, ahead: Ahead) -> None:
        """The clients whose turns arrive, and the strategy's average of what they learned, put onto the weights of now.

        What a turn learned is the difference to the weights that it began with, and counts by how old those are.
        """
        arrived = await ahead.arrivals(number, self._trained.state)
        self._now.outcomes += [outcome for _, outcome in arrived]
        averaged = self._averaged()
        replies = [
            ahead.onto(averaged, reply, turn, number) for turn, outcome in arrived for reply in self._replies(outcome)
        ]
        self._now.asked = {reply.client for reply in replies}
        absent = {c: reason for c in self._roster.members if (reason := self._turns.absent(c))}
        replies += [Refusal(client, self._names[client], reason) for client, reason in absent.items()]
        if not any(isinstance(reply, Update) for reply in replies):
            self._now.refuse(replies)
            self._now.require_quorum(self._options.stragglers)
        asked = {reply.client: reply.name for reply in replies}
        averages = await asyncio.to_thread(strategy.round, number, averaged, lambda _: replies, asked)
        self._now.refused.extend(averages.refused)
        self._take(averages)
        if self._blueprint.method.generated:
            refused = {refusal.client for refusal in self._now.refused}
            self._now.alone, tail = await self._balancing.train(number, arrived, refused, self._trained.state)
            self._take(Outcome(tail))
            ahead.spend(self._options.alone(self._now.alone))

    async def _train(self, number: int, assignments: Sequence[Assignment]) -> list[Reply]:
        """One turn of the assigned clients; what they hand over, in the order of their ids."""
        whole = self._trained.state
        self._now.asked |= {job.client for job in assignments}
        averages = {job.client: whole | job.state for job in assignments}
        outcome = await self._turns.run(number, averages, phase=self._now.phase)
        self._now.outcomes.append(outcome)
        return self._replies(outcome)

    def _replies(self, outcome: TurnOutcome) -> list[Reply]:
        """What the clients of a turn hand over, in the order of their ids, and who failed."""
        replies: list[Reply] = [
            Update(client, self._names[client], self._samples[client], state)
            for client, state in sorted(outcome.states.items())
        ]
        return replies + [Refusal(c, self._names[c], reason) for c, reason in sorted(outcome.failures.items())]

    def _averaged(self) -> Tensors:
        """The part of the global state that is averaged, or handed on."""
        stages = [self._blueprint.partition.stages[stage] for stage in sorted(self._topology.aggregated)]
        return {name: self._trained.state[name] for stage in stages for name in stage.state_names}

    def _take(self, outcome: Outcome) -> None:
        """Make a round's outcome the state, and copy what is not averaged from where it lives.

        Raises SplitflError where shared weights, which no strategy looks at, are no numbers any more.
        """
        shared: Tensors = {}
        for stage in self._topology.shared:
            shared |= self._actor.replica(weights(self._topology, stage, None), self._topology).state()
        broken = [name for name, value in shared.items() if not is_finite(value)]
        if broken:
            outlier = self._actor.scales.outlier()
            why = f"c{outlier[0]}: {outlier[1]}" if outlier else "lower the learning rate"
            raise SplitflError(f"training has diverged: {broken[0]!r} is not finite; {why}")
        self._trained.state |= outcome.state | shared
        for alias, name in self._blueprint.partition.aliases.items():
            self._trained.state[alias] = self._trained.state[name]
        for turn in self._now.outcomes:
            for client, front in turn.fronts.items():
                self._trained.fronts[self._names[client]] = front

    async def _record(self, seconds: float) -> RoundRecord:
        metrics = await asyncio.to_thread(metrics_of, self._trained, self._options.evaluate)
        self._now.alone_seconds = self._server.seconds if self._now.alone else 0.0
        return self._now.record(
            metrics,
            seconds=seconds,
            traffic=self._traffic(),
            slots=self._actor.pool.slots,
            options=self._options,
            clock=self._ahead.clock if self._ahead else None,
        )

    def _traffic(self) -> tuple[int, int]:
        channels = self._roster.channels
        return sum(channel.received_bytes for channel in channels), sum(channel.sent_bytes for channel in channels)

    async def _keep(self) -> None:
        """Write the round down; where the disk refuses, that is in the record."""
        replicas = self._actor.replicas if self._blueprint.training.optimizer_state == "keep" else {}
        error = await self._memory.keep(self._trained, self._strategy, replicas)
        if error is not None:
            last = self._trained.rounds[-1]
            self._trained.rounds[-1] = replace(last, failures=(*last.failures, Failure("server", str(error))))

    def _resume(self) -> None:
        """Go on from the newest checkpoint, if there is one."""
        for key, moments in self._memory.recall(self._trained, self._strategy).items():
            give_moments(self._actor.replica(key, self._topology), moments)
        if not self._trained.rounds:
            return
        for stage in self._topology.shared:
            replica = self._actor.replica(weights(self._topology, stage, None), self._topology)
            replica.load(self._blueprint.stage_state(self._trained.state, stage), reset_optimizer=False)
