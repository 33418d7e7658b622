"""Who takes part: clients say hello, are checked against the job, and get their ids when all are there."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from contextlib import suppress

from splitfl.errors import SplitflError
from splitfl.events import event
from splitfl.run.access import Access
from splitfl.run.admission import objection
from splitfl.run.blueprint import Blueprint
from splitfl.run.linkage import link, unpack
from splitfl.run.parting import part
from splitfl.run.roster import Member, Roster
from splitfl.run.standing import Standing
from splitfl.transport.base import Channel
from splitfl.transport.messages import OBSERVER, Finish, Hello, Refuse

_LOGGER = logging.getLogger(__name__)

TAKEN = "taken"
"""Code of the refusal that may pass: the earlier connection of a killed client can outlive it by a moment."""


FIRST_WORD = 10.0
"""Seconds in which one that connected must say hello: a session that says nothing holds a place."""


class Enrollment:
    """Collects `expected` clients. Ids follow the names' natural order, so arrival decides nothing."""

    def __init__(self, blueprint: Blueprint, expected: int, *, access: Access | None = None) -> None:
        self.method = blueprint.method.name
        self.expected = expected
        self.standing = Standing(self.method, expected, clients=lambda: self.states)
        self._blueprint = blueprint
        if blueprint.holders and len(blueprint.holders) != expected:
            names = ", ".join(stage.inputs[0].name for stage in blueprint.holders)
            raise SplitflError(
                f"clients = {expected} with method {self.method}: expected {len(blueprint.holders)}, one for each "
                f"input of the model ({names})"
            )
        self._access = access or Access()
        self._present: dict[str, tuple[Hello, Channel]] = {}
        self._changed = asyncio.Condition()
        self._roster: Roster | None = None
        self._over: Finish | Refuse | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the clients that are there, in the order of their ids."""
        return tuple(sorted(self._present, key=natural))

    async def admit(self, channel: Channel) -> None:
        """Hear a new client's hello; refuse it with a reason, or keep it and hold its channel open."""
        event(_LOGGER, "client_connected", peer=channel.peer)
        channel.expect(0, lambda _: False)  # no tensors before a turn asks for them
        # Digests of many records may take as long as enrollment does on a slow line.
        patience = self._blueprint.deadlines.enrollment if self._blueprint.holders else FIRST_WORD
        hello = await channel.hear(timeout=patience, what="the hello of a client that connected")
        answer = objection(hello, channel.identity, access=self._access, blueprint=self._blueprint)
        if answer is not None or not isinstance(hello, Hello):
            await self._refuse(hello, channel, answer or Refuse("protocol", "expected Hello"))
            return
        if hello.role == OBSERVER:
            await self.standing.show(channel)
            return
        if (word := self._over or self._taken(hello)) is not None:
            await self._refuse(hello, channel, word)
            return
        if self._roster is not None:
            await self._roster.take_back(hello, channel)
            if self._over is not None:  # training ended while this one came back: the last words went without it
                await part(channel, self._over)
            await channel.wait_closed()
            self._note_lost(hello, channel)
            return
        self._present[hello.client] = (hello, channel)  # before anything is awaited: two may have the same name
        event(_LOGGER, "client_enrolled", client=hello.client, samples=hello.samples, peer=channel.peer)
        async with self._changed:
            self._changed.notify_all()
        await channel.wait_closed()
        async with self._changed:
            present = self._present.get(hello.client)
            if self._roster is None and present is not None and present[1] is channel:
                del self._present[hello.client]
        self._note_lost(hello, channel)

    def _note_lost(self, hello: Hello, channel: Channel) -> None:
        lost = self._roster is None or self._roster.states[hello.client] == "lost"
        if lost and self._over is None:
            event(_LOGGER, "client_lost", client=hello.client, reason=channel.reason)

    async def _refuse(self, hello: object, channel: Channel, word: Finish | Refuse) -> None:
        if isinstance(word, Refuse):
            name = hello.client if isinstance(hello, Hello) else ""
            event(_LOGGER, "client_refused", peer=channel.peer, client=name, code=word.code, reason=word.message)
        await part(channel, word)

    def end(self, word: Finish | Refuse) -> None:
        """Answer whoever comes from now on with `word`: training is over."""
        self._over = word

    async def dismiss(self, word: Finish | Refuse) -> None:
        """Tell those who have enrolled, and whoever comes from now on, that they are not needed."""
        self.end(word)
        await asyncio.gather(*(part(channel, word) for _, channel in list(self._present.values())))

    async def roster(self) -> Roster:
        """The members, once all are there, each told its id.

        Raises SplitflError after the enrollment deadline, saying how many are missing and who is present.
        """
        deadline = self._blueprint.deadlines.enrollment
        try:
            async with asyncio.timeout(deadline), self._changed:
                await self._changed.wait_for(lambda: len(self._present) >= self.expected)
                roster = self._roster = self._assign()
        except TimeoutError:
            names = ", ".join(self.names) or "none"
            problem = (
                f"{len(self._present)} of {self.expected} clients enrolled within {deadline:g} s (present: {names}); "
                f"start the missing {self.expected - len(self._present)}, or lower the number of clients"
            )
            await self.dismiss(Refuse("ended", problem))
            raise SplitflError(problem) from None
        except SplitflError as error:
            await self.dismiss(Refuse("ended", str(error)))
            raise
        await asyncio.gather(*(self._welcome(roster, member) for member in roster.members.values()))
        return roster

    async def _welcome(self, roster: Roster, member: Member) -> None:
        with suppress(SplitflError):  # one that is lost already may come back, as at any later time
            await roster.welcome(member)

    def _assign(self) -> Roster:
        """Give ids in the natural order of names, so that who came first decides nothing."""
        members = []
        links = ""
        if self._blueprint.holders:
            links = link((name, self._present[name][0].links) for name in self.names)
        for client, name in enumerate(self.names):
            hello, channel = self._present[name]
            samples = len(unpack(links)) if links else hello.samples
            members.append(Member(client, name, samples, channel, hello))
        return Roster(secrets.token_hex(8), members, links=links)

    @property
    def states(self) -> dict[str, str]:
        """How each client that came is, by name."""
        if self._roster is not None:
            return self._roster.states
        return dict.fromkeys(self.names, "connected")

    def traffic(self) -> tuple[int, int]:
        """Bytes so far: from the clients, and to them."""
        channels = self._roster.channels if self._roster else [channel for _, channel in list(self._present.values())]
        return sum(each.received_bytes for each in channels), sum(each.sent_bytes for each in channels)

    def _taken(self, hello: Hello) -> Refuse | None:
        """Refuse a second client of a name, and a new one once training has begun; a client may come back."""
        if self._roster is None:
            held = self._present.get(hello.client)
            if held is None and len(self._present) >= self.expected:
                return Refuse("full", f"all {self.expected} clients are enrolled")
            before = None if held is None else (held[1], held[0])
        else:
            member = self._roster.find(hello.client)
            if member is None:
                return Refuse("full", f"all {self.expected} clients are enrolled and training has begun")
            if (member.hello.samples, member.hello.links) != (hello.samples, hello.links):
                same = hello.samples == member.hello.samples
                what = (
                    "other records than it enrolled with"
                    if same
                    else (f"{hello.samples} training samples, it enrolled with {member.hello.samples}")
                )
                return Refuse("samples", f"client {hello.client!r} comes back with {what}")
            before = (member.channel, member.hello)
        if before is None or before[0].closed or before[1].instance == hello.instance:
            return None
        return Refuse(TAKEN, f"a client named {hello.client!r} is connected already: choose another --name")


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts c2 before c10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
