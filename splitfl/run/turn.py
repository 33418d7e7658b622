"""One turn on the server: clients receive weights, train their mini-batches, and hand their weights back.

A round is one turn of all its clients, or, in relay methods, one turn of each client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from splitfl.codecs import frame
from splitfl.errors import SplitflError
from splitfl.run.actor import Actor, Work
from splitfl.run.blueprint import Blueprint
from splitfl.run.enrollment import Member
from splitfl.run.expectation import verify
from splitfl.run.failure import PeerError, blame
from splitfl.run.metrics import Tally, traced_step
from splitfl.run.record import Span, from_zero
from splitfl.run.seeds import derive
from splitfl.run.turn_plan import GroupPlan, personal_stages, plan_group
from splitfl.schedule.instruction import Instruction, Kind, Op, Program, Value
from splitfl.schedule.text import program_text
from splitfl.schedule.topology import Topology
from splitfl.transport.messages import Address, Begin, Refuse, Report, Step

Tensors = dict[str, torch.Tensor]


@dataclass(slots=True)
class TurnOutcome:
    """What a turn gave, by client: weights of the aggregated stages, a report, and who failed, why.

    fronts    client-side partitions that are not averaged (for evaluation; the server never mixes them)
    tallies   training loss, where the server computes it
    busy      seconds that the server computed, of `seconds`
    timeline  one mini-batch on every actor, each actor's times counted from its own start of the turn
    """

    states: dict[int, Tensors] = field(default_factory=dict)
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

    def __init__(self, blueprint: Blueprint, actor: Actor, members: dict[int, Member]) -> None:
        self.members = members
        self._blueprint = blueprint
        self._actor = actor
        self._turn = 0
        self._plans: dict[tuple[tuple[int, int], ...], GroupPlan] = {}
        self._begun: dict[int, float] = {}

    async def run(self, round_number: int, averages: Mapping[int, Tensors]) -> TurnOutcome:
        """Train the clients in `averages` (id -> the whole model's weights that it starts from) for one turn.

        Where all clients move together (a shared tail), the turn is repeated from its start for the survivors of a
        lost client, with a new schedule: the lost one leaves no trace in the weights. If all are lost, the outcome
        holds their failures only.
        """
        failures = {client: reason for client in averages if (reason := self._too_few(client))}
        waiting = {client: state for client, state in averages.items() if client not in failures}
        while waiting:
            shared = {key: replica.state() for key, replica in self._actor.replicas.items() if key.client is None}
            outcome = await self._attempt(round_number, waiting)
            lost = bool(outcome.failures)
            outcome.failures = failures = failures | outcome.failures
            if not (lost and self._together(waiting)):
                return outcome
            for key, state in shared.items():
                self._actor.replicas[key].load(state, reset_optimizer=False)
            waiting = {client: state for client, state in waiting.items() if client not in failures}
        return TurnOutcome(failures=failures)

    def _too_few(self, client: int) -> str | None:
        """Why a client takes no part though it is there, or None."""
        training, least = self._blueprint.training, self._blueprint.minimum
        samples = self.members[client].samples
        if training.batches(samples, least):
            return None
        full = f"no full mini-batch of {training.batch_size} (drop_last)" if training.drop_last else f"expected {least}"
        return f"takes no part: {samples} training samples, {full}"

    def _together(self, clients: Mapping[int, Tensors]) -> bool:
        return bool(self._blueprint.topology(tuple(sorted(clients))).shared)

    async def _attempt(self, round_number: int, averages: Mapping[int, Tensors]) -> TurnOutcome:
        self._turn += 1
        start = time.monotonic()
        outcome = TurnOutcome()
        samples = {client: self.members[client].samples for client in sorted(averages)}
        groups = [samples] if self._together(averages) else [{c: n} for c, n in samples.items()]
        plans = outcome.plans = [self._plan(group) for group in groups]
        self._actor.clear()
        for plan in plans:
            self._actor.hold(plan.topology, averages)
        await asyncio.gather(*(self._group(plan, round_number, outcome) for plan in plans))
        for client in outcome.failures:
            await self._drop(client, outcome.failures[client])
        survivors = tuple(client for client in samples if client not in outcome.failures)
        if survivors and not (outcome.failures and self._together(averages)):
            await self._collect(survivors, outcome)
        outcome.seconds = time.monotonic() - start
        outcome.busy = self._actor.recorder.busy
        outcome.tallies = dict(self._actor.tally)
        outcome.timeline = self._timeline(plans, outcome)
        return outcome

    def _timeline(self, plans: list[GroupPlan], outcome: TurnOutcome) -> list[Span]:
        """One mini-batch for each client: its own spans and those of its lane here, from where the mini-batch begins.

        Each end counts its times from the moment the client was told to begin, so they differ by one message's way.
        """
        spans: list[Span] = []
        for plan in plans:
            for client in plan.topology.clients:
                step = traced_step(sum(client in step.samples for step in plan.steps))
                events = self._actor.recorder.step(step, since=self._begun.get(client, 0.0), client=client)
                here = [Span(at.actor, str(at.instruction), at.start, at.end, at.nbytes) for at in events]
                report = outcome.reports.get(client)
                spans += from_zero([*here, *(Span(f"c{client}", *at) for at in (report.trace if report else ()))])
        return sorted(spans, key=lambda span: span.start)

    def _plan(self, clients: Mapping[int, int]) -> GroupPlan:
        """The plan for these clients and samples; it is the same every round, so it is made once."""
        key = tuple(sorted(clients.items()))
        if key not in self._plans:
            self._plans[key] = plan_group(self._blueprint, clients)
        return self._plans[key]

    async def _group(self, plan: GroupPlan, round_number: int, outcome: TurnOutcome) -> None:
        clients = plan.topology.clients
        limit = self._blueprint.deadlines.round
        try:
            async with asyncio.timeout(limit):
                await self._run_group(plan, round_number, outcome)
        except TimeoutError:
            late = [client for client in clients if client not in outcome.reports]
            outcome.failures |= dict.fromkeys(late, f"not done when the round's deadline of {limit:g} s passed")
        except PeerError as error:
            outcome.failures[int(error.peer.removeprefix("c"))] = error.reason

    async def _run_group(self, plan: GroupPlan, round_number: int, outcome: TurnOutcome) -> None:
        seed = derive(self._blueprint.seed, "round", round_number)
        whole = Work(topology=plan.topology, turn=self._turn, step=0, seed=seed)
        for client in plan.topology.clients:
            begin = _begin(plan, client, turn=self._turn, seed=seed)
            await self._tell(client, begin)
            self._begun[client] = time.monotonic()
        await self._actor.run(plan.opening.get("server", ()), whole)
        for index, step in enumerate(plan.steps):
            program = step.schedule.get("server", ())
            work = replace(whole, topology=step.topology, step=index, samples=step.samples)
            await self._actor.run(program, work)
        receive = [at for at in plan.closing.get("server", ()) if at.op is not Op.AGGREGATE]
        await self._actor.run(receive, whole)
        for client in plan.topology.clients:
            if self._blueprint.method.personal_front:
                outcome.fronts[client] = await self._front(client, plan.topology)
            outcome.reports[client] = await self._report(client)

    async def _front(self, client: int, topology: Topology) -> Tensors:
        """The client's own front, which no schedule moves: it is only looked at."""
        front: Tensors = {}
        for stage in personal_stages(topology, client):
            with blame(f"c{client}"):
                value = Value(Kind.PARAMS, stage, client)
                address = Address(self._turn, 0, value)
                channel = self.members[client].channel
                tensors = frame.decode(await channel.receive(address, timeout=self._blueprint.deadlines.step))
                verify(tensors, value, self._blueprint, topology)
                front |= tensors
        return front

    async def _collect(self, survivors: tuple[int, ...], outcome: TurnOutcome) -> None:
        topology = self._blueprint.topology(survivors)
        program: Program = [Instruction(Op.AGGREGATE, stage) for stage in sorted(topology.aggregated)]
        await self._actor.run(program, Work(topology=topology, turn=self._turn, step=0, seed=0))
        for stage in sorted(topology.aggregated):
            for client, state in self._actor.collected[stage].items():
                outcome.states.setdefault(client, {}).update(state)

    async def _tell(self, client: int, message: Begin) -> None:
        with blame(f"c{client}"):
            await self.members[client].channel.tell(message)

    async def _report(self, client: int) -> Report:
        with blame(f"c{client}"):
            while True:
                channel = self.members[client].channel
                message = await channel.hear(timeout=self._blueprint.deadlines.step, what="its report of the round")
                if isinstance(message, Report) and message.round == self._turn:
                    return message
                if isinstance(message, Refuse):
                    raise SplitflError(message.message)

    async def _drop(self, client: int, reason: str) -> None:
        channel = self.members.pop(client).channel
        if not channel.closed:
            await channel.tell(Refuse("dropped", reason))
            await channel.close(reason)


def _begin(plan: GroupPlan, client: int, *, turn: int, seed: int) -> Begin:
    """What one client is asked to do: its own programs as text, each distinct one once."""
    actor = f"c{client}"
    programs: dict[str, int] = {}
    steps = []
    for step in plan.steps:
        if client in step.samples:
            text = program_text(step.schedule[actor])
            steps.append(Step(programs.setdefault(text, len(programs)), step.samples[client]))
    return Begin(
        round=turn,
        seed=seed,
        opening=program_text(plan.opening.get(actor, ())),
        programs=tuple(programs),
        closing=program_text(plan.closing.get(actor, ())),
        plan=tuple(steps),
    )
