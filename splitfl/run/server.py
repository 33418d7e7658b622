"""The server's end of a run: from enrollment to the last word to every client."""

from __future__ import annotations

import asyncio

from splitfl.errors import SplitflError
from splitfl.run.actor import Actor
from splitfl.run.blueprint import Blueprint
from splitfl.run.enrollment import TAKEN, Enrollment
from splitfl.run.federation import Federation, Options, StoppedError
from splitfl.run.metrics import Recorder
from splitfl.run.parting import part
from splitfl.run.pool import Pool
from splitfl.run.trained import Trained
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
        await asyncio.gather(*(part(member.channel, last) for member in roster.members.values()))
