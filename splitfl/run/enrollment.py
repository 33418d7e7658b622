"""Who takes part: clients say hello, are checked against the job, and get their ids when all are there."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from contextlib import suppress

from splitfl.errors import SplitflError
from splitfl.run.blueprint import Blueprint
from splitfl.run.parting import part
from splitfl.run.roster import Member, Roster
from splitfl.transport.base import Channel
from splitfl.transport.messages import Finish, Hello, Refuse, version_refusal

TAKEN = "taken"
"""Code of the refusal that may pass: the earlier connection of a killed client can outlive it by a moment."""


class Enrollment:
    """Collects `expected` clients. Ids follow the names' natural order, so arrival decides nothing."""

    def __init__(self, blueprint: Blueprint, expected: int) -> None:
        self._blueprint = blueprint
        self._expected = expected
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
        deadline = self._blueprint.deadlines.enrollment
        hello = await channel.hear(timeout=deadline, what="the hello of a client that connected")
        answer = self._over or self._objection(hello)
        if answer is not None or not isinstance(hello, Hello):
            await part(channel, answer or Refuse("protocol", "expected Hello"))
            return
        if self._roster is not None:
            await self._roster.take_back(hello, channel)
            await channel.wait_closed()
            return
        self._present[hello.client] = (hello, channel)  # before anything is awaited: two may have the same name
        async with self._changed:
            self._changed.notify_all()
        await channel.wait_closed()
        async with self._changed:
            present = self._present.get(hello.client)
            if self._roster is None and present is not None and present[1] is channel:
                del self._present[hello.client]

    def end(self, word: Finish | Refuse) -> None:
        """Answer whoever comes from now on with `word`: training is over."""
        self._over = word

    async def roster(self) -> Roster:
        """The members, once all are there, each told its id.

        Raises SplitflError after the enrollment deadline, saying how many are missing and who is present.
        """
        deadline = self._blueprint.deadlines.enrollment
        try:
            async with asyncio.timeout(deadline), self._changed:
                await self._changed.wait_for(lambda: len(self._present) >= self._expected)
                roster = self._roster = self._assign()
        except TimeoutError:
            names = ", ".join(self.names) or "none"
            problem = (
                f"{len(self._present)} of {self._expected} clients enrolled within {deadline:g} s (present: {names}); "
                f"start the missing {self._expected - len(self._present)}, or lower the number of clients"
            )
            word = Refuse("ended", problem)
            await asyncio.gather(*(part(channel, word) for _, channel in self._present.values()))
            raise SplitflError(problem) from None
        await asyncio.gather(*(self._welcome(roster, member) for member in roster.members.values()))
        return roster

    async def _welcome(self, roster: Roster, member: Member) -> None:
        with suppress(SplitflError):  # one that is lost already may come back, as at any later time
            await roster.welcome(member)

    def _assign(self) -> Roster:
        """Give ids in the natural order of names, so that who came first decides nothing."""
        members = []
        for client, name in enumerate(self.names):
            hello, channel = self._present[name]
            members.append(Member(client, name, hello.samples, channel, hello))
        return Roster(secrets.token_hex(8), members)

    def _objection(self, hello: object) -> Refuse | None:
        if not isinstance(hello, Hello):
            return Refuse("protocol", f"the first message is {type(hello).__name__}, expected Hello")
        if (refusal := version_refusal(hello)) is not None:
            return refusal
        if not re.fullmatch(r"[\w.-]{1,64}", hello.client):
            return Refuse("name", "a client's name has 1 to 64 letters, digits, dots, dashes or underscores")
        if (refusal := self._taken(hello)) is not None:
            return refusal
        if hello.samples < 1:
            return Refuse("samples", f"client {hello.client!r} has no training samples, expected 1 or more")
        ours = self._blueprint.fingerprints()
        theirs = _fingerprints(hello.fingerprint)
        different = [name for name in ours if ours[name] != theirs.get(name)]
        if different:
            return Refuse(
                "job",
                f"client {hello.client!r} runs another job than this server: it differs in {', '.join(different)}; "
                "use the same job file and model code on both",
            )
        return None

    def _taken(self, hello: Hello) -> Refuse | None:
        """Refuse a second client of a name, and a new one once training has begun; a client may come back."""
        if self._roster is None:
            held = self._present.get(hello.client)
            if held is None and len(self._present) >= self._expected:
                return Refuse("full", f"all {self._expected} clients are enrolled")
            before = None if held is None else (held[1], held[0])
        else:
            member = self._roster.find(hello.client)
            if member is None:
                return Refuse("full", f"all {self._expected} clients are enrolled and training has begun")
            if member.samples != hello.samples:
                what = f"{hello.samples} training samples, it enrolled with {member.samples}"
                return Refuse("samples", f"client {hello.client!r} comes back with {what}")
            before = (member.channel, member.hello)
        if before is None or before[0].closed or before[1].instance == hello.instance:
            return None
        return Refuse(TAKEN, f"a client named {hello.client!r} is connected already: choose another --name")


def _fingerprints(text: str) -> dict[str, str]:
    try:
        parsed = json.loads(text)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts c2 before c10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
