from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitfl.schedule import (
    GENERATORS,
    Generator,
    Instruction,
    Kind,
    Op,
    ScheduleError,
    Topology,
    arrange,
    build,
    check,
    closing,
    federate,
    generator,
    gpipe,
    lower,
    one_f_one_b,
    opening,
    parse,
    pipar,
    pipar_1f1b,
    program_text,
    sequential,
    text,
    walk,
)

ALL = pytest.mark.parametrize("generate", GENERATORS.values(), ids=GENERATORS)


@ALL
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_generator_on_any_topology_is_proved_and_survives_its_text(generate, topologies, data):
    topology = data.draw(topologies)
    schedule = build(generate, topology)
    assert parse(text(schedule)) == schedule
    assert lower(schedule, topology) == schedule


@ALL
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_opening_steps_and_closing_make_a_round(generate, topologies, data):
    topology = data.draw(topologies)
    within = topology.without_aggregation()
    step = lower(generate(within), within)
    check(step, within)
    parts = [opening(topology), *[step] * topology.steps, closing(topology)]
    check({a: tuple(i for part in parts for i in part.get(a, ())) for a in topology.actors}, topology)


def test_nothing_travels_when_all_is_on_one_actor():
    topology = Topology(clients=(3,), placement=("client", "client"), micro_batches=2)
    assert {i.op for i in build(sequential, topology)["c3"]} == {Op.FORWARD, Op.BACKWARD, Op.STEP}


def test_a_local_loss_stops_the_gradient():
    topology = Topology(clients=(0,), placement=("client", "server"), losses=frozenset({0}))
    assert (
        text(build(pipar, topology)) == "c0: 0F0.0 0S0.0(act:server) 0B0.0 0U0\nserver: 0R0.0(act:c0) 1F0.0 1B0.0 1U0\n"
    )


def test_splitfed_v1_round_as_text():
    topology = Topology(clients=(0,), placement=("client", "server"), aggregated=frozenset({0, 1}))
    assert text(build(sequential, topology)) == (
        "c0: 0R0(avg:server) 0L0 0F0.0 0S0.0(act:server) 0R0.0(grad:server) 0B0.0 0U0 0S0(params:server)\n"
        "server: 0S0(avg:c0) 1L0 0R0.0(act:c0) 1F0.0 1B0.0 0S0.0(grad:c0) 1U0 0R0(params:c0) 0A 1A\n"
    )


def test_weights_travel_once_per_round():
    topology = Topology(clients=(0,), placement=("client", "server"), aggregated=frozenset({0}), steps=3)
    program = build(pipar, topology)["c0"]
    assert [i.op for i in program if i.kind in (Kind.PARAMS, Kind.AVG)] == [Op.RECV, Op.SEND]
    assert program[-2:] == (Instruction(Op.STEP, 0, 0), Instruction(Op.SEND, 0, 0, kind=Kind.PARAMS, peer="server"))


def test_clients_of_a_shared_tail_take_a_step_each_in_turn():
    topology = Topology(clients=(0, 2), placement=("client", "server"), micro_batches=2, shared=frozenset({1}))
    for generate in GENERATORS.values():
        steps = [i.client for i in generate(topology)["server"]]
        assert steps == sorted(steps)
        assert [i for i in generate(topology)["server"] if i.op is Op.STEP] == [
            Instruction(Op.STEP, 1, 0),
            Instruction(Op.STEP, 1, 2),
        ]


def test_clients_of_a_joint_tail_alternate_and_share_one_step():
    tail = frozenset({1})
    topology = Topology(clients=(0, 1), placement=("client", "server"), micro_batches=2, shared=tail, joint=tail)
    assert program_text(pipar(topology)["server"]) == "1F0.0 1B0.0 1F1.0 1B1.0 1F0.1 1B0.1 1F1.1 1B1.1 1U"


def test_a_merged_tail_computes_once_all_have_sent():
    tail = frozenset({1})
    topology = Topology(
        clients=(0, 1), placement=("client", "server"), micro_batches=2, shared=tail, joint=tail, merged=tail
    )
    assert program_text(pipar(topology)["server"]) == "1F.0 1B.0 1F.1 1B.1 1U"
    assert program_text(build(pipar, topology)["server"]) == (
        "0R0.0(act:c0) 0R1.0(act:c1) 1F.0 1B.0 0S0.0(grad:c0) 0S1.0(grad:c1) "
        "0R0.1(act:c0) 0R1.1(act:c1) 1F.1 1B.1 0S0.1(grad:c0) 0S1.1(grad:c1) 1U"
    )


def test_chunks_go_forward_in_order_and_back_in_reverse():
    topology = Topology(clients=(0,), placement=("client", "server"), chunks=3)
    assert program_text(pipar(topology)["c0"]) == "0F0.0 0F0.0.1 0F0.0.2 0B0.0.2 0B0.0.1 0B0.0 0U0"


