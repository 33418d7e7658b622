from __future__ import annotations

import pytest

from splitfl.schedule import Instruction, Kind, Op, Topology, Value, effects, initial_values

GOOD = {"clients": (0, 1), "placement": ("client", "server")}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"placement": ()}, "placement = "),
        ({"placement": ("client", "a b")}, "placement = .* expected names of letters"),
        ({"clients": ()}, "clients = "),
        ({"clients": (1, 0)}, "clients = .* ascending"),
        ({"clients": (-1,)}, "clients = "),
        ({"chunks": 0}, "chunks = 0, expected 1 or more"),
        ({"steps": 0}, "steps = 0, expected 1 or more"),
        ({"micro_batches": 0}, "micro_batches = 0, expected 1 or more"),
        ({"micro_batches": (1, 2, 3)}, "micro_batches = .* expected 2 numbers, one per client"),
        ({"losses": frozenset({2})}, "losses = .* expected stages between 0 and 1"),
        ({"shared": frozenset({0})}, "shared = .* not placed on the client"),
        ({"joint": frozenset({1})}, "joint = .* a subset of the shared stages"),
        ({"merged": frozenset({1})}, "merged = .* joint stages: the last ones"),
        ({"shared": {1}, "joint": {1}, "merged": {1}, "micro_batches": (1, 2)}, "micro_batches = .* the same number"),
        ({"shared": frozenset({1}), "aggregated": frozenset({1})}, "aggregated = .* stages that are not shared"),
        ({"aggregator": "client"}, "aggregator = 'client', expected the name of an actor"),
    ],
)
def test_a_contradiction_names_its_field(changed, message):
    with pytest.raises(ValueError, match=f"topology: {message}"):
        Topology(**{**GOOD, **changed})


def test_survivors_keep_their_micro_batches():
    topology = Topology(clients=(0, 2, 5), placement=("client", "server"), micro_batches=(1, 2, 3))
    assert topology.only([5, 0]) == Topology(clients=(0, 5), placement=("client", "server"), micro_batches=(1, 3))
    with pytest.raises(ValueError, match="unknown client 7, expected one of 0, 2, 5"):
        topology.micro(7)


def test_actors_are_clients_first_then_places_then_the_aggregator():
    topology = Topology(**GOOD, aggregated=frozenset({0}), aggregator="hub")
    assert topology.actors == ("c0", "c1", "server", "hub")


def test_the_table_of_effects():
    topology = Topology(clients=(0,), placement=("client", "server", "server"), losses=frozenset({1}))
    act, grad, stash = (Value(kind, 0, 0, 0) for kind in (Kind.ACT, Kind.GRAD, Kind.STASH))
    params = Value(Kind.PARAMS, 0, 0)
    assert effects(Instruction(Op.FORWARD, 0, 0, 0), topology) == ((), (params,), (act, stash))
    assert effects(Instruction(Op.BACKWARD, 0, 0, 0), topology) == (
        (stash, grad),
        (params,),
        (Value(Kind.PGRAD, 0, 0, 0),),
    )
    # the loss at stage 1 needs no gradient from above, and stage 2 sends none down to it
    assert effects(Instruction(Op.BACKWARD, 1, 0, 0), topology).consumes == (Value(Kind.STASH, 1, 0, 0),)
    assert effects(Instruction(Op.BACKWARD, 2, 0, 0), topology).writes == (Value(Kind.PGRAD, 2, 0, 0),)


def test_averages_wait_at_the_aggregator_and_other_weights_where_they_live():
    topology = Topology(
        clients=(0, 1), placement=("client", "server"), aggregated=frozenset({0}), shared=frozenset({1})
    )
    assert {str(value): actor for value, actor in initial_values(topology).items()} == {
        "avg[0,0]": "server",
        "avg[0,1]": "server",
        "params[1]": "server",
    }
