from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitfl.schedule import GENERATORS, Entry, Op, Program, Topology, build, graph, lanes, parse_program

MOVES = (Op.SEND, Op.RECV)


def earlier(program: Program, topology: Topology) -> list[set[int]]:
    """For every position, all positions that its lane and its waits put before it."""
    before: list[set[int]] = [set() for _ in program]
    direct: list[set[int]] = [set() for _ in program]
    for entries in lanes(program, topology).values():
        for i, entry in enumerate(entries):
            direct[entry.position] = {*entry.after, *(e.position for e in entries[i - 1 : i] if i)}
    for position, ahead in enumerate(direct):
        assert all(other < position for other in ahead)
        before[position] = ahead.union(*(before[other] for other in ahead))
    return before


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_lanes_hold_every_instruction_once_and_keep_what_must_be_in_order(small_topologies, data):
    topology = data.draw(small_topologies)
    generate = data.draw(st.sampled_from(list(GENERATORS.values())))
    for program in build(generate, topology).values():
        split = lanes(program, topology)
        found = sorted((entry.position, entry.instruction) for entries in split.values() for entry in entries)
        assert found == list(enumerate(program))
        before = earlier(program, topology)
        for key, entries in split.items():
            assert all(e.instruction.client == key or e.instruction.op is Op.AGGREGATE for e in entries)
            assert all(not {e.position for e in entries} & set(e.after) for e in entries)
        for j, second in enumerate(program):
            for i, first in enumerate(program[:j]):
                if first.stage == second.stage:
                    computes = first.op not in MOVES and second.op not in MOVES
                    if first.client is None or second.client is None or (computes and first.stage in topology.shared):
                        assert i in before[j], f"{first} and {second} have no order"


def test_replicas_are_independent():
    topology = Topology(clients=(0, 1), placement=("client", "server"))
    program = parse_program("1F0.0 1F1.0 1B0.0 1B1.0 1U0 1U1")
    assert {key: [e.position for e in lane] for key, lane in lanes(program, topology).items()} == {
        0: [0, 2, 4],
        1: [1, 3, 5],
    }
    assert not any(entry.after for lane in lanes(program, topology).values() for entry in lane)


def test_a_shared_stage_keeps_the_order_of_the_program():
    tail = frozenset({1})
    topology = Topology(clients=(0, 1), placement=("client", "server"), shared=tail, joint=tail)
    program = parse_program("0R0.0(act:c0) 1F0.0 0R1.0(act:c1) 1F1.0 1B0.0 0S0.0(grad:c0) 1B1.0 0S1.0(grad:c1) 1U")
    waits = {e.position: e.after for lane in lanes(program, topology).values() for e in lane}
    assert waits == {0: (), 1: (), 2: (), 3: (1,), 4: (3,), 5: (), 6: (4,), 7: (), 8: (4, 6)}


def test_an_average_waits_for_every_client_and_is_waited_for():
    topology = Topology(clients=(0, 1), placement=("client",), aggregated=frozenset({0}))
    program = parse_program("0R0(params:c0) 0R1(params:c1) 0A 0S0(avg:c0) 0S1(avg:c1)")
    assert lanes(program, topology) == {
        0: (Entry(0, program[0]), Entry(3, program[3], (2,))),
        1: (Entry(1, program[1]), Entry(4, program[4], (2,))),
        None: (Entry(2, program[2], (0, 1)),),
    }


@pytest.mark.parametrize("generate", GENERATORS.values(), ids=GENERATORS)
def test_the_graph_pairs_every_recv_with_the_send_of_its_mini_batch(generate):
    topology = Topology(clients=(0,), placement=("client", "server"), micro_batches=2, steps=3)
    nodes = graph(build(generate, topology), topology)
    recvs = [node for node in nodes if node.instruction.op is Op.RECV]
    assert len(recvs) == 12
    for name in {(node.actor, node.instruction) for node in recvs}:
        sends = [nodes[node.sent].position for node in recvs if (node.actor, node.instruction) == name]
        assert sends == sorted(set(sends))
        assert len(sends) == 3
