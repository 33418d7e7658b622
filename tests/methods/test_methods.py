"""Every method as a declaration: where its parts live, what is averaged, and which schedules it takes."""

from dataclasses import replace

import pytest

from splitfl.methods import METHODS, Method, pipar, splitfed_v1
from splitfl.schedule import CLIENT, GENERATORS, ScheduleError, build, closing, opening, text

TABLE = {
    # name: placement of three stages, shared stages, averaged stages, in turn, personal fronts
    "fedavg": ((CLIENT, CLIENT, CLIENT), set(), {0, 1, 2}, False, False),
    "sl": ((CLIENT, "server", "server"), {1, 2}, {0}, True, False),
    "splitfed-v1": ((CLIENT, "server", "server"), set(), {0, 1, 2}, False, False),
    "splitfed-v2": ((CLIENT, "server", "server"), {1, 2}, {0}, False, False),
    "splitfed-v3": ((CLIENT, "server", "server"), set(), {1, 2}, False, True),
    "pipar": ((CLIENT, "server", "server"), set(), {0, 1, 2}, False, False),
    "u-shaped": ((CLIENT, "server", CLIENT), set(), {0, 1, 2}, False, False),
    "parallel-sl": ((CLIENT, "server", "server"), {1, 2}, {0}, False, False),
    "epsl": ((CLIENT, "server", "server"), {1, 2}, {0}, False, False),
    "mergesfl": ((CLIENT, "server", "server"), {1, 2}, {0}, False, False),
    "scala": ((CLIENT, "server", "server"), {1, 2}, {0}, False, False),
    "vertical-sl": ((CLIENT, "server", "server"), {1, 2}, {0}, False, False),
    "gpsl": ((CLIENT, "server", "server"), {1, 2}, {0}, False, False),
    "async": ((CLIENT, "server", "server"), set(), {0, 1, 2}, False, False),
    "gas": ((CLIENT, "server", "server"), set(), {0, 1, 2}, False, False),
    "pipe-sgd": ((CLIENT, "server", "server"), set(), {0, 1, 2}, False, False),
    "local-loss": ((CLIENT, "server", "server"), {1, 2}, {0}, False, False),
    "cse-fsl": ((CLIENT, "server", "server"), {1, 2}, {0}, False, False),
    "fsl-sage": ((CLIENT, "server", "server"), {1, 2}, {0}, False, False),
    "ampere": ((CLIENT, "server", "server"), {1, 2}, {0}, False, False),
    "ecofed": ((CLIENT, "server", "server"), {1, 2}, {0}, False, False),
    "pipe-bd": ((CLIENT, "server", "server"), {1, 2}, {0}, False, False),
    "block-local": ((CLIENT, "server", "server"), {1, 2}, {0}, False, False),
}


def test_the_table_is_complete():
    assert set(TABLE) == set(METHODS)
    assert all(METHODS[name]().name == name for name in METHODS)


@pytest.mark.parametrize("name", TABLE)
def test_declaration(name):
    placement, shared, averaged, in_turn, personal = TABLE[name]
    method = METHODS[name]()
    topology = method.topology((0, 2, 5), stages=3)
    assert topology.placement == placement
    assert topology.shared == shared
    assert topology.aggregated == averaged
    assert method.in_turn is in_turn
    assert method.personal_front is personal
    assert "arXiv" in method.source


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("schedule", [None, *GENERATORS])
@pytest.mark.parametrize("clients", [(0,), (0, 1, 4)])
def test_every_schedule_carries_every_method(name, schedule, clients):
    """`build` proves it: every instruction once, in an order that can be carried out, with what it needs at hand."""
    method = METHODS[name]()
    method = method if schedule is None else replace(method, schedule=schedule)
    counts = 2 if method.merging else tuple(range(2, 2 + len(clients)))
    topology = method.topology(clients, stages=3, micro_batches=counts, steps=2)
    built = build(method.generator(), topology)
    assert set(built) >= {f"c{client}" for client in clients}
    assert set(opening(topology)) == set(closing(topology)) == set(topology.actors)


def test_a_function_and_a_file_are_schedules_too(tmp_path):
    topology = splitfed_v1().topology((0, 1), stages=2, micro_batches=2)
    built_in = splitfed_v1(schedule="pipar").generator()
    path = tmp_path / "mine.sched"
    path.write_text(text(built_in(topology)), encoding="utf-8")
    expected = build(built_in, topology)
    for source in (built_in, path, str(path)):
        assert build(splitfed_v1(schedule=source).generator(), topology) == expected


def test_wrong_schedules_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"schedule = 'pipr', expected one of sequential, .*did you mean pipar\?"):
        splitfed_v1(schedule="pipr").generator()
    with pytest.raises(ScheduleError, match=r"schedule file .*gone\.sched: No such file"):
        splitfed_v1(schedule=tmp_path / "gone.sched").generator()
    (tmp_path / "bad.sched").write_text("c0: 0F0.0 0Z0\n", encoding="utf-8")
    with pytest.raises(ScheduleError, match=r"bad\.sched: line 1: '0Z0' is no instruction"):
        splitfed_v1(schedule=str(tmp_path / "bad.sched")).generator()
    with pytest.raises(ValueError, match="order = 'backwards-first', expected one of forwards-first, 1f1b"):
        pipar(order="backwards-first")


def test_a_schedule_that_leaves_something_out_is_no_schedule():
    def forgetful(topology):
        whole = splitfed_v1().generator()(topology)
        return {actor: program[:-1] for actor, program in whole.items()}

    topology = splitfed_v1().topology((0,), stages=2)
    with pytest.raises(ScheduleError, match="is missing"):
        build(Method(name="mine", schedule=forgetful).generator(), topology)
