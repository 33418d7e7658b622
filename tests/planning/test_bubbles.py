"""The bubbles of the papers' pipelines, exactly, over a grid of stages, micro-batches and times."""

from __future__ import annotations

from itertools import product

import pytest

from splitfl.planning import StageCost, simulate, stage_costs
from splitfl.schedule import GENERATORS, Kind, Topology, check, lower, walk

DEPTHS = range(1, 6)
TIMES = [(1, 1, 1), (2, 3, 1), (3, 2, 2), (4, 4, 3), (1, 2, 1)]
SLOW_WEIGHTS = [(1, 1, 2), (2, 1, 3)]


def line(depth, count, chunks=1):
    """One stage on each actor."""
    places = tuple(f"s{stage}" for stage in range(depth))
    return Topology(clients=(0,), placement=places, micro_batches=count, chunks=chunks)


def loops(actors, rounds, count):
    """The stages go round the actors."""
    return Topology(clients=(0,), placement=tuple(f"a{a}" for a in range(actors)) * rounds, micro_batches=count)


def timeline(name, topology, times):
    t_f, t_b, t_w = times
    costs = stage_costs([StageCost(forward=t_f, backward=t_b, weight=t_w)] * topology.stages)
    return simulate(lower(GENERATORS[name](topology), topology), topology, costs)


def spans(found):
    """What each actor waits between its first instruction and its last."""
    waits = []
    for actor in found.busy:
        own = [event for event in found.events if event.actor == actor and event.instruction.kind is None]
        if not own:
            continue
        waits.append(max(event.end for event in own) - min(event.start for event in own) - found.busy[actor])
    return waits


@pytest.mark.parametrize("times", TIMES)
def test_zb_h1(times):
    """Table 2 of arXiv 2401.10241."""
    t_f, t_b, t_w = times
    for depth, extra in product(DEPTHS, (0, 1, 5)):
        count = depth + extra
        found = timeline("zb-h1", line(depth, count), times)
        assert found.makespan - count * sum(times) == (depth - 1) * (t_f + t_b - t_w), (depth, count)


@pytest.mark.parametrize("times", TIMES)
def test_zb_h2(times):
    """Table 2 of arXiv 2401.10241; no bubble is negative."""
    t_f, t_b, t_w = times
    for depth, extra in product(DEPTHS, (0, 1, 6)):
        count = 2 * depth - 1 + extra
        found = timeline("zb-h2", line(depth, count), times)
        assert max(spans(found)) == max(0, (depth - 1) * (t_f + t_b - 2 * t_w)), (depth, count)


@pytest.mark.parametrize("name", ["zb-h1", "zb-h2"])
@pytest.mark.parametrize("times", SLOW_WEIGHTS)
def test_no_more_than_1f1b_waits_where_weights_are_slow(name, times):
    for depth in DEPTHS:
        count = 2 * depth + 3
        assert (
            timeline(name, line(depth, count), times).makespan <= timeline("1f1b", line(depth, count), times).makespan
        )


def test_activations_that_zero_bubble_holds():
    """p for ZB-H1, 2p - 1 for ZB-H2, at every stage: from a forward to its W."""
    for depth, count in product(range(1, 6), (12, 15)):
        topology = line(depth, count)
        for name, most in (("zb-h1", depth), ("zb-h2", 2 * depth - 1)):
            peaks = check(lower(GENERATORS[name](topology), topology), topology).peaks
            held = [peaks[place][Kind.STASH] + peaks[place][Kind.WSTASH] for place in topology.placement]
            assert max(held) <= most + 1  # peaks of the two kinds are not at the same moment
            alive = [max(_alive(GENERATORS[name](topology)[place])) for place in topology.placement]
            assert max(alive) == most


def _alive(program):
    held = 0
    for at in program:
        held += {"F": 1, "W": -1}.get(str(at.op), 0)
        yield held


@pytest.mark.parametrize("name", ["breadth-first", "interleaved"])
@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_looped(name, rounds):
    """(p-1)(T_F + T_B) / v, with the times of an actor's v stages together (arXiv 2104.04473, 2211.05953)."""
    for actors, groups, (t_f, t_b, t_w) in product(range(1, 5), (1, 2, 3), TIMES):
        count = groups * actors
        per_stage = [each / rounds for each in (t_f, t_b, t_w)]
        found = timeline(name, loops(actors, rounds, count), per_stage)
        whole = t_f + t_b + t_w
        assert found.makespan - count * whole == (actors - 1) * whole / rounds, (actors, count)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7])
def test_looped_with_any_number_of_micro_batches(count):
    for actors, rounds in product(range(1, 5), range(1, 4)):
        topology = loops(actors, rounds, count)
        for name in ("breadth-first", "interleaved"):
            check(lower(GENERATORS[name](topology), topology), topology)


def test_interleaved_is_1f1b_where_stages_do_not_go_round():
    for places in (("a", "b", "a"), ("a", "b", "c"), ("client", "server", "client")):
        topology = Topology(clients=(0,), placement=places, micro_batches=4)
        one, other = (walk(lower(GENERATORS[name](topology), topology), topology) for name in ("interleaved", "1f1b"))
        assert one.clock <= other.clock + 1


@pytest.mark.parametrize("chunks", [1, 2, 4, 8])
def test_seq_1f1b(chunks):
    """(p-1)(T_F + T_B) / k, with the times of a whole micro-batch (arXiv 2406.03488)."""
    for depth, extra, times in product(DEPTHS, (0, 1, 4), TIMES):
        count = depth + extra
        per_chunk = [each / chunks for each in times]
        found = timeline("seq-1f1b", line(depth, count, chunks), per_chunk)
        assert found.makespan - count * sum(times) == (depth - 1) * sum(times) / chunks, (depth, count)


def test_seq_1f1b_with_one_chunk_is_1f1b():
    for depth, count in product(range(1, 5), range(1, 7)):
        topology = line(depth, count)
        one, other = (walk(lower(GENERATORS[name](topology), topology), topology) for name in ("seq-1f1b", "1f1b"))
        assert one.clock == other.clock
