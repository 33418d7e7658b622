from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitfl.planning import Link, StageCost, play, prepare, simulate, stage_costs
from splitfl.schedule import (
    GENERATORS,
    Op,
    ScheduleError,
    Topology,
    build,
    gpipe,
    lower,
    one_f_one_b,
    parse,
    pipar,
    sequential,
)

SPLIT = Topology(clients=(0,), placement=("client", "server"), micro_batches=2)


@pytest.mark.parametrize("generate", [gpipe, one_f_one_b])
@pytest.mark.parametrize("times", [(1, 1, 1), (2, 3, 1), (0.5, 0.25, 4)])
def test_bubble_is_the_closed_form(generate, times):
    t_f, t_b, t_w = times
    each = sum(times)
    for depth in range(1, 7):
        for count in range(1, 11):
            topology = Topology(clients=(0,), placement=tuple(f"s{s}" for s in range(depth)), micro_batches=count)
            costs = stage_costs([StageCost(forward=t_f, backward=t_b, weight=t_w)] * depth)
            timeline = simulate(lower(generate(topology), topology), topology, costs)
            assert timeline.makespan == (depth - 1 + count) * each
            assert timeline.bubble == (depth - 1) * each
            share = pytest.approx((depth - 1) / (depth - 1 + count))
            assert all(timeline.idle[place] == share for place in topology.placement)


def test_link_arithmetic_by_hand():
    """1 s per forward, 1000 bytes at 500 B/s up, 0.25 s latency; 2 s + 1 s on the server; 250 B/s down."""
    stages = [
        StageCost(forward=1, weight=1, activation=1000, gradient=500, stash=70, params=10, step=0.5),
        StageCost(forward=2, backward=0.5, weight=0.5, stash=30, params=20),
    ]
    links = {("c0", "server"): Link(500, 0.25), ("server", "c0"): Link(250, 0.5)}
    timeline = simulate(lower(pipar(SPLIT), SPLIT), SPLIT, stage_costs(stages, links=links))
    assert [(e.actor, str(e.instruction), e.start, e.end, e.nbytes) for e in timeline.events] == [
        ("c0", "0F0.0", 0, 1, 0),
        ("server", "0R0.0(act:c0)", 0, 3.25, 1000),
        ("c0", "0F0.1", 1, 2, 0),
        ("c0", "0S0.0(act:server)", 1, 3, 1000),
        ("c0", "0S0.1(act:server)", 2, 5, 1000),  # waits for the link until 3
        ("c0", "0R0.0(grad:server)", 2, 8.75, 500),
        ("server", "1F0.0", 3.25, 5.25, 0),
        ("server", "1B0.0", 5.25, 6.25, 0),
        ("server", "0R0.1(act:c0)", 6.25, 6.25, 1000),  # there since 5.25
        ("server", "0S0.0(grad:c0)", 6.25, 8.25, 500),
        ("server", "1F0.1", 6.25, 8.25, 0),
        ("server", "1B0.1", 8.25, 9.25, 0),
        ("c0", "0B0.0", 8.75, 9.75, 0),
        ("server", "1U0", 9.25, 9.25, 0),
        ("server", "0S0.1(grad:c0)", 9.25, 11.25, 500),
        ("c0", "0R0.1(grad:server)", 9.75, 11.75, 500),
        ("c0", "0B0.1", 11.75, 12.75, 0),
        ("c0", "0U0", 12.75, 13.25, 0),
    ]
    assert timeline.makespan == 13.25
    assert timeline.busy == {"c0": 4.5, "server": 6}
    assert timeline.idle == {"c0": 1 - 4.5 / 13.25, "server": 1 - 6 / 13.25}
    assert timeline.bubble == 7.25
    assert timeline.traffic == {("c0", "server"): 2000, ("server", "c0"): 1000}
    # c0: weights 10, and from 2 to 3 both stashes (140) and both outputs (2000), the first still leaving
    # server: weights 20; from 5.25 the first stash (30), the gradient it makes (500) and the second activation (1000)
    assert timeline.peak_memory == {"c0": 10 + 140 + 2000, "server": 20 + 1000 + 30 + 500}
    assert str(timeline.order("server")[1]) == "1F0.0"


def test_backwards_go_before_forwards_and_readiness_and_client_break_ties():
    topology = Topology(clients=(0, 1, 2), placement=("client", "server"))
    stages = [StageCost(forward=1), StageCost(forward=2, weight=1)]
    schedule = lower(sequential(topology), topology)

    def order(pace: dict[str, float], slots: int = 1) -> str:
        costs = stage_costs(stages, pace=pace, slots={"server": slots})
        program = simulate(schedule, topology, costs).order("server")
        return " ".join(str(i) for i in program if i.op in (Op.FORWARD, Op.BACKWARD))

    assert order({}) == "1F0.0 1B0.0 1F1.0 1B1.0 1F2.0 1B2.0"
    assert order({"c0": 2.5, "c2": 2}) == "1F1.0 1B1.0 1F2.0 1B2.0 1F0.0 1B0.0"
    assert order({"c0": 1.5, "c2": 0.5}) == "1F2.0 1B2.0 1F1.0 1B1.0 1F0.0 1B0.0"
    assert order({}, slots=2) == "1F0.0 1F1.0 1B0.0 1B1.0 1F2.0 1B2.0"
    assert order({}, slots=3) == "1F0.0 1F1.0 1F2.0 1B0.0 1B1.0 1B2.0"


