"""The last word to a peer: said and hung up, whether or not anybody still listens."""

from __future__ import annotations

from contextlib import suppress

from splitfl.errors import SplitflError
from splitfl.run.failure import within
from splitfl.transport.base import Channel
from splitfl.transport.messages import Finish, Refuse

PATIENCE = 5.0
"""Seconds that a peer has to take the last word."""


async def part(channel: Channel, word: Finish | Refuse | None) -> None:
    """Tell the other end `word`, if any, and hang up; one that is gone, or does not read, is not waited for."""
    with suppress(SplitflError):
        if word is not None:
            await within(PATIENCE, channel.tell(word), what="it did not take the last word")
    await channel.close(word.message if isinstance(word, Refuse) else "the session is over")
