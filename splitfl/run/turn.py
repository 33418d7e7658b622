"""One turn on the server: clients receive weights, train their mini-batches, and hand their weights back.

A round is one turn of all its clients, or, in relay methods, one turn of each client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from splitfl.methods import Phase
from splitfl.model import Replica
from splitfl.run.actor import Actor
from splitfl.run.blueprint import Blueprint
from splitfl.run.failure import PeerError, first
from splitfl.run.group import Group
from splitfl.run.metrics import Tally, traced_step
from splitfl.run.record import Span, from_zero
from splitfl.run.roster import Roster
from splitfl.run.seeds import derive
from splitfl.run.snapshots import Snapshots
from splitfl.run.stragglers import Stragglers
from splitfl.run.turn_plan import GroupPlan, client_steps, own_batches, plan_group
from splitfl.run.work import Work
from splitfl.schedule.instruction import Instruction, Op, Program, Value
from splitfl.transport.base import DeadlineExceeded
from splitfl.transport.messages import Report

Tensors = dict[str, torch.Tensor]

PLANS = 1000
"""Plans that are kept: one for each client, or for each set of clients that moved together."""


@dataclass(slots=True)
class TurnOutcome:
    """What a turn gave, by client: weights of the aggregated stages, a report, and who failed, why.

    late      those of the failed who stay members
    fronts    client-side partitions that are not averaged (for evaluation; the server never mixes them)
    tallies   training loss, where the server computes it
    busy      seconds that the server computed, of `seconds`
    timeline  one mini-batch on every actor, each actor's times counted from its own start of the turn
    """

    states: dict[int, Tensors] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)
    reports: dict[int, Report] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    fronts: dict[int, Tensors] = field(default_factory=dict)
    plans: list[GroupPlan] = field(default_factory=list)
    tallies: dict[int, Tally] = field(default_factory=dict)
    busy: float = 0.0
    seconds: float = 0.0
    timeline: list[Span] = field(default_factory=list)


class Turns:
    """Runs turns with the enrolled members; a member that fails is dropped, and its failure recorded."""

    def __init__(
        self, blueprint: Blueprint, actor: Actor, roster: Roster, stragglers: Stragglers | None = None
    ) -> None:
        self._blueprint = blueprint
        self._stragglers = stragglers or Stragglers()
        self._actor = actor
        self._roster = roster
        self._turn = 0
        self._plans: dict[tuple[Phase, tuple[tuple[int, int], ...]], GroupPlan] = {}

    async def run(
        self, round_number: int, averages: Mapping[int, Tensors], *, phase: Phase = Phase.TRAIN
    ) -> TurnOutcome:
        """Train the clients in `averages` (id -> the whole model's weights that it starts from) for one turn.

        Where all clients move together (a shared tail), the turn is repeated from its start for the survivors of a
        lost client, with a new schedule: the lost one leaves no trace in the weights. If all are lost, the outcome
        holds their failures only.
        """
        failures = {client: reason for client in averages if (reason := self.absent(client))}
        missing = [f"c{holder}" for holder in range(len(self._blueprint.holders)) if holder not in averages]
        if missing:
            return TurnOutcome(failures=dict.fromkeys(averages, _without(missing)))
        waiting = {client: state for client, state in averages.items() if client not in failures}
        while waiting:
            before = Snapshots()
            before.take(0, self._shared(), {})
            outcome = await self._attempt(round_number, waiting, phase)
            lost = bool(outcome.failures)
            outcome.failures = failures = failures | outcome.failures
            if not (lost and self._together(waiting, phase)):
                return outcome
            self._actor.discard(before.restore(0, self._shared(), {}))
            if self._blueprint.holders:
                others = dict.fromkeys(averages, _without([f"c{client}" for client in sorted(failures)]))
                return TurnOutcome(failures=others | failures)
            waiting = {client: state for client, state in waiting.items() if client not in failures}
        return TurnOutcome(failures=failures)

    def plan(self, clients: Iterable[int], phase: Phase = Phase.TRAIN) -> list[GroupPlan]:
        """What a turn of `clients` that move apart would be."""
        members = self._roster.members
        return [self._plan({client: members[client].samples}, 0, phase) for client in sorted(clients)]

    def _shared(self) -> dict[Value, Replica]:
        return {key: replica for key, replica in self._actor.replicas.items() if key.client is None}

    def absent(self, client: int) -> str | None:
        """Why a client takes no part though it is there, or None."""
        training, least = self._blueprint.training, self._blueprint.minimum
        samples = self._roster.members[client].samples
        if self._blueprint.method.global_sampling and samples:
            return None  # its few samples are drawn with those of the others
        if own_batches(self._blueprint, client, samples):
            return None
        full = f"no full mini-batch of {training.batch_size} (drop_last)" if training.drop_last else f"expected {least}"
        return f"takes no part: {samples} training samples, {full}"

    def _together(self, clients: Mapping[int, Tensors], phase: Phase) -> bool:
        return bool(self._blueprint.topology(tuple(sorted(clients)), phase=phase).shared)

    async def _attempt(self, round_number: int, averages: Mapping[int, Tensors], phase: Phase) -> TurnOutcome:
        start = time.monotonic()
        outcome = TurnOutcome()
        samples = {client: self._roster.members[client].samples for client in sorted(averages)}
        together = self._together(averages, phase)
        parts = [samples] if together else [{c: n} for c, n in samples.items()]
        draw = derive(self._blueprint.seed, "sizes", round_number)
        outcome.plans = [self._plan(part, draw, phase) for part in parts]
        self._actor.clear(samples)
        groups = [self._make(plan, round_number, averages) for plan in outcome.plans]
        await self._run(groups, outcome)
        failed = [client for client in outcome.failures if client in self._roster.members]
        await asyncio.gather(*(self._part(client, outcome) for client in failed))
        survivors = tuple(client for client in samples if client not in outcome.failures)
        if survivors and phase is not Phase.UPLOAD and not (outcome.failures and together):
            await self._collect(survivors, outcome, phase)
        outcome.seconds = time.monotonic() - start
        outcome.busy = self._actor.recorder.busy(samples)
        outcome.tallies = {client: tally for client, tally in self._actor.tally.items() if client in samples}
        outcome.timeline = self._timeline(groups)
        return outcome

    async def _part(self, client: int, outcome: TurnOutcome) -> None:
        self._actor.forget([client])
        if client in outcome.late:
            await self._roster.excuse(client, outcome.failures[client])
        else:
            await self._roster.drop(client, outcome.failures[client])

    async def _run(self, groups: list[Group], outcome: TurnOutcome) -> None:
        try:
            async with asyncio.TaskGroup() as running:
                under_way = {running.create_task(self._group(group, outcome)): group for group in groups}
                if self._stragglers.grace is not None:
                    running.create_task(self._close_early(under_way, outcome))
        except BaseExceptionGroup as errors:
            error = first(errors)
            raise error from error.__cause__

    async def _close_early(self, under_way: Mapping[asyncio.Task[None], Group], outcome: TurnOutcome) -> None:
        """Once a quorum has delivered, wait for the others as long as they have grace, and no longer."""
        asked, grace = len(under_way), self._stragglers.grace
        pending = set(under_way)
        while pending and len(outcome.reports) < self._stragglers.needed(asked):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if not pending:
            return
        _, pending = await asyncio.wait(pending, timeout=grace)
        done = f"{len(outcome.reports)} of {asked} clients"
        for task in pending:
            task.cancel()
            reason = f"not done {grace:g} s after {done} were: the round closed"
            self._fail_late(under_way[task], under_way[task].plan.topology.clients, reason, outcome)

    def _fail_late(self, group: Group, clients: Iterable[int], reason: str, outcome: TurnOutcome) -> None:
        outcome.failures |= dict.fromkeys(clients, reason)
        if self._stragglers.late == "skip":
            outcome.late |= set(clients)
            group.undo()

    def _make(self, plan: GroupPlan, round_number: int, averages: Mapping[int, Tensors]) -> Group:
        return Group(
            plan,
            self._blueprint,
            self._actor,
            self._roster,
            seed=derive(self._blueprint.seed, "round", round_number),
            averages=averages,
            serial=self._serial,
            undoable=self._stragglers.late == "skip",
        )

    def _timeline(self, groups: list[Group]) -> list[Span]:
        """One mini-batch for each client: its own spans and those of its lane here, from where the mini-batch begins.

        Each end counts its times from the moment the client was told to begin, so they differ by one message's way.
        """
        spans: list[Span] = []
        for group in groups:
            for client, report in group.reports.items():
                step = traced_step(len(client_steps(group.plan, client)))
                events = self._actor.recorder.step(step, since=group.begun[client], client=client)
                here = [Span(at.actor, str(at.instruction), at.start, at.end, at.nbytes) for at in events]
                spans += from_zero([*here, *(Span(f"c{client}", *at) for at in report.trace)])
        return sorted(spans, key=lambda span: span.start)

    def _plan(self, clients: Mapping[int, int], draw: int, phase: Phase) -> GroupPlan:
        """The plan for these clients and samples; where it is the same every round, it is made once."""
        if self._blueprint.method.global_sampling:
            return plan_group(self._blueprint, clients, draw=draw, phase=phase)
        key = phase, tuple(sorted(clients.items()))
        if key not in self._plans:
            if len(self._plans) >= PLANS:
                del self._plans[next(iter(self._plans))]
            self._plans[key] = plan_group(self._blueprint, clients, phase=phase)
        return self._plans[key]

    async def _group(self, group: Group, outcome: TurnOutcome) -> None:
        limit = self._blueprint.deadlines.round
        try:
            async with asyncio.timeout(limit):
                await group.run()
        except TimeoutError:
            late = [client for client in group.plan.topology.clients if client not in group.reports]
            # Where all move together, most of them are late because they wait for one.
            late = [client for client in late if f"c{client}" in self._actor.awaited] or late
            self._fail_late(group, late, f"not done when the round's deadline of {limit:g} s passed", outcome)
        except PeerError as error:
            client = int(error.peer.removeprefix("c"))
            if isinstance(error.__cause__, DeadlineExceeded):
                self._fail_late(group, [client], error.reason, outcome)
            else:
                outcome.failures[client] = error.reason
        outcome.reports |= group.reports
        outcome.fronts |= group.fronts

    def _serial(self) -> int:
        self._turn += 1
        return self._turn

    async def _collect(self, survivors: tuple[int, ...], outcome: TurnOutcome, phase: Phase) -> None:
        topology = self._blueprint.topology(survivors, phase=phase)
        program: Program = [Instruction(Op.AGGREGATE, stage) for stage in sorted(topology.aggregated)]
        await self._actor.run(program, Work(topology=topology, turn=self._turn, step=0, seed=0))
        for stage in sorted(topology.aggregated):
            for client in survivors:
                outcome.states.setdefault(client, {}).update(self._actor.collected[stage].pop(client))


def _without(missing: Iterable[str]) -> str:
    return f"no sample is whole without {' and '.join(missing)}"
