"""What an actor can be told to do, and what each instruction means.

A schedule maps every actor to the instructions it carries out for one mini-batch. This file holds the
vocabulary: operations, values, instructions, and `effects`, the one table of what an operation consumes, reads and
writes. Lowering, checking, simulating and executing all ask this table, so there is a single truth.

Values are named, never numbered by position:

    act[s,c,m,q]     output of stage s for client c, micro-batch m, sequence chunk q
    stash[s,c,m,q]   what the backward of that forward needs (the autograd graph)
    grad[s,c,m,q]    gradient of the loss with respect to act[s,c,m,q]
    wstash[s,c,m,q]  what is left for the weights after BACKWARD_INPUT
    pgrad[s,c,m,q]   that micro-batch's contribution to the weight gradients of stage s
    act[s,m,q] and the others without c: of all clients together, where stage s is merged
    params[s,c]      weights of a replica (params[s] when one replica serves all clients)
    avg[s,c]         averaged weights of stage s, on their way to client c's replica
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from splitfl.schedule.topology import Topology


class Op(StrEnum):
    """The operations, with the letter that stands for each in a schedule's text."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    STEP = "U"
    SEND = "S"
    RECV = "R"
    STORE = "K"
    AGGREGATE = "A"
    LOAD = "L"

    __hash__ = str.__hash__  # values are keys everywhere, and Enum's own hash is a slow Python function


class Kind(StrEnum):
    """The kinds of named value that instructions consume and write."""

    ACT = "act"
    STASH = "stash"
    GRAD = "grad"
    WSTASH = "wstash"
    PGRAD = "pgrad"
    PARAMS = "params"
    AVG = "avg"

    __hash__ = str.__hash__


class Value(NamedTuple):
    """The name of one value; `client` is None for the weights of a shared stage and all that a merged one computes."""

    kind: Kind
    stage: int
    client: int | None = None
    micro_batch: int | None = None
    chunk: int = 0

    def __str__(self) -> str:
        micro = None if self.micro_batch is None else str(self.micro_batch)
        chunk = str(self.chunk) if self.chunk else None
        where = [str(self.stage), None if self.client is None else str(self.client), micro, chunk]
        return f"{self.kind}[{','.join(part for part in where if part is not None)}]"


class Instruction(NamedTuple):
    """One instruction of one actor.

    `client` is None for AGGREGATE, the joint STEP of a shared stage and what a merged stage computes for all clients
    together; `micro_batch` for AGGREGATE, any STEP, and LOAD.
    `kind` and `peer` are set for SEND and RECV only: which value moves, and the actor at the other end.
    """

    op: Op
    stage: int
    client: int | None = None
    micro_batch: int | None = None
    chunk: int = 0
    kind: Kind | None = None
    peer: str | None = None

    def __str__(self) -> str:
        client = "" if self.client is None else str(self.client)
        micro = "" if self.micro_batch is None else f".{self.micro_batch}"
        chunk = f".{self.chunk}" if self.chunk else ""
        moved = "" if self.kind is None else f"({self.kind}:{self.peer})"
        return f"{self.stage}{self.op}{client}{micro}{chunk}{moved}"

    @property
    def value(self) -> Value:
        """The value that a SEND or RECV moves."""
        if self.kind is None:
            raise ValueError(f"{self} moves no value: only SEND and RECV do")
        return Value(self.kind, self.stage, self.client, self.micro_batch, self.chunk)


Program = Sequence[Instruction]
Schedule = Mapping[str, Program]


class Effects(NamedTuple):
    """What an instruction takes away, looks at, and leaves behind, on the actor that runs it."""

    consumes: tuple[Value, ...] = ()
    reads: tuple[Value, ...] = ()
    writes: tuple[Value, ...] = ()


def effects(instruction: Instruction, topology: Topology) -> Effects:
    """The table: what `instruction` consumes, reads and writes under `topology`.

    A SEND consumes its value and a RECV writes it; the message between them is the concern of whoever executes.
    """
    op, stage, client, micro, chunk, _, _ = instruction
    here = (stage, client, micro, chunk)
    if op is Op.SEND:
        return Effects(consumes=(instruction.value,))
    if op is Op.RECV:
        return Effects(writes=(instruction.value,))
    if op is Op.FORWARD:
        return Effects(
            consumes=_below(Kind.ACT, instruction, topology) if stage > 0 else (),
            reads=(weights(topology, stage, client),),
            writes=(
                *([Value(Kind.ACT, *here)] if stage < topology.last else []),
                *([Value(Kind.STASH, *here)] if stage not in topology.frozen else []),
            ),
        )
    if op is Op.STORE:
        return Effects(consumes=_below(Kind.ACT, instruction, topology))
    if op is Op.BACKWARD or op is Op.BACKWARD_INPUT:
        upstream = () if stage in topology.losses else (Value(Kind.GRAD, *here),)
        ends = stage == 0 or stage - 1 in topology.losses
        downstream = () if ends else _below(Kind.GRAD, instruction, topology)
        left = Kind.PGRAD if op is Op.BACKWARD else Kind.WSTASH
        return Effects(
            consumes=(Value(Kind.STASH, *here), *upstream),
            reads=(weights(topology, stage, client),),
            writes=(*downstream, Value(left, *here)),
        )
    if op is Op.BACKWARD_WEIGHT:
        return Effects(consumes=(Value(Kind.WSTASH, *here),), writes=(Value(Kind.PGRAD, *here),))
    if op is Op.STEP:
        owners = topology.owners(stage) if client is None else (client,)
        gradients = tuple(
            Value(Kind.PGRAD, stage, owner, m, q)
            for owner in owners
            for m in topology.micro(owner)
            for q in range(topology.chunks)
        )
        params = weights(topology, stage, client)
        return Effects(consumes=(params, *gradients), writes=(params,))
    if op is Op.AGGREGATE:
        return Effects(
            consumes=tuple(Value(Kind.PARAMS, stage, c) for c in topology.clients),
            writes=tuple(Value(Kind.AVG, stage, c) for c in topology.clients),
        )
    if op is Op.LOAD:
        return Effects(consumes=(Value(Kind.AVG, stage, client),), writes=(weights(topology, stage, client),))
    raise ValueError(f"unknown operation {op!r}")


def _below(kind: Kind, instruction: Instruction, topology: Topology) -> tuple[Value, ...]:
    """The values of `kind` between the stage below and this one: one, or one per client where they are merged here."""
    _, stage, client, micro, chunk, _, _ = instruction
    owners = topology.owners(stage - 1) if client is None else (client,)
    return tuple(Value(kind, stage - 1, owner, micro, chunk) for owner in owners)


def weights(topology: Topology, stage: int, client: int | None) -> Value:
    """The name of the weights that `client` uses at `stage`: its replica's, or the shared ones."""
    return Value(Kind.PARAMS, stage, None if stage in topology.shared else client)


def initial_values(topology: Topology) -> dict[Value, str]:
    """The values alive before the first instruction, with the actor that holds each.

    An aggregated stage starts as an average at the aggregator, any other stage as weights where it is placed; a stored
    one has none. A correct schedule ends with the same values alive as it began with.
    """
    alive: dict[Value, str] = {}
    for stage in range(topology.stages):
        for client in topology.clients:
            if stage in topology.stored:
                continue
            if stage in topology.aggregated:
                alive[Value(Kind.AVG, stage, client)] = topology.aggregator
            else:
                alive[weights(topology, stage, client)] = topology.actor(stage, client)
    return alive
