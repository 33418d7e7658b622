"""Stages that learn from losses of their own: nobody waits for a gradient from above.

A segment is a run of stages that ends at a stage with a loss. A micro-batch goes forwards and backwards through one
segment before the next one sees it, so a segment's activations are freed at once, and a client is done with a
mini-batch when its own segment is, whatever the server does. Losses at stages 0 (on the client) and 1:

    c0        F0 B0 F1 B1 U  F0 B0 ...
    server:0  .  F0 B0 F1 B1 U  ...

With one loss, at the last stage, it is the sequential order. (Decoupled greedy learning: arXiv 1901.08164, section 3;
split over client and server: arXiv 2101.09751.)
"""

from __future__ import annotations

from collections.abc import Iterator

from splitfl.schedule.instruction import Instruction
from splitfl.schedule.order import arrange, backwards, forwards
from splitfl.schedule.topology import Topology


def decoupled(topology: Topology) -> dict[str, tuple[Instruction, ...]]:
    """Forwards and backwards segment after segment, one micro-batch at a time, then the steps."""
    return arrange(topology, _segment_after_segment)


def segments(topology: Topology) -> list[range]:
    """The runs of stages that a gradient passes through; each ends at a stage with a loss."""
    ends = [loss + 1 for loss in sorted(topology.losses)]
    return [range(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _segment_after_segment(topology: Topology, client: int) -> Iterator[Instruction]:
    for micro in topology.micro(client):
        for stages in segments(topology):
            yield from forwards(topology, client, micro, stages)
            yield from backwards(topology, client, micro, stages)
