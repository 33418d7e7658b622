"""Pipelines over any number of stages, flushed at the end of every mini-batch.

p stages, m micro-batches; the number in a cell is the micro-batch. Both have the bubble (p-1)(T_F + T_B + T_W).

GPipe (arXiv 1811.06965), p = 3, m = 4: all forwards, then all backwards. Every stage holds m activations.

    clock    0  1  2  3  4  5  6  7  8  9 10 11
    stage 0  F0 F1 F2 F3 .  .  .  .  B0 B1 B2 B3
    stage 1  .  F0 F1 F2 F3 .  .  B0 B1 B2 B3
    stage 2  .  .  F0 F1 F2 F3 B0 B1 B2 B3

1F1B (arXiv 1806.03377, flushed as in 2006.09503): backwards as early as possible. Stage s holds p - s activations.

    clock    0  1  2  3  4  5  6  7  8  9 10 11
    stage 0  F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3
    stage 1  .  F0 F1 .  B0 F2 B1 F3 B2 .  B3
    stage 2  .  .  F0 B0 F1 B1 F2 B2 F3 B3
"""

from __future__ import annotations

from collections.abc import Callable

from splitfl.schedule.instruction import Instruction
from splitfl.schedule.order import arrange, backwards, forwards
from splitfl.schedule.topology import Topology

Clock = Callable[[int, int], int]
"""Stage and micro-batch in; the column of the table above out."""


def gpipe(topology: Topology) -> dict[str, tuple[Instruction, ...]]:
    """All forwards, then all backwards."""

    def order(topology: Topology, client: int) -> list[Instruction]:
        last, count = topology.last, len(topology.micro(client))
        return _by_clock(
            topology,
            client,
            forward=lambda stage, micro: stage + micro,
            backward=lambda stage, micro: last + count + (last - stage) + micro,
        )

    return arrange(topology, order)


def one_f_one_b(topology: Topology) -> dict[str, tuple[Instruction, ...]]:
    """One forward, one backward: stage s takes p - s forwards ahead, then alternates."""

    def order(topology: Topology, client: int) -> list[Instruction]:
        depth = topology.stages
        return _by_clock(
            topology,
            client,
            forward=lambda stage, micro: stage + micro if micro < depth - stage else stage + 2 * micro,
            backward=lambda stage, micro: 2 * depth - 1 - stage + 2 * micro,
        )

    return arrange(topology, order)


def _by_clock(topology: Topology, client: int, *, forward: Clock, backward: Clock) -> list[Instruction]:
    """One client's work, column after column; a cell is all chunks of a micro-batch at a stage."""
    cells: list[tuple[int, list[Instruction]]] = []
    for micro in topology.micro(client):
        for stage in range(topology.stages):
            here = range(stage, stage + 1)
            cells.append((forward(stage, micro), list(forwards(topology, client, micro, here))))
            cells.append((backward(stage, micro), list(backwards(topology, client, micro, here))))
    cells.sort(key=lambda cell: cell[0])
    return [instruction for _, cell in cells for instruction in cell]
