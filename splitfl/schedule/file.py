"""A schedule that somebody wrote or edited, used where a generator goes."""

from __future__ import annotations

from pathlib import Path

from splitfl.schedule.error import ScheduleError
from splitfl.schedule.generators import Generator
from splitfl.schedule.instruction import Instruction, Op, Program
from splitfl.schedule.text import parse
from splitfl.schedule.topology import Topology

COMMUNICATION = frozenset({Op.SEND, Op.RECV, Op.LOAD, Op.AGGREGATE})


def from_file(path: Path) -> Generator:
    """The schedule in `path` as a generator: for any topology, the part of it that the topology names.

    Sends and receives, loads and averages in the file are left out, since lowering and federating put them in again.
    A client that is gone or a last mini-batch with fewer micro-batches leaves out those instructions; whether the
    rest is still a schedule is proved afresh each time. Raises ScheduleError for a missing or wrong file.
    """
    try:
        written = parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ScheduleError(f"schedule file {path}: {reason}") from error
    except ScheduleError as error:
        raise ScheduleError(f"schedule file {path}: {error}") from error

    def generate(topology: Topology) -> dict[str, Program]:
        return {
            actor: tuple(at for at in program if at.op not in COMMUNICATION and _named(at, topology))
            for actor, program in written.items()
            if actor in topology.actors
        }

    return generate


def _named(instruction: Instruction, topology: Topology) -> bool:
    """Whether stage, client and micro-batch of the instruction are part of `topology`."""
    if instruction.stage > topology.last:
        return False
    client, micro = instruction.client, instruction.micro_batch
    if client is None:
        return True
    return client in topology.clients and (micro is None or micro in topology.micro(client))
