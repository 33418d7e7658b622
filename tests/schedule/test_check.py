"""The checker is attacked with mutants: one instruction dropped, doubled, or swapped with one that it depends on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitfl.schedule import (
    GENERATORS,
    Instruction,
    Op,
    Schedule,
    ScheduleError,
    Topology,
    build,
    check,
    effects,
    lanes,
    lower,
    parse,
    pipar,
    sequential,
    transfer,
    walk,
)

TAIL = frozenset({1})
TAILS = frozenset({1, 2})
BOTH = frozenset({0, 1})
TOPOLOGIES = {
    "fedavg": Topology(clients=(0, 1), placement=("client",), aggregated=frozenset({0}), steps=2),
    "splitfed-v1": Topology(clients=(0, 2), placement=("client", "server"), micro_batches=2, aggregated=BOTH, steps=2),
    "splitfed-v2": Topology(clients=(0, 1), placement=("client", "server"), shared=TAIL, aggregated=frozenset({0})),
    "joint": Topology(clients=(0, 1), placement=("client", "server"), micro_batches=(1, 2), shared=TAIL, joint=TAIL),
    "merged": Topology(
        clients=(0, 1),
        placement=("client", "server", "server"),
        micro_batches=2,
        shared=TAILS,
        joint=TAILS,
        merged=TAILS,
    ),
    "local": Topology(clients=(0,), placement=("client", "server"), losses=frozenset({0}), micro_batches=2, steps=2),
    "u-shaped": Topology(clients=(0, 1), placement=("client", "server", "client"), micro_batches=2, chunks=2),
    "edge": Topology(clients=(0,), placement=("client", "edge", "server"), micro_batches=3, aggregated=BOTH),
}


def touches(first: Instruction, second: Instruction, topology: Topology) -> bool:
    """Whether the order of two instructions of one actor matters."""
    a, b = effects(first, topology), effects(second, topology)
    changed_a, changed_b = {*a.consumes, *a.writes}, {*b.consumes, *b.writes}
    return bool(changed_a & {*changed_b, *b.reads} or changed_b & {*changed_a, *a.reads})


def mutants(schedule: Schedule, topology: Topology) -> Iterator[tuple[str, Schedule]]:
    for actor, program in schedule.items():
        for i, instruction in enumerate(program):
            yield f"{actor}: {instruction} dropped", {**schedule, actor: program[:i] + program[i + 1 :]}
            yield f"{actor}: {instruction} doubled", {**schedule, actor: program[: i + 1] + program[i:]}
        neighbors = {(i, i + 1) for i in range(len(program) - 1)}
        for entries in lanes(program, topology).values():
            neighbors |= {(a.position, b.position) for a, b in pairwise(entries)}
        for i, j in sorted(neighbors):
            if program[i] != program[j] and touches(program[i], program[j], topology):
                swapped = list(program)
                swapped[i], swapped[j] = swapped[j], swapped[i]
                yield f"{actor}: {program[i]} and {program[j]} swapped", {**schedule, actor: tuple(swapped)}


def refused(mutant: Schedule, topology: Topology) -> str | None:
    """The checker's message, None if it lets the mutant pass."""
    try:
        check(mutant, topology)
    except ScheduleError as error:
        return str(error)
    return None


@pytest.mark.parametrize("generate", GENERATORS.values(), ids=GENERATORS)
@pytest.mark.parametrize("topology", TOPOLOGIES.values(), ids=TOPOLOGIES)
def test_every_mutant_is_refused_with_its_place(generate, topology):
    schedule = build(generate, topology)
    for name, mutant in mutants(schedule, topology):
        message = refused(mutant, topology)
        assert message is not None, f"{name} passed"
        assert any(actor in message for actor in topology.actors), message


KEPT = Topology(
    clients=(0, 3),
    placement=("client", "client", "server"),
    micro_batches=(1, 2),
    frozen=BOTH,
    stored=frozenset({2}),
    aggregated=BOTH,
    chunks=2,
)


@pytest.mark.parametrize("topology", [KEPT, KEPT.without_aggregation()])
def test_mutants_of_a_transfer_are_refused(topology):
    schedule = build(transfer, topology)
    assert {at.op for at in schedule["server"]} - {Op.AGGREGATE, Op.SEND, Op.RECV} == {Op.STORE}
    for name, mutant in mutants(schedule, topology):
        assert refused(mutant, topology) is not None, f"{name} passed"


