"""The server's end of a run: from enrollment to the last word to every client."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from splitfl.errors import SplitflError
from splitfl.run.actor import Actor
from splitfl.run.blueprint import Blueprint
from splitfl.run.enrollment import TAKEN, Enrollment
from splitfl.run.federation import Federation
from splitfl.run.metrics import Recorder
from splitfl.run.options import Options, StoppedError
from splitfl.run.parting import part
from splitfl.run.pool import Pool
from splitfl.run.record import RoundRecord
from splitfl.run.server_memory import ServerMemory
from splitfl.run.trained import Trained
from splitfl.transport.messages import Finish, Refuse

LINGER = 5.0
"""Seconds in which clients that come back to a training that is over already are told so."""


async def run_server(
    blueprint: Blueprint, enrollment: Enrollment, *, pool: Pool, options: Options, rounds: int
) -> Trained:
    """Wait for the clients, train `rounds` rounds with them, and tell them how it ended.

    Raises SplitflError where clients are missing or none is left.
    """
    standing = enrollment.standing
    standing.note(rounds=rounds)
    memory, before = ServerMemory(options.checkpoint, blueprint, options.strategy), Trained.initial(blueprint)
    if options.resume and await asyncio.to_thread(memory.completed, before, rounds):
        # Clients that did not hear the last word try to come back; those that did are gone, and nobody waits for them.
        standing.note(phase="finished", last=before.rounds[-1])
        await enrollment.dismiss(Finish(f"training is complete after {rounds} rounds"))
        await asyncio.sleep(LINGER)
        return before
    roster = await enrollment.roster()
    channels = {f"c{client}": member.channel for client, member in roster.members.items()}
    actor = Actor("server", blueprint, pool=pool, recorder=Recorder(), channels=channels)
    last: Finish | Refuse | None = Refuse("ended", "the server stopped before training was complete")
    phase = "failed"

    def on_round(record: RoundRecord) -> None:
        standing.note(last=record)
        options.on_round(record)

    standing.note(phase="training")
    try:
        trained = await Federation(blueprint, roster, actor, replace(options, on_round=on_round)).run(rounds)
        last, phase = Finish(f"training is complete after {rounds} rounds"), "finished"
        return trained
    except StoppedError:
        last, phase = None, "stopped"  # no last word: clients try to come back for as long as their patience lasts
        raise
    except SplitflError as error:
        last = Refuse("ended", f"training ended: {error}")
        raise
    finally:
        standing.note(phase=phase)
        enrollment.end(last or Refuse(TAKEN, "the server is stopping: try again later"))
        await asyncio.gather(*(part(member.channel, last) for member in roster.members.values()))
