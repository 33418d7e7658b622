"""Who takes part: clients say hello, are checked against the job, and get their ids when all are there."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from dataclasses import dataclass

from splitfl.errors import SplitflError
from splitfl.run.blueprint import Blueprint
from splitfl.transport.base import Channel
from splitfl.transport.messages import Hello, Refuse, Welcome, version_refusal


@dataclass(frozen=True, slots=True)
class Member:
    """An enrolled client: its id in schedules, its name, its number of training samples and its channel."""

    client: int
    name: str
    samples: int
    channel: Channel


class Enrollment:
    """Collects `expected` clients. Ids follow the names' natural order, so arrival decides nothing."""

    def __init__(self, blueprint: Blueprint, expected: int) -> None:
        self._blueprint = blueprint
        self._expected = expected
        self._present: dict[str, tuple[Hello, Channel]] = {}
        self._changed = asyncio.Condition()
        self._closed = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the clients that are there, in the order of their ids."""
        return tuple(sorted(self._present, key=natural))

    async def admit(self, channel: Channel) -> None:
        """Hear a new client's hello; refuse it with a reason, or keep it and hold its channel open."""
        deadline = self._blueprint.deadlines.enrollment
        hello = await channel.hear(timeout=deadline, what="the hello of a client that connected")
        refusal = self._objection(hello)
        if refusal is not None:
            await channel.tell(refusal)
            await channel.close(refusal.message)
            return
        if not isinstance(hello, Hello):
            raise TypeError("an enrolled client said no hello")
        async with self._changed:
            self._present[hello.client] = (hello, channel)
            self._changed.notify_all()
        await channel.wait_closed()
        async with self._changed:
            if not self._closed:
                self._present.pop(hello.client, None)

    async def members(self) -> dict[int, Member]:
        """All members by id, once they are there and welcomed.

        Raises SplitflError after the enrollment deadline, saying how many are missing and who is present.
        """
        deadline = self._blueprint.deadlines.enrollment
        try:
            async with asyncio.timeout(deadline), self._changed:
                await self._changed.wait_for(lambda: len(self._present) >= self._expected)
                self._closed = True
        except TimeoutError:
            names = ", ".join(self.names) or "none"
            raise SplitflError(
                f"{len(self._present)} of {self._expected} clients enrolled within {deadline:g} s (present: {names}); "
                f"start the missing {self._expected - len(self._present)}, or lower the number of clients"
            ) from None
        members = {}
        for client, name in enumerate(self.names):
            hello, channel = self._present[name]
            settings = json.dumps({"seed": self._blueprint.seed})
            welcome = Welcome(session=secrets.token_hex(8), client=client, clients=self._expected, settings=settings)
            await channel.tell(welcome)
            members[client] = Member(client, name, hello.samples, channel)
        return members

    def _objection(self, hello: object) -> Refuse | None:
        if not isinstance(hello, Hello):
            return Refuse("protocol", f"the first message is {type(hello).__name__}, expected Hello")
        if (refusal := version_refusal(hello)) is not None:
            return refusal
        if not re.fullmatch(r"[\w.-]{1,64}", hello.client):
            return Refuse("name", "a client's name has 1 to 64 letters, digits, dots, dashes or underscores")
        if hello.client in self._present:
            return Refuse("name", f"a client named {hello.client!r} is already enrolled: choose another --name")
        if self._closed:
            return Refuse("full", f"all {self._expected} clients are enrolled and training has begun")
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


def _fingerprints(text: str) -> dict[str, str]:
    try:
        parsed = json.loads(text)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts c2 before c10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
