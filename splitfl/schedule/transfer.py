"""Activations on their way to be kept: a client runs its front forward only, the server trains on them later, alone.

    c0        F0 F1 F2
    server:0  .  K0 K1 K2

(One transfer at the end of the fronts' training: arXiv 2507.07130, section 3; now and then, with a frozen front:
2304.05495, section 4.)
"""

from __future__ import annotations

from collections.abc import Iterator

from splitfl.schedule.instruction import Instruction, Op
from splitfl.schedule.order import arrange, forwards
from splitfl.schedule.topology import Topology


def transfer(topology: Topology) -> dict[str, tuple[Instruction, ...]]:
    """Forwards of every micro-batch up to the stage that keeps them; for a topology with a stored stage."""
    return arrange(topology, _up)


def _up(topology: Topology, client: int) -> Iterator[Instruction]:
    for micro in topology.micro(client):
        yield from forwards(topology, client, micro, range(topology.last))
        for chunk in range(topology.chunks):
            yield Instruction(Op.STORE, topology.last, client, micro, chunk)
