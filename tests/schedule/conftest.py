"""Topologies of every kind: any placement, shared, joint and merged stages, local losses, chunks, several steps."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from splitfl.schedule import CLIENT, Topology


@st.composite
def any_topology(draw: st.DrawFn, *, largest: int = 4, steps: int = 3) -> Topology:
    stages = draw(st.integers(1, largest))
    placement = tuple(draw(st.sampled_from([CLIENT, CLIENT, "server", "edge"])) for _ in range(stages))
    clients = tuple(sorted(draw(st.sets(st.integers(0, 5), min_size=1, max_size=largest))))
    remote = [stage for stage, place in enumerate(placement) if place != CLIENT]
    roles = {stage: draw(st.sampled_from(["replica", "shared", "joint"])) for stage in remote}
    shared = frozenset(stage for stage, role in roles.items() if role != "replica")
    joint = frozenset(stage for stage, role in roles.items() if role == "joint")
    ends = [stage for stage in range(stages) if joint == shared >= frozenset(range(stage, stages))]
    merged = frozenset(range(draw(st.sampled_from(ends)), stages)) if ends and draw(st.booleans()) else frozenset()
    own = sorted(frozenset(range(stages)) - shared)
    count = st.integers(1, 6)
    counts = count if merged else st.one_of(count, st.tuples(*[count for _ in clients]))
    return Topology(
        clients=clients,
        placement=placement,
        micro_batches=draw(counts),
        chunks=draw(st.integers(1, 3)),
        losses=draw(st.frozensets(st.integers(0, stages - 1))),
        shared=shared,
        joint=joint,
        merged=merged,
        aggregated=draw(st.frozensets(st.sampled_from(own))) if own else frozenset(),
        steps=draw(st.integers(1, steps)),
        aggregator=draw(st.sampled_from(["server", "hub"])),
    )


@pytest.fixture(scope="session")
def topologies() -> st.SearchStrategy[Topology]:
    return any_topology()


@pytest.fixture(scope="session")
def small_topologies() -> st.SearchStrategy[Topology]:
    return any_topology(largest=3, steps=2)
