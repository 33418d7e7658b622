"""PiPar: the device, the link and the server work on different micro-batches at the same time (arXiv 2302.12803).

Forwards first, as published: the device holds every activation until the gradients come back.

    c0      F0 F1 F2 F3 F4 F5 B0 B1 B2 B3 .  B4 .  B5 U
    server  .  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 U

One forward, one backward: once IN_FLIGHT micro-batches are out, each gradient that comes back lets one more go.

    c0      F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 .  B4 .  B5 U
    server  .  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 U
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from splitfl.schedule.instruction import Instruction
from splitfl.schedule.order import arrange, backwards, forwards, front_and_tail
from splitfl.schedule.topology import Topology

IN_FLIGHT = 4
"""Micro-batches out at once: one each for the device, the way up, the server and the way down."""


def pipar(topology: Topology) -> dict[str, tuple[Instruction, ...]]:
    """All forwards of the front, then all its backwards; the tail does forward and backward on arrival.

    Section 3.2 of arXiv 2302.12803.
    """
    return arrange(topology, _forwards_first)


def pipar_1f1b(topology: Topology, *, in_flight: int = IN_FLIGHT) -> dict[str, tuple[Instruction, ...]]:
    """The front alternates one backward, one forward once `in_flight` micro-batches are out.

    It holds at most `in_flight` activations, whatever the number of micro-batches. Raises ValueError below 1.
    """
    if in_flight < 1:
        raise ValueError(f"pipar_1f1b: in_flight = {in_flight}, expected 1 or more")
    return arrange(topology, partial(_alternating, in_flight=in_flight))


def _forwards_first(topology: Topology, client: int) -> Iterator[Instruction]:
    return _alternating(topology, client, in_flight=len(topology.micro(client)))


def _alternating(topology: Topology, client: int, *, in_flight: int) -> Iterator[Instruction]:
    front, tail = front_and_tail(topology)
    micros = topology.micro(client)
    for micro in micros[:in_flight]:
        yield from forwards(topology, client, micro, front)
    for micro in micros:
        yield from forwards(topology, client, micro, tail)
        yield from backwards(topology, client, micro, tail)
        yield from backwards(topology, client, micro, front)
        if micro + in_flight in micros:
            yield from forwards(topology, client, micro + in_flight, front)
