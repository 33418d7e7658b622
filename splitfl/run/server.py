"""The server's end of a run: from enrollment to the last word to every client."""

from __future__ import annotations

from contextlib import suppress

from splitfl.errors import SplitflError
from splitfl.run.actor import Actor
from splitfl.run.blueprint import Blueprint
from splitfl.run.enrollment import TAKEN, Enrollment
from splitfl.run.federation import Federation, Options, StoppedError
from splitfl.run.metrics import Recorder
from splitfl.run.pool import Pool
from splitfl.run.trained import Trained
from splitfl.transport.base import Channel
from splitfl.transport.messages import Finish, Refuse


async def run_server(
    blueprint: Blueprint, enrollment: Enrollment, *, pool: Pool, options: Options, rounds: int
) -> Trained:
    """Wait for the clients, train `rounds` rounds with them, and tell them how it ended.

    Raises SplitflError where clients are missing or none is left.
    """
    roster = await enrollment.roster()
    channels = {f"c{client}": member.channel for client, member in roster.members.items()}
    actor = Actor("server", blueprint, pool=pool, recorder=Recorder(), channels=channels)
    last: Finish | Refuse | None = Refuse("ended", "the server stopped before training was complete")
    try:
        trained = await Federation(blueprint, roster, actor, options).run(rounds)
        last = Finish(f"training is complete after {rounds} rounds")
        return trained
    except StoppedError:
        last = None  # no last word: clients try to come back for as long as their patience lasts
        raise
    except SplitflError as error:
        last = Refuse("ended", f"training ended: {error}")
        raise
    finally:
        enrollment.end(last or Refuse(TAKEN, "the server is stopping: try again later"))
        for member in roster.members.values():
            await _part(member.channel, last)


async def _part(channel: Channel, word: Finish | Refuse | None) -> None:
    with suppress(SplitflError):  # it may be gone already, and that is all right now
        if word is not None:
            await channel.tell(word)
        await channel.close("the session is over")
