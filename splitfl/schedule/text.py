"""A schedule as text that a person edits and that parses back to the same schedule.

    # two micro-batches of client 0
    c0: 0F0.0 0S0.0(act:server) 0F0.1 0S0.1(act:server)
        0R0.0(grad:server) 0B0.0 0R0.1(grad:server) 0B0.1 0U0
    server: ...

One block per actor: its name, a colon, its instructions in order, over as many lines as they need. An instruction is
stage, operation, client (none where a stage computes for all), `.micro-batch`, `.chunk` if not 0, and for SEND and RECV
`(kind:other actor)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from splitfl.schedule.error import ScheduleError
from splitfl.schedule.instruction import Instruction, Kind, Op, Program, Schedule
from splitfl.schedule.topology import ACTOR_NAME

COLUMNS = 110
"""Where lines are wrapped."""

MAX_INSTRUCTIONS = 1_000_000
"""The longest program that is read: text may come from the network."""

MOVABLE = (Kind.ACT, Kind.GRAD, Kind.PARAMS, Kind.AVG)
"""The kinds of value that can travel; the others are parts of an autograd graph and stay where they were made."""

_NUMBER = "[0-9]{1,9}"
_TOKEN = re.compile(
    rf"({_NUMBER})([{''.join(Op)}])({_NUMBER})?(?:\.({_NUMBER}))?(?:\.({_NUMBER}))?"
    rf"(?:\(({'|'.join(Kind)}):({ACTOR_NAME})\))?"
)
_HEADING = re.compile(rf"({ACTOR_NAME})\s*:")
_LONGEST_TOKEN = 128

_PER_MICRO_BATCH = "stage {0} client.micro-batch, such as 0{0}1.2, or 0{0}.2 for all, then .chunk"
_MOVE = "a value and an actor, such as 0{0}1.2(act:server) or 0{0}1(params:server); what moves is one of " + ", ".join(
    MOVABLE
)
_FORMS = {
    Op.FORWARD: _PER_MICRO_BATCH,
    Op.BACKWARD: _PER_MICRO_BATCH,
    Op.BACKWARD_INPUT: _PER_MICRO_BATCH,
    Op.BACKWARD_WEIGHT: _PER_MICRO_BATCH,
    Op.STORE: _PER_MICRO_BATCH,
    Op.STEP: "stage {0} client, such as 0{0}1, or without a client when all share one step, such as 0{0}",
    Op.SEND: _MOVE,
    Op.RECV: _MOVE,
    Op.AGGREGATE: "stage {0}, such as 0{0}",
    Op.LOAD: "stage {0} client, such as 0{0}1",
}


def text(schedule: Schedule) -> str:
    """`schedule` as text; `parse` is the exact inverse (programs come back as tuples).

    Raises ScheduleError for an instruction or an actor's name that has no text form.
    """
    return "".join(f"{line}\n" for actor, program in schedule.items() for line in _block(actor, program))


def parse(source: str) -> dict[str, tuple[Instruction, ...]]:
    """The schedule that `source` spells out.

    Blank lines and everything after a `#` are skipped. Raises ScheduleError, naming line and token and what is
    accepted there.
    """
    schedule: dict[str, list[Instruction]] = {}
    actor: str | None = None
    for number, line in enumerate(source.splitlines(), start=1):
        rest = line.partition("#")[0].strip()
        heading = _HEADING.match(rest)
        if heading:
            actor = heading[1]
            rest = rest[heading.end() :]
            if actor in schedule:
                raise ScheduleError(f"line {number}: {actor!r} has a program already; an actor has one block")
            schedule[actor] = []
        for token in rest.split():
            if actor is None:
                raise ScheduleError(
                    f"line {number}: {_short(token)}: expected an actor's name and a colon, as in `c0:`"
                )
            if len(schedule[actor]) >= MAX_INSTRUCTIONS:
                raise ScheduleError(f"line {number}: {actor!r} has more than {MAX_INSTRUCTIONS} instructions")
            schedule[actor].append(_instruction(token, place=f"line {number}: "))
    return {actor: tuple(program) for actor, program in schedule.items()}


def program_text(program: Program) -> str:
    """One actor's program on one line: the form that travels to clients. `parse_program` is the exact inverse.

    Raises ScheduleError for an instruction that has no text form.
    """
    return " ".join(_token(instruction) for instruction in program)


def parse_program(source: str, *, limit: int = MAX_INSTRUCTIONS) -> tuple[Instruction, ...]:
    """The program of one actor, of at most `limit` instructions; no comments, no headings.

    Raises ScheduleError, naming the token and its position, or the limit; refused before anything large is built.
    """
    if len(source) > limit * _LONGEST_TOKEN or source.count(" ") >= max(limit, 1):
        raise ScheduleError(f"a program of {len(source)} characters is longer than {limit} instructions")
    tokens = source.split(" ") if source else []
    return tuple(_instruction(token, place=f"instruction {index}: ") for index, token in enumerate(tokens))


def _block(actor: str, program: Program) -> Iterator[str]:
    if not re.fullmatch(ACTOR_NAME, actor):
        raise ScheduleError(f"the actor's name {actor!r} has no text form: expected letters, digits, _ and -")
    line = f"{actor}:"
    indent = " " * min(len(line), 8)
    for instruction in program:
        token = _token(instruction)
        if len(line) + 1 + len(token) > COLUMNS:
            yield line
            line = indent
        line += f" {token}"
    yield line


def _token(instruction: Instruction) -> str:
    token = str(instruction)
    if _instruction(token, place="") != instruction:
        raise ScheduleError(f"{instruction!r} has no text form: {token!r} would be read as another instruction")
    return token


def _instruction(token: str, *, place: str) -> Instruction:
    match = _TOKEN.fullmatch(token) if len(token) <= _LONGEST_TOKEN else None
    if match is None:
        raise ScheduleError(f"{place}{_short(token)} is no instruction: {_explain(token)}")
    stage, letter, client, micro, chunk, kind, peer = match.groups()
    instruction = Instruction(
        Op(letter),
        int(stage),
        None if client is None else int(client),
        None if micro is None else int(micro),
        int(chunk or 0),
        None if kind is None else Kind(kind),
        peer,
    )
    if not _complete(instruction):
        raise ScheduleError(f"{place}{_short(token)}: expected {_FORMS[instruction.op].format(letter)}")
    return instruction


def _complete(instruction: Instruction) -> bool:
    """Whether exactly the fields that the operation needs are there."""
    op, _, client, micro, _, kind, _ = instruction
    moves = op is Op.SEND or op is Op.RECV
    if moves != (kind is not None) or (kind is not None and kind not in MOVABLE):
        return False
    if op is Op.AGGREGATE:
        return client is None and micro is None
    if op is Op.STEP:
        return micro is None
    per_micro_batch = kind in (Kind.ACT, Kind.GRAD) if moves else op is not Op.LOAD
    return (client is not None or per_micro_batch) and (micro is not None) == per_micro_batch


def _explain(token: str) -> str:
    letter = re.match(r"[0-9]+([A-Z])", token)
    if letter and letter[1] in tuple(Op):
        return f"expected {_FORMS[Op(letter[1])].format(letter[1])}"
    return f"expected a stage, then one of {' '.join(Op)}, as in 0F1.2"


def _short(token: str) -> str:
    return repr(token if len(token) <= 40 else token[:37] + "...")
