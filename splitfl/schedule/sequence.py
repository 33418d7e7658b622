"""Micro-batches cut along the sequence, for models that only look back (Seq1F1B, arXiv 2406.03488).

A chunk is as small a piece of work as a micro-batch of a longer pipeline, so the bubble shrinks with the number of
chunks k: (p-1)(T_F + T_B) / k, T_F and T_B being those of a whole micro-batch, m >= p. Chunks go forward in order
and back in reverse, since earlier ones are seen by later ones. p = 2, m = 2, k = 2; `.1` is the second chunk:

    clock    0    1    2    3    4    5    6    7    8    9
    stage 0  F0   F0.1 F1   .    B0.1 F1.1 B0   .    B1.1 B1
    stage 1  .    F0   F0.1 B0.1 F1   B0   F1.1 B1.1 B1

A stage holds the activations of k - 1 chunks more than 1F1B does, and those are smaller by k.
"""

from __future__ import annotations

from splitfl.schedule.instruction import Instruction
from splitfl.schedule.order import arrange, backwards, forwards, weave
from splitfl.schedule.topology import Topology


def seq_1f1b(topology: Topology) -> dict[str, tuple[Instruction, ...]]:
    """One chunk forward, one chunk backward; with one chunk it is 1F1B."""

    def order(topology: Topology, client: int) -> list[Instruction]:
        return weave([_stage(topology, client, stage) for stage in range(topology.stages)], topology)

    return arrange(topology, order)


def _stage(topology: Topology, client: int, stage: int) -> list[Instruction]:
    here = range(stage, stage + 1)
    ups = [at for micro in topology.micro(client) for at in forwards(topology, client, micro, here)]
    downs = [at for micro in topology.micro(client) for at in backwards(topology, client, micro, here)]
    ahead = topology.last - stage + topology.chunks
    work = ups[:ahead]
    for index, backward in enumerate(downs):
        work.append(backward)
        work += ups[ahead + index : ahead + index + 1]
    return work