def test_gpipe_and_1f1b_hold_the_stashes_that_their_papers_say():
    for depth in range(1, 6):
        for count in range(1, 9):
            places = tuple(f"s{stage}" for stage in range(depth))
            topology = Topology(clients=(0,), placement=places, micro_batches=count)
            peaks = check(lower(one_f_one_b(topology), topology), topology).peaks
            assert [peaks[p][Kind.STASH] for p in places] == [min(depth - stage, count) for stage in range(depth)]
            peaks = check(lower(gpipe(topology), topology), topology).peaks
            assert [peaks[place][Kind.STASH] for place in places] == [count] * depth


def test_pipar_holds_all_activations_and_its_1f1b_order_only_those_in_flight():
    topology = Topology(clients=(0,), placement=("client", "server"), micro_batches=9)
    assert walk(lower(pipar(topology), topology), topology).peaks["c0"][Kind.STASH] == 9
    assert walk(lower(pipar_1f1b(topology, in_flight=3), topology), topology).peaks["c0"][Kind.STASH] == 3
    with pytest.raises(ValueError, match=r"in_flight = 0, expected 1 or more"):
        pipar_1f1b(topology, in_flight=0)


def two_at_a_time(topology: Topology) -> dict[str, tuple[Instruction, ...]]:
    """A user's own generator: pairs of micro-batches go up together and come down together."""

    def order(topology: Topology, client: int):
        micros = topology.micro(client)
        for first in micros[::2]:
            pair = micros[first : first + 2]
            yield from (Instruction(Op.FORWARD, s, client, m) for m in pair for s in range(topology.stages))
            yield from (Instruction(Op.BACKWARD, s, client, m) for m in pair for s in reversed(range(topology.stages)))

    return arrange(topology, order)


def deferred_weights(topology: Topology) -> dict[str, tuple[Instruction, ...]]:
    """A user's own generator without `arrange`: gradients go out before the weight gradients are computed."""
    (client,) = topology.clients
    micros = topology.micro(client)
    front = [Instruction(Op.FORWARD, 0, client, m) for m in micros]
    front += [Instruction(Op.BACKWARD, 0, client, m) for m in micros]
    tail = [Instruction(op, 1, client, m) for m in micros for op in (Op.FORWARD, Op.BACKWARD_INPUT)]
    tail += [Instruction(Op.BACKWARD_WEIGHT, 1, client, m) for m in micros]
    return {
        f"c{client}": (*front, Instruction(Op.STEP, 0, client)),
        "server": (*tail, Instruction(Op.STEP, 1, client)),
    }


@pytest.mark.parametrize("generate", [two_at_a_time, deferred_weights])
def test_a_users_generator_goes_wherever_a_built_in_goes(generate: Generator):
    topology = Topology(
        clients=(1,), placement=("client", "server"), micro_batches=5, aggregated=frozenset({0, 1}), steps=2
    )
    schedule = build(generate, topology)
    assert parse(text(schedule)) == schedule


def test_a_wrong_generator_is_refused_with_its_place():
    topology = Topology(clients=(0,), placement=("client", "server"), micro_batches=2)

    def hasty(topology: Topology):
        programs = sequential(topology)
        return {**programs, "c0": programs["c0"][1:]}

    with pytest.raises(ScheduleError, match=r"c0, position 0, 0B0.0: needs stash\[0,0,0\], which nobody makes for it"):
        build(hasty, topology)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("server: 1F0.0", r"server, position 0, 1F0.0: needs act\[0,0,0\], which nobody makes for it"),
        ("c0: 0B0.0 0F0.0", r"c0, position 0, 0B0.0: needs stash\[0,0,0\], which c0 makes only later, at position 1"),
        ("c0: 0F0.0\nserver: 0B0.0", r"needs stash\[0,0,0\], which is made on c0, and a stash cannot travel"),
        ("c0: 0F0.0 0F0.0\nserver: 1F0.0\nedge: 1F0.0", r"act\[0,0,0\], which more than one actor makes or consumes"),
    ],
)
def test_what_cannot_be_lowered_is_refused_with_its_place(source, message):
    topology = Topology(clients=(0,), placement=("client", "server"))
    with pytest.raises(ScheduleError, match=message):
        lower(parse(source), topology)


def test_names_are_looked_up_and_misspelt_ones_refused():
    assert generator("pipar") is pipar
    with pytest.raises(ValueError, match=r"schedule = 'pippar', expected one of sequential, .*; did you mean pipar\?"):
        generator("pippar")


def test_federating_leaves_unaggregated_stages_alone():
    topology = Topology(clients=(0,), placement=("client", "server"), steps=2)
    step = sequential(topology)
    assert federate(step, topology) == {actor: program * 2 for actor, program in step.items()}
