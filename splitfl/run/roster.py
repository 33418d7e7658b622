"""The members of a session: who is there, over which channel, and who comes back after a lost connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from splitfl.errors import SplitflError
from splitfl.events import event
from splitfl.run.failure import within
from splitfl.run.parting import PATIENCE, part
from splitfl.transport.base import Channel
from splitfl.transport.messages import STALE, Hello, Refuse, Welcome

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Member:
    """An enrolled client: its id in schedules, its name, its number of training samples, its channel and last hello."""

    client: int
    name: str
    samples: int
    channel: Channel
    hello: Hello


class Roster:
    """The members by id. A member that was dropped may come back, and takes part again from the next turn on.

    `links`: the records that all members hold, see `Welcome`.
    """

    def __init__(self, session: str, members: Iterable[Member], *, links: str = "") -> None:
        self.session = session
        self._links = links
        self.members = {member.client: member for member in members}
        self._known = dict(self.members)
        self._returned = asyncio.Condition()
        self._left: list[Channel] = []

    @property
    def names(self) -> dict[int, str]:
        """Names of all who ever enrolled, by id."""
        return {client: member.name for client, member in self._known.items()}

    @property
    def states(self) -> dict[str, str]:
        """How each client that ever enrolled is, by name: connected, lost (it may come back), or dropped."""
        return {member.name: self._state(member) for member in self._known.values()}

    def _state(self, member: Member) -> str:
        if member.client not in self.members:
            return "dropped"
        return "lost" if member.channel.closed else "connected"

    @property
    def channels(self) -> list[Channel]:
        """Every channel that there ever was, for counting bytes."""
        return [*self._left, *(member.channel for member in self._known.values())]

    def find(self, name: str) -> Member | None:
        """The member called `name`, dropped ones included."""
        return next((member for member in self._known.values() if member.name == name), None)

    async def welcome(self, member: Member) -> None:
        """Tell a member its id."""
        welcome = Welcome(self.session, member.client, len(self._known), links=self._links)
        await within(PATIENCE, member.channel.tell(welcome), what=f"{member.name} did not take its welcome")

    async def take_back(self, hello: Hello, channel: Channel) -> None:
        """Give the member that says `hello` its new channel, and wake whoever waits for it."""
        known = self.find(hello.client)
        if known is None:
            raise SplitflError(f"client {hello.client!r} is no member of this session")
        member = replace(known, channel=channel, hello=hello)
        await self.welcome(member)
        async with self._returned:
            self._left.append(known.channel)
            self._known[known.client] = self.members[known.client] = member
            self._returned.notify_all()
        event(_LOGGER, "client_returned", client=member.name, peer=channel.peer)
        await known.channel.close("the client has come back over a new connection")

    async def returned(self, client: int, *, instead_of: Channel, within: float) -> Member | None:
        """The member `client` once it has another channel than the lost one; None after `within` seconds."""

        def is_back() -> bool:
            member = self.members.get(client)
            return member is not None and member.channel is not instead_of and not member.channel.closed

        try:
            async with asyncio.timeout(within), self._returned:
                await self._returned.wait_for(is_back)
        except TimeoutError:
            return None
        return self.members.get(client)

    async def excuse(self, client: int, reason: str) -> None:
        """Go on without a late member's work in this round; it stays a member, and is told that its work is stale."""
        event(_LOGGER, "client_late", client=self.members[client].name, reason=reason)
        with suppress(SplitflError):  # one that cannot even be told is found out when its next turn begins
            word = Refuse(STALE, reason)
            await within(PATIENCE, self.members[client].channel.tell(word), what="it did not hear that it is late")

    async def drop(self, client: int, reason: str) -> None:
        """Go on without a member, and tell it why if it can hear."""
        member = self.members.pop(client)
        event(_LOGGER, "client_dropped", client=member.name, reason=reason)
        await part(member.channel, Refuse("dropped", reason))
