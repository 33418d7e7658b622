from __future__ import annotations

import pytest

from splitfl.planning import Cut, Link, Setting, StageFigures, choose, evaluate
from splitfl.schedule import Topology, pipar, pipar_1f1b, sequential

MIB = 2**20


def topology(cut: Cut, micro_batches: int) -> Topology:
    return Topology(
        clients=(0, 1),
        placement=("client", "server"),
        micro_batches=micro_batches,
        aggregated=frozenset({0, 1}),
        steps=3,
    )


def setting(**changed) -> Setting:
    fields = {
        "topology": topology,
        "generate": pipar,
        "batch": 16,
        "flops": {"c0": 1e9, "c1": 2e9, "server": 20e9},
        "links": {(a, b): Link(5e6, 0.02) for c in ("c0", "c1") for a, b in ((c, "server"), ("server", c))},
        "overhead": 1e-3,
    }
    return Setting(**{**fields, **changed})


EARLY = Cut(
    name="block1",
    stages=(StageFigures(flops=5e6, activation=64e3, stash=300e3, params=10_000), StageFigures(flops=95e6)),
)
LATE = Cut(
    name="block3",
    stages=(StageFigures(flops=60e6, activation=8e3, stash=900e3, params=2 * MIB), StageFigures(flops=40e6)),
)


def test_all_pairs_are_ranked_by_predicted_time():
    choices = choose([EARLY, LATE], range(1, 33), setting())
    assert len(choices) == 2 * 16
    assert [c.seconds for c in choices] == sorted(c.seconds for c in choices)
    best = min((evaluate(cut, k, setting()).seconds, cut.name, k) for cut in (EARLY, LATE) for k in range(1, 17))
    assert (choices[0].seconds, choices[0].cut.name, choices[0].micro_batches) == best
    assert 1 < choices[0].micro_batches < 16  # more overlap at first, then the overhead eats it


def test_a_round_is_opening_steps_and_closing():
    """One client at 1 FLOP/s, two samples of 3 FLOP: F 6, B (weights only) 6, U 0; 10 bytes each way at 5 B/s."""
    whole = Cut(name="none", stages=(StageFigures(flops=3, stash=7, params=10),))

    def alone(cut: Cut, micro_batches: int) -> Topology:
        return Topology(
            clients=(0,), placement=("client",), micro_batches=micro_batches, aggregated=frozenset({0}), steps=3
        )

    choice = evaluate(
        whole,
        1,
        setting(
            topology=alone,
            generate=sequential,
            batch=2,
            flops={"c0": 1.0},
            links={("server", "c0"): Link(5, 1), ("c0", "server"): Link(5, 1)},
            memory={"c0": 44},
            overhead=0.0,
        ),
    )
    assert choice.seconds == 3 + 3 * 12 + 3
    assert choice.nbytes == 20
    assert choice.step.makespan == 12
    assert choice.memory["c0"] == 3 * 10 + 2 * 7
    assert choice.fits
    assert not evaluate(whole, 1, setting(topology=alone, batch=2, flops={"c0": 1.0}, memory={"c0": 43})).fits


def test_what_does_not_fit_comes_last():
    choices = choose([LATE, EARLY], [1, 4], setting(memory={"c0": 6 * MIB}))
    assert [(c.cut.name, c.fits) for c in choices] == [("block1", True)] * 2 + [("block3", False)] * 2


def test_more_micro_batches_fit_where_fewer_do_not():
    """Four of eight micro-batches in flight hold half the activations."""
    choices = choose([EARLY], [4, 8], setting(generate=pipar_1f1b, memory={"c0": 4 * MIB}))
    assert [(c.micro_batches, c.fits) for c in choices] == [(8, True), (4, False)]


def test_nothing_to_choose_from_is_refused():
    with pytest.raises(ValueError, match=r"nothing to choose from: 1 cuts, micro-batches \[\] of a batch 16"):
        choose([EARLY], [17, 0], setting())
    with pytest.raises(ValueError, match="nothing to choose from: 0 cuts"):
        choose([], [1], setting())