@pytest.mark.parametrize(
    ("actor", "token", "message"),
    [
        ("c0", "0U0", "stage 0 is frozen: it only runs forward"),
        ("c0", "0B0.0", "stage 0 is frozen: it only runs forward"),
        ("server", "2F0.0", "stage 2 only keeps what arrives"),
        ("c0", "0K0.0", "stage 0 learns"),
    ],
)
def test_nobody_trains_in_a_transfer(actor, token, message):
    topology = KEPT.without_aggregation()
    schedule = build(transfer, topology)
    extra = parse(f"{actor}: {token}")[actor]
    with pytest.raises(ScheduleError, match=message):
        check({**schedule, actor: schedule[actor] + extra}, topology)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"stored": {1}}, "stored"),
        ({"stored": {2}}, "frozen"),
        ({"stored": {2}, "frozen": {0}}, "frozen"),
        ({"placement": ("client", "client", "client"), "stored": {2}, "frozen": {0, 1}}, "stored"),
    ],
)
def test_only_the_last_stage_keeps_and_all_before_it_are_frozen(parts, message):
    sets = {name: frozenset(value) if name != "placement" else value for name, value in parts.items()}
    with pytest.raises(ValueError, match=message):
        Topology(clients=(0,), **{"placement": ("client", "client", "server"), **sets})


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_mutants_of_any_topology_are_refused(small_topologies, data):
    topology = data.draw(small_topologies)
    schedule = build(data.draw(st.sampled_from(list(GENERATORS.values()))), topology)
    everything = list(mutants(schedule, topology))
    chosen = data.draw(st.lists(st.sampled_from(everything), min_size=1, max_size=20, unique_by=lambda pair: pair[0]))
    for name, mutant in chosen:
        assert refused(mutant, topology) is not None, f"{name} passed"


SPLIT = Topology(clients=(0, 1), placement=("client", "server"), micro_batches=2, aggregated=frozenset({0}))


def without(schedule: Schedule, actor: str, *gone: str) -> Schedule:
    return {**schedule, actor: tuple(i for i in schedule[actor] if str(i) not in gone)}


@pytest.mark.parametrize(
    ("actor", "gone", "message"),
    [
        ("c1", ["0U1"], r"^c1: 0U1 is missing: 0 of 1 found"),
        ("server", ["0A"], r"^server: 0A is missing: 0 of 1 found"),
        ("c0", ["0L0"], r"^c0: 0L0 is missing"),
        ("c0", ["0B0.1"], r"^c0: 0B0.1 \(or 0I0.1 and 0W0.1\) is missing: 0 of 1 found"),
        ("c0", ["0S0.1(act:server)"], r"^server, position \d+, 0R0.1\(act:c0\): waits for act\[0,0,1\], but c0 has no"),
        ("server", ["0R0.1(act:c0)"], r"^c0, position \d+, 0S0.1\(act:server\): act\[0,0,1\] is sent, but server has"),
    ],
)
def test_what_is_missing_is_named(actor, gone, message):
    with pytest.raises(ScheduleError, match=message):
        check(without(build(pipar, SPLIT), actor, *gone), SPLIT)


def test_a_whole_missing_micro_batch_is_noticed():
    schedule = build(sequential, SPLIT)
    mutant = {a: tuple(i for i in p if (i.client, i.micro_batch) != (1, 1)) for a, p in schedule.items()}
    with pytest.raises(ScheduleError, match=r"c1: 0F1.1 is missing"):
        check(mutant, SPLIT)


@pytest.mark.parametrize(
    ("actor", "token", "message"),
    [
        ("c0", "1F0.0", "belongs on server"),
        ("server", "0B0.0", "belongs on c0"),
        ("c0", "0F1.0", "belongs on c1"),
        ("c0", "7F0.0", "unknown stage 7, expected 0 to 1"),
        ("c0", "0F9.0", "unknown client 9, expected one of 0, 1"),
        ("c0", "0F0.5", "unknown micro-batch 5 of client 0"),
        ("c0", "0F0.0.1", "unknown chunk 1, expected 0 to 0"),
        ("server", "1A", "stage 1 is not aggregated"),
        ("server", "1U", "names no client"),
        ("c0", "0S0.0(act:c7)", "'c7' is no other actor, expected one of c0, c1, server"),
        ("c0", "0S0.0(act:c0)", "'c0' is no other actor"),
        ("c0", "0F0.0", "comes 2 times, expected 1"),
        ("c0", "0I0.0", "is one backward too many: 2, expected 1"),
        ("c0", "0W0.0", "comes 1 times, expected 0"),
    ],
)
def test_what_does_not_belong_is_refused(actor, token, message):
    schedule = build(pipar, SPLIT)
    (intruder,) = parse(f"x: {token}")["x"]
    with pytest.raises(ScheduleError, match=message) as caught:
        check({**schedule, actor: (*schedule[actor], intruder)}, SPLIT)
    assert (caught.value.actor, caught.value.instruction) == (actor, intruder)


