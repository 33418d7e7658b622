"""Failures that concern one peer, so that a round can go on without it and say why."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from splitfl.errors import SplitflError

T = TypeVar("T")

LONGEST = 500
"""Characters of a reason that are passed on."""


class PeerError(SplitflError):
    """A peer was lost, was too slow, or sent what it must not; `peer` names the actor."""

    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(f"{peer}: {reason}")
        self.peer = peer
        self.reason = reason


@contextmanager
def blame(peer: str | None) -> Iterator[None]:
    """Turn an error of the channel or of a message's content into one that names the peer."""
    try:
        yield
    except SplitflError as error:
        raise PeerError(str(peer), str(error)) from error


async def within(seconds: float, work: Awaitable[T], *, what: str) -> T:
    """What `work` gives. SplitflError that `what` did not happen where it takes more than `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise SplitflError(f"{what} within {seconds:g} s") from None


def in_words(error: BaseException) -> str:
    """An error as a reason to pass on: our own speak for themselves, any other says what it is."""
    text = str(error) if isinstance(error, SplitflError) else f"{type(error).__name__}: {error}"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that started it: in a group of tasks the others are mostly cancelled because of it."""
    leaves: list[BaseException] = []
    for error in errors.exceptions:
        leaves.append(first(error) if isinstance(error, BaseExceptionGroup) else error)
    return next((leaf for leaf in leaves if not isinstance(leaf, asyncio.CancelledError)), leaves[0])