def test_a_shared_stage_keeps_its_order_whoever_arrives_first():
    tail = frozenset({1})
    topology = Topology(clients=(0, 1), placement=("client", "server"), shared=tail, joint=tail)
    costs = stage_costs([StageCost(forward=1), StageCost(forward=1)], pace={"c0": 9}, slots={"server": 4})
    order = simulate(lower(sequential(topology), topology), topology, costs).order("server")
    assert [str(i) for i in order if i.kind is None] == ["1F0.0", "1B0.0", "1F1.0", "1B1.0", "1U"]


def test_pipar_beats_sequential_when_links_are_slow():
    topology = Topology(clients=(0, 1), placement=("client", "server"), micro_batches=4)
    stages = [StageCost(forward=1, weight=1, activation=100), StageCost(forward=1, backward=1, weight=1)]
    far = Link(200, 2)
    links = {pair: far for c in ("c0", "c1") for pair in ((c, "server"), ("server", c))}
    costs = stage_costs(stages, links=links, slots={"server": 2})
    times = {}
    for name, generate in GENERATORS.items():
        times[name] = simulate(lower(generate(topology), topology), topology, costs).makespan
    assert times["pipar"] < 0.6 * times["sequential"]
    assert times["pipar-1f1b"] < 0.6 * times["sequential"]


def test_a_codec_takes_a_slot():
    base = stage_costs([StageCost(forward=1, activation=8)] * 2)

    def seconds(actor: str, instruction) -> float:
        return 0.25 if instruction.kind else base.seconds(actor, instruction)

    costs = type(base)(seconds=seconds, message=base.message, held=base.held, link=base.link, slots=base.slots)
    topology = Topology(clients=(0,), placement=("client", "server"))
    timeline = simulate(lower(sequential(topology), topology), topology, costs)
    assert timeline.makespan == 3  # F, encode, decode, F, encode, decode
    assert timeline.busy == {"c0": 1.5, "server": 1.5}


def test_uneven_micro_batches_pace_and_overhead():
    costs = stage_costs(
        [StageCost(forward=2, weight=4, step=6, activation=10)],
        pace={"c0": 0.5},
        size=lambda _, micro: 3 if micro == 0 else 1,
        overhead=0.125,
    )
    topology = Topology(clients=(0,), placement=("client",), micro_batches=2)
    timeline = simulate(lower(sequential(topology), topology), topology, costs)
    assert [event.end - event.start for event in timeline.events] == [3.125, 6.125, 1.125, 2.125, 3]


def test_a_schedule_that_cannot_go_on_is_refused():
    schedule = parse("""
        c0: 0F0.0 0S0.0(act:server) 0R0.0(grad:server) 0B0.0 0F0.1 0S0.1(act:server) 0R0.1(grad:server) 0B0.1
        server: 0R0.1(act:c0) 1F0.1 1B0.1 0S0.1(grad:c0) 0R0.0(act:c0) 1F0.0 1B0.0 0S0.0(grad:c0)
        """)
    with pytest.raises(ScheduleError, match="nobody can go on: 14 instructions are left"):
        simulate(schedule, SPLIT, stage_costs([StageCost(), StageCost()]))


@pytest.mark.parametrize("generate", GENERATORS.values(), ids=GENERATORS)
@settings(max_examples=25, deadline=None)
@given(
    clients=st.integers(1, 4),
    micro=st.integers(1, 5),
    roles=st.sampled_from(["replica", "shared", "joint"]),
    slots=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_timelines_obey_lanes_links_and_slots(generate, clients, micro, roles, slots, seed):
    tail = frozenset() if roles == "replica" else frozenset({1})
    topology = Topology(
        clients=tuple(range(clients)),
        placement=("client", "server"),
        micro_batches=micro,
        shared=tail,
        joint=tail if roles == "joint" else frozenset(),
        aggregated=frozenset({0}),
        steps=2,
    )
    pick = random.Random(seed)
    times = [[pick.random() for _ in range(4)] for _ in range(2)]
    stages = [StageCost(forward=f, backward=b, weight=w, step=u, activation=100, params=50) for f, b, w, u in times]
    links = {(f"c{c}", "server"): Link(pick.uniform(50, 500), pick.random()) for c in range(clients)}
    schedule = build(generate, topology)
    costs = stage_costs(stages, links=links, slots={"server": slots})
    prepared = prepare(schedule, topology)
    timeline = play(prepared, costs)
    assert play(prepared, costs) == timeline
    assert Counter((e.actor, e.instruction) for e in timeline.events) == Counter(
        (actor, i) for actor, program in schedule.items() for i in program
    )
    computing = [e for e in timeline.events if e.instruction.kind is None and e.end > e.start]
    for event in computing:
        together = [e for e in computing if e.actor == event.actor and e.start <= event.start < e.end]
        assert len(together) <= (slots if event.actor == "server" else 1)
    compute_ends: dict[tuple[str, object], list[float]] = {}
    for event in computing:
        compute_ends.setdefault((event.actor, event.instruction), []).append(event.end)
    for node in prepared.nodes:
        for earlier in (prepared.nodes[number] for number in node.before if number != node.sent):
            first, second = (earlier.actor, earlier.instruction), (node.actor, node.instruction)
            if first in compute_ends and second in compute_ends and first != second:
                assert compute_ends[first][0] <= compute_ends[second][-1]
    for (sender, receiver), nbytes in timeline.traffic.items():
        sent = [e for e in timeline.events if e.instruction.op is Op.SEND and e.actor == sender]
        assert nbytes == sum(e.nbytes for e in sent if e.instruction.peer == receiver)
    assert timeline.makespan >= max(busy / timeline.slots[actor] for actor, busy in timeline.busy.items()) - 1e-9
