"""A client's end of a session: enroll, carry out the turns that the server asks for, come back when it was lost."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from splitfl.errors import SplitflError
from splitfl.run.blueprint import Blueprint
from splitfl.run.client_memory import ClientMemory
from splitfl.run.client_turn import ClientTurn
from splitfl.run.enrollment import TAKEN
from splitfl.run.failure import PeerError, in_words, within
from splitfl.run.pool import Pool
from splitfl.run.records import Records
from splitfl.transport.base import Channel, ChannelClosed
from splitfl.transport.messages import PROTOCOL, STALE, Begin, Finish, Hello, Refuse, Welcome
from splitfl.version import __version__

PAUSE = 0.5
"""Seconds between a lost connection and the next try."""

LAST_WORD = 2.0
"""Seconds for a last word in either direction."""

_LOGGER = logging.getLogger(__name__)

Connect = Callable[[], Awaitable[Channel]]
"""Opens a channel to the server; how long it tries is its own affair."""


class Client:
    """One client: its data, its replicas, and its session with the server.

    connect   opens the channel; called again after a lost connection
    patience  seconds for which a lost connection is worth another try; 0 gives up at once
    token     the secret that a server may ask for
    state     folder for what must survive the process, where the method or the optimizer keeps something
    link_key  the secret that holders of features of the same samples share, where the method is vertical

    Raises SplitflError for data that the method cannot train on.
    """

    def __init__(
        self,
        blueprint: Blueprint,
        dataset: Dataset[Any],
        *,
        name: str,
        connect: Connect,
        pool: Pool,
        patience: float = 0.0,
        token: str = "",
        state: Path | None = None,
        link_key: bytes = b"",
    ) -> None:
        self.name = name
        self._blueprint = blueprint
        self._records = Records(blueprint, dataset, key=link_key, client=name)
        self._connect = connect
        self._pool = pool
        self._patience = patience
        self._token = token
        self._memory = ClientMemory(state, name, blueprint) if state is not None else None
        self._instance = secrets.token_hex(8)
        self._welcome: Welcome | None = None
        self._turn: ClientTurn | None = None

    @property
    def enrolled(self) -> bool:
        """Whether the server has taken this client in."""
        return self._welcome is not None

    async def run(self) -> str:
        """Take part until the server finishes; returns its last word. Raises SplitflError when refused or cut off."""
        clock = asyncio.get_running_loop().time
        heard = clock()
        while True:
            channel, before = await self._connect(), self._welcome
            try:
                return await self._session(channel)
            except (ChannelClosed, _NotNowError) as lost:
                heard = heard if self._welcome is before else clock()
                if clock() - heard >= self._patience or not self._patience:
                    raise SplitflError(f"{self.name} lost the server: {lost}") from lost
            finally:
                await channel.close("this client is done, or tries again")
            await asyncio.sleep(PAUSE)

    async def _session(self, channel: Channel) -> str:
        """Enroll over `channel` and do what the server asks for until it finishes."""
        work = await self._enroll(channel)
        if isinstance(work, Finish):
            return work.reason
        # The turns of all others may come first, and each may use its time up.
        clients = self._welcome.clients if self._welcome else 1
        patience = (clients + 1) * self._blueprint.deadlines.round
        turn: asyncio.Task[None] | None = None
        try:
            while True:
                message = await _hear_beside(turn, channel, patience=patience)
                if isinstance(message, Begin):
                    await _end(turn)
                    turn = asyncio.create_task(work.run(message, channel))
                elif isinstance(message, Finish):
                    return message.reason
                elif isinstance(message, Refuse) and message.code == STALE:
                    await _end(turn)
                    turn = None
                    work.undo()
                    _LOGGER.warning("%s was late: %s", self.name, message.message)
                elif isinstance(message, Refuse):
                    raise SplitflError(f"the server dropped {self.name}: {message.message}")
        finally:
            await _end(turn)

    async def _enroll(self, channel: Channel) -> ClientTurn | Finish:
        deadline = self._blueprint.deadlines.enrollment
        await within(deadline, channel.tell(self._hello()), what="the server did not take the hello")
        patience = deadline + LAST_WORD  # the server's own deadline comes first, with its reason
        reply = await channel.hear(timeout=patience, what="the server's welcome, once all clients are enrolled")
        if isinstance(reply, Refuse):
            if reply.code == TAKEN:
                raise _NotNowError(reply.message)
            raise SplitflError(f"the server refused {self.name}: {reply.message}")
        if isinstance(reply, Finish):
            return reply
        if not isinstance(reply, Welcome):
            raise SplitflError(f"the server answered the hello with {type(reply).__name__}, expected Welcome")
        relinked = self._welcome is None or self._welcome.links != reply.links
        if self._turn is None or self._turn.client != reply.client or relinked:
            dataset = await self._linked(reply, channel)
            self._turn = ClientTurn(self._blueprint, dataset, client=reply.client, pool=self._pool, memory=self._memory)
        self._welcome = reply
        return self._turn

    async def _linked(self, reply: Welcome, channel: Channel) -> Dataset[Any]:
        """What to train on, now that this client knows who it is; what is wrong with it is told to the server."""
        try:
            return self._records.linked(reply)
        except SplitflError as error:
            await _confess(error, channel)
            raise

    def _hello(self) -> Hello:
        """Who this is; after a lost connection also how far it was, so that the server can go on from there."""
        hello = Hello(
            PROTOCOL,
            self.name,
            json.dumps(self._blueprint.fingerprints()),
            self._records.samples,
            f"splitfl {__version__}",
            self._token,
            self._instance,
            links=self._records.links,
        )
        if self._welcome is None or self._turn is None:
            return hello
        return replace(hello, session=self._welcome.session, turn=self._turn.number, steps=self._turn.steps)


class _NotNowError(SplitflError):
    """The server will not take this client now, but may in a moment."""


async def _hear_beside(turn: asyncio.Task[None] | None, channel: Channel, *, patience: float) -> Any:
    """The next control message; an error of the running turn is told to the server and raised.

    A word of the server's comes before an error on the way to it: it says why, or that a new turn has begun.
    """
    hearing = asyncio.create_task(channel.hear(timeout=patience, what="the server's next round"))
    try:
        if turn is not None:
            await asyncio.wait({hearing, turn}, return_when=asyncio.FIRST_COMPLETED)
            error = turn.exception() if turn.done() and not turn.cancelled() else None
            if isinstance(error, PeerError):
                await asyncio.wait({hearing}, timeout=LAST_WORD)
            if error is not None and not (hearing.done() and isinstance(error, PeerError)):
                await _confess(error, channel)
                raise error
        return await hearing
    finally:
        await _end(hearing)


async def _confess(error: BaseException, channel: Channel) -> None:
    """Tell the server why this client gives up, if it still listens."""
    with suppress(SplitflError):
        await within(LAST_WORD, channel.tell(Refuse("failed", in_words(error))), what="the server did not listen")


async def _end(task: asyncio.Task[Any] | None) -> None:
    if task is None:
        return
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
