"""The clients that move together through a turn, seen from the server: one where it has a tail replica of its own, all
where the tail is shared.

The mini-batch is the unit of recovery. A client that lost its connection may come back; then everybody in its group
goes back to the same mini-batch, one that all of them completed, and on from there. Whatever was under way is done
again from the same weights on the same samples with the same random draws, so no step counts twice and the bits are
those of an undisturbed turn. A client that comes back without its memory goes through the turn from the beginning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from splitfl.codecs import frame
from splitfl.errors import SplitflError
from splitfl.model import Replica
from splitfl.run.actor import Actor
from splitfl.run.blueprint import Blueprint
from splitfl.run.expectation import verify
from splitfl.run.failure import PeerError, blame, within
from splitfl.run.roster import Member, Roster
from splitfl.run.snapshots import KEPT, Snapshots
from splitfl.run.turn_plan import GroupPlan, client_steps, personal_stages, wanted
from splitfl.run.work import Work
from splitfl.schedule.instruction import Kind, Op, Value
from splitfl.schedule.text import program_text
from splitfl.transport.base import Channel, ChannelClosed, DeadlineExceeded
from splitfl.transport.messages import Address, Begin, Refuse, Report, Step

Tensors = dict[str, torch.Tensor]

LAST_WORDS = 0.5
"""Seconds in which the reason that a client gave before it left is looked for."""


class Group:
    """One group in one turn; `run` takes it from the first message to the clients' reports.

    serial  gives a number that no Begin had before: it names the messages of an attempt, so that none of an earlier one
            is taken for its own
    undoable  keep what `undo` needs, even where nobody may come back
    """

    def __init__(
        self,
        plan: GroupPlan,
        blueprint: Blueprint,
        actor: Actor,
        roster: Roster,
        *,
        seed: int,
        averages: Mapping[int, Tensors],
        serial: Callable[[], int],
        undoable: bool,
    ) -> None:
        self.plan = plan
        self.reports: dict[int, Report] = {}
        self.fronts: dict[int, Tensors] = {}
        self.begun: dict[int, float] = {}
        self._blueprint = blueprint
        self._actor = actor
        self._roster = roster
        self._seed = seed
        self._averages = averages
        self._serial = serial
        self._undoable = undoable
        self._turn = 0
        self._completed = 0
        self._snapshots = Snapshots()

    async def run(self) -> None:
        """Take the group through its turn. Raises PeerError for a client that is lost for good, or misbehaves."""
        first = 0
        while True:
            channels = {client: self._member(client).channel for client in self.plan.topology.clients}
            self._actor.channels.update({f"c{client}": channel for client, channel in channels.items()})
            try:
                await self._attempt(first)
                return
            except PeerError as error:
                client = int(error.peer.removeprefix("c"))
                first = await self._recover(client, channels[client], error)

    async def _attempt(self, first: int) -> None:
        self._turn = self._serial()
        self.reports.clear()
        whole = Work(topology=self.plan.topology, turn=self._turn, step=0, seed=self._seed)
        self._prepare(first)
        for client in self.plan.topology.clients:
            self._channel(client).expect(self._turn, wanted(self.plan, client))
            with blame(f"c{client}"):
                telling = self._channel(client).tell(self._begin(client, first))
                await within(self._blueprint.deadlines.step, telling, what="it did not hear that the turn begins")
            self.begun[client] = time.monotonic()
        if first == 0:
            await self._actor.run(self.plan.opening.get("server", ()), whole)
        for index, step in enumerate(self.plan.steps[first:], first):
            program = step.schedule.get("server", ())
            work = replace(whole, topology=step.topology, step=index, samples=step.samples)
            await self._actor.run(program, work)
            self._complete(index + 1)
        receive = [at for at in self.plan.closing.get("server", ()) if at.op is not Op.AGGREGATE]
        await self._actor.run(receive, whole)
        for client in self.plan.topology.clients:
            await self._hear_out(client)

    def _prepare(self, first: int) -> None:
        """Put the actor where mini-batch `first` begins: the averages to send, or the weights to go on with."""
        topology = self.plan.topology
        self._actor.forget(topology.clients)
        if first in self._snapshots:
            self._actor.discard(self._snapshots.restore(first, self._replicas(), self._actor.tally))
        if first == 0:
            self._keep(0)
            self._actor.hold(topology, self._averages)
        else:
            self._actor.hold(topology.without_aggregation(), {}, fresh=False)
        self._completed = first

    def _complete(self, steps: int) -> None:
        self._completed = steps
        self._keep(steps)

    def undo(self) -> None:
        """Put the replicas back to where they were before the turn: what was done of it counts for nothing."""
        if 0 in self._snapshots:
            self._actor.forget(self.plan.topology.clients)
            self._actor.discard(self._snapshots.restore(0, self._replicas(), self._actor.tally))

    def _keep(self, step: int) -> None:
        if self._blueprint.deadlines.rejoin or (step == 0 and self._undoable):
            tally = self._actor.tally
            mine = {client: tally[client] for client in self.plan.topology.clients if client in tally}
            self._snapshots.take(step, self._replicas(), mine)

    def _replicas(self) -> dict[Value, Replica]:
        """This group's replicas on the server: those of its clients, and the shared ones."""
        clients = {None, *self.plan.topology.clients}
        return {key: each for key, each in self._actor.replicas.items() if key.client in clients}

    async def _recover(self, client: int, lost: Channel, error: PeerError) -> int:
        """The mini-batch to go on with once `client` is back. Raises the error again if it stays away."""
        if not isinstance(error.__cause__, ChannelClosed | DeadlineExceeded):
            raise error
        if (word := await _last_word(lost)) is not None:
            raise PeerError(error.peer, word) from error
        if not isinstance(error.__cause__, ChannelClosed):
            raise error
        patience = self._blueprint.deadlines.rejoin
        member = await self._roster.returned(client, instead_of=lost, within=patience) if patience else None
        if member is None:
            waited = f"; it did not come back within {patience:g} s" if patience else ""
            raise PeerError(error.peer, f"{error.reason}{waited}") from error
        return self._common_step(member)

    def _common_step(self, member: Member) -> int:
        """The latest mini-batch before which this end, the returned client and all others in the group can go back."""
        hello = member.hello
        if hello.session != self._roster.session or hello.turn != self._turn:
            return 0
        step = min(hello.steps, self._completed - 1)
        both = step in self._snapshots and step > hello.steps - KEPT
        return step if step > 0 and both else 0

    def _member(self, client: int) -> Member:
        member = self._roster.members.get(client)
        if member is None:
            raise PeerError(f"c{client}", "it is no member any more")
        return member

    def _channel(self, client: int) -> Channel:
        """The channel of this attempt: over a newer one, a client that came back knows nothing of the attempt yet."""
        return self._actor.channels[f"c{client}"]

    async def _hear_out(self, client: int) -> None:
        """Take a client's report, and its own front where nothing averages it: it is only looked at."""
        channel = self._channel(client)
        deadline = self._blueprint.deadlines.step
        with blame(f"c{client}"):
            front: Tensors = {}
            for stage in personal_stages(self.plan.topology, client):
                value = Value(Kind.PARAMS, stage, client)
                tensors = frame.decode(await channel.receive(Address(self._turn, 0, value), timeout=deadline))
                verify(tensors, value, self._blueprint, self.plan.topology)
                front |= tensors
            while client not in self.reports:
                message = await channel.hear(timeout=deadline, what="its report of the round")
                if isinstance(message, Refuse):
                    raise SplitflError(message.message)
                if isinstance(message, Report) and message.round == self._turn:
                    self.reports[client] = message
        if front:
            self.fronts[client] = front

    def _begin(self, client: int, first: int) -> Begin:
        """What one client is asked to do: its own programs as text, each distinct one once."""
        actor = f"c{client}"
        programs: dict[str, int] = {}
        steps = []
        for step, samples in zip(self.plan.steps, client_steps(self.plan, client), strict=False):
            text = program_text(step.schedule.get(actor, ()))
            steps.append(Step(programs.setdefault(text, len(programs)), samples))
        return Begin(
            round=self._turn,
            seed=self._seed,
            opening=program_text(self.plan.opening.get(actor, ())),
            programs=tuple(programs),
            closing=program_text(self.plan.closing.get(actor, ())),
            plan=tuple(steps),
            first=first,
            phase=str(self.plan.phase),
        )


async def _last_word(channel: Channel) -> str | None:
    """The reason that a client gave before its channel closed, if it gave one."""
    try:
        while True:
            message = await channel.hear(timeout=LAST_WORDS, what="its last word")
            if isinstance(message, Refuse):
                return message.message
    except SplitflError:
        return None
