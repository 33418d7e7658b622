"""Pipelines whose stages go round the actors more than once: p actors, v stages on each, v x p in all.

T_F and T_B are an actor's times for a whole micro-batch, all its stages together; both have the bubble
(p-1)(T_F + T_B) / v, for m >= p micro-batches. p = 2, v = 2, m = 4; the stage in front, then the micro-batch:

Breadth-first (arXiv 2211.05953): every micro-batch goes through a stage before the next stage begins. Weights are
needed once in each direction, and each stage's gradients are complete early; an actor holds m activations per stage.

    clock    0   1   2   3   4   5   6   7   8   9   10  11  12  13  14  15  16  17
    actor 0  0F0 0F1 0F2 0F3 2F0 2F1 2F2 2F3 .   .   2B0 2B1 2B2 2B3 0B0 0B1 0B2 0B3
    actor 1  .   1F0 1F1 1F2 1F3 3F0 3F1 3F2 3F3 3B0 3B1 3B2 3B3 1B0 1B1 1B2 1B3

Interleaved 1F1B (arXiv 2104.04473, section 2.2): micro-batches in groups of p; a group goes round all loops before the
next, and backwards come as early as possible. Holds fewer activations than breadth-first.

    clock    0   1   2   3   4   5   6   7   8   9   10  11  12  13  14  15  16  17
    actor 0  0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 .   2B2 .   2B3 0B2 0B3
    actor 1  .   1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from splitfl.schedule.instruction import Instruction
from splitfl.schedule.order import arrange, backwards, forwards, weave
from splitfl.schedule.topology import Topology


def breadth_first(topology: Topology) -> dict[str, tuple[Instruction, ...]]:
    """All micro-batches through a stage before the next; backwards likewise. Stages may be placed in any way."""

    def order(topology: Topology, client: int) -> Iterator[Instruction]:
        parts = _parts(topology)
        for stages in parts:
            for micro in topology.micro(client):
                yield from forwards(topology, client, micro, stages)
        for stages in reversed(parts):
            for micro in topology.micro(client):
                yield from backwards(topology, client, micro, stages)

    return arrange(topology, order)


def interleaved(topology: Topology) -> dict[str, tuple[Instruction, ...]]:
    """Groups of p micro-batches round all loops, one forward, one backward once the pipe is full.

    A last group of fewer takes its place as if it were whole. Where stages do not go round the actors, it is 1F1B.
    """
    parts = _parts(topology)
    places = [topology.placement[stages[0]] for stages in parts]
    actors = len(set(places))
    if places != places[:actors] * (len(parts) // actors):
        actors = len(parts)

    def order(topology: Topology, client: int) -> list[Instruction]:
        return weave([_actor(topology, client, parts, actors, place) for place in range(actors)], topology)

    return arrange(topology, order)


def _actor(topology: Topology, client: int, parts: list[range], actors: int, place: int) -> list[Instruction]:
    """The work of the actor in `place` (0: first): forwards ahead, then by turns a forward and a backward."""
    loops, count = len(parts) // actors, len(topology.micro(client))
    groups = [range(start, start + actors) for start in range(0, count, actors)]
    turns = [(loop * actors + place, micro) for group in groups for loop in range(loops) for micro in group]
    back = [(loop * actors + place, micro) for group in groups for loop in range(loops)[::-1] for micro in group]
    ahead = (actors - place - 1) * (2 if loops > 1 else 1) + actors * (loops - 1)
    ups = [list(forwards(topology, client, micro, parts[part])) for part, micro in turns]
    downs = [list(backwards(topology, client, micro, parts[part])) for part, micro in back]
    work = [at for cell in ups[:ahead] for at in cell]
    for index, down in enumerate(downs):
        work += [*(ups[ahead + index] if ahead + index < len(ups) else ()), *down]
    return [at for at in work if (at.micro_batch or 0) < count]


def _parts(topology: Topology) -> list[range]:
    """The stages in runs that one actor has one after the other."""
    runs = [[*run] for _, run in groupby(range(topology.stages), key=lambda stage: topology.placement[stage])]
    return [range(run[0], run[-1] + 1) for run in runs]
