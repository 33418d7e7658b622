"""Runs of the lab: whatever fails, a run ends, and with the bits of the undisturbed one."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.faults.chaos import summarize
from tests.faults.lab import Lab, Outcome
from tests.faults.plan import KINDS, METHODS, Event, Plan, plan


def carry_out(chosen: Plan, folder) -> Outcome:
    return asyncio.run(Lab(chosen, folder / "run").run())


def planned(method: str, *events: Event, state: str = "reset") -> Plan:
    return Plan(7, method, state, (None,) * 3, (0.0,) * 3, events)


def test_a_plan_is_its_seeds():
    assert plan(4) == plan(4) != plan(5)
    plans = [plan(seed) for seed in range(300)]
    assert {each.method for each in plans} == set(METHODS)
    kinds = Counter(event.kind for each in plans for event in each.events)
    assert set(kinds) == {*KINDS, "leave"}
    for each in plans:
        assert not {"leave", "kill server"} <= {event.kind for event in each.events}


def test_a_client_is_killed_and_the_server_too(tmp_path):
    events = Event("kill client", "ada", "up", 9_000, 0.1), Event("kill server", "bob", "up", 16_000, 0.2)
    outcome = carry_out(planned("pipar", *events, state="keep"), tmp_path)
    assert (outcome.problem, outcome.failures) == (None, [])
    assert sorted(outcome.fired) == ["kill client", "kill server"]


def test_a_client_that_leaves_for_good_leaves_no_trace(tmp_path):
    outcome = carry_out(planned("splitfed-v2", Event("leave", "bob", "up", 12_000, 0.0)), tmp_path)
    assert outcome.problem is None
    assert outcome.fired == ["leave"]
    (failure,) = outcome.failures
    assert "bob" in failure
    assert "did not come back within 4 s" in failure


def test_a_run_that_went_wrong_is_told_and_its_files_stay(tmp_path, capsys):
    good, bad = Outcome(plan(1)), Outcome(plan(2), problem="3 of 12 tensors differ")
    assert summarize([good], tmp_path) == 0
    assert summarize([good, bad], tmp_path) == 1
    assert f"1 WENT WRONG: seeds [2]; their logs are in {tmp_path}" in capsys.readouterr().out
    assert summarize([], tmp_path) == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(1, 21))
def test_seeds(seed, tmp_path):
    outcome = carry_out(plan(seed), tmp_path)
    assert outcome.problem is None
