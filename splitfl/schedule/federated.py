"""One micro-batch after the other: the order of federated averaging, split learning and SplitFed.

    c0        F0 .  .  B0 F1 .  .  B1 U
    server:0  .  F0 B0 .  .  F1 B1 U

Which of them it is, the topology says: the whole model on the client (fedavg); a tail replica per client (SplitFed V1
and V3); one tail that takes a step after each client (SplitFed V2, split learning).
"""

from __future__ import annotations

from collections.abc import Iterator

from splitfl.schedule.instruction import Instruction
from splitfl.schedule.order import arrange, backwards, forwards
from splitfl.schedule.topology import Topology


def sequential(topology: Topology) -> dict[str, tuple[Instruction, ...]]:
    """Forward up all stages and backward down all stages, one micro-batch at a time, then the steps.

    The order of a mini-batch in FedAvg (arXiv 1602.05629), split learning (1810.06060) and SplitFed (2004.12088).
    """
    return arrange(topology, _one_at_a_time)


def _one_at_a_time(topology: Topology, client: int) -> Iterator[Instruction]:
    stages = range(topology.stages)
    for micro in topology.micro(client):
        yield from forwards(topology, client, micro, stages)
        yield from backwards(topology, client, micro, stages)