def test_an_unknown_actor_is_refused():
    with pytest.raises(ScheduleError, match=r"unknown actor 'c5', expected one of c0, c1, server"):
        check({**build(pipar, SPLIT), "c5": ()}, SPLIT)


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("1F1.0", "stage 1 computes for all clients together: 1F.0"),
        ("1B.2", "unknown micro-batch 2"),
        ("0F.0", "names no client"),
    ],
)
def test_a_merged_stage_computes_once_for_all(token, message):
    topology = TOPOLOGIES["merged"]
    schedule = build(sequential, topology)
    extra = parse(f"server: {token}")["server"]
    with pytest.raises(ScheduleError, match=message):
        check({**schedule, "server": schedule["server"] + extra}, topology)


def test_a_single_step_on_a_joint_stage_is_refused():
    topology = TOPOLOGIES["joint"]
    schedule = build(pipar, topology)
    with pytest.raises(ScheduleError, match=r"stage 1 takes one joint step for all clients: 1U"):
        check({**schedule, "server": (*schedule["server"], Instruction(Op.STEP, 1, 0))}, topology)


def test_a_deadlock_says_what_everybody_waits_for():
    topology = Topology(clients=(0,), placement=("client", "server"), micro_batches=2)
    deadlock = parse("""
        c0: 0F0.0 0S0.0(act:server) 0R0.0(grad:server) 0B0.0   # waits for a gradient before the second forward ...
            0F0.1 0S0.1(act:server) 0R0.1(grad:server) 0B0.1 0U0
        server: 0R0.1(act:c0) 1F0.1 1B0.1 0S0.1(grad:c0)       # ... which the server wants to see first
            0R0.0(act:c0) 1F0.0 1B0.0 0S0.0(grad:c0) 1U0
        """)
    with pytest.raises(ScheduleError) as caught:
        check(deadlock, topology)
    assert str(caught.value) == (
        "nobody can go on: "
        "c0, position 2, 0R0.0(grad:server) waits for server, position 7, 0S0.0(grad:c0); "
        "server, position 0, 0R0.1(act:c0) waits for c0, position 5, 0S0.1(act:server)"
    )


def test_a_backward_must_see_the_weights_of_its_forward():
    tail = frozenset({0})
    source = "server: 0F0.0 0F1.0 0B0.0 0U0 0B1.0 0U1"
    places = {"clients": (0, 1), "placement": ("server",), "shared": tail}
    with pytest.raises(ScheduleError, match=r"server, position 4, 0B1.0: sees other weights .* params\[0\] changed"):
        check(parse(source), Topology(**places))
    check(parse(source), Topology(**places, stash_weights=True))


def test_what_is_left_over_is_refused_where_it_was_made():
    topology = Topology(clients=(0,), placement=("client", "server"))
    with pytest.raises(ScheduleError, match=r"c0, position 0, 0F0.0: makes act\[0,0,0\], which is left over"):
        walk(parse("c0: 0F0.0"), topology)
    with pytest.raises(ScheduleError, match=r"c0, position 1, 0F0.0: makes act\[0,0,0\], which c0 holds already"):
        walk(parse("c0: 0F0.0 0F0.0"), topology)


def test_a_client_may_run_ahead_when_no_gradient_comes_back():
    topology = Topology(clients=(0,), placement=("client", "a", "b"), losses=frozenset({0}), steps=5)
    assert walk(build(sequential, topology), topology).clock > 5


def test_a_message_that_is_sent_too_often_is_refused():
    topology = Topology(clients=(0,), placement=("client", "server"), losses=frozenset({0}))
    twice = {actor: program * 2 for actor, program in lower(sequential(topology), topology).items()}
    with pytest.raises(ScheduleError, match=r"act\[0,0,0\] is sent 2 times, expected 1, once per mini-batch"):
        walk(twice, topology)
