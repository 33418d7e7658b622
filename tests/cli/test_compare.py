"""`splitfl compare`: one table of several runs, each with its seeds."""

from __future__ import annotations

import json

import pytest

from splitfl.api.compare import compare
from splitfl.config import load_job


@pytest.fixture
def comparing(job):
    """A job file with a [compare] section."""

    def made(section):
        job.write_text(f"{job.read_text()}\n[compare]\n{section}\n", encoding="utf-8")
        return job

    return made


def test_one_table_with_a_line_for_each_run(splitfl_command, comparing, tmp_path):
    mine = '{ method = "local-loss", auxiliary = "linear", title = "mine", codec = { activation = "int8" } }'
    path = comparing(f'seeds = 2\nruns = ["fedavg", {mine}]')
    report = tmp_path / "report.html"
    outcome = splitfl_command("compare", path, "--rounds", "1", "--report", report)
    assert outcome.code == 0, outcome.err
    for name in ("central", "fedavg", "mine"):
        assert f"{name}: seed 2 of 2" in outcome.out
    words = [line.split() for line in outcome.out[outcome.out.index("per round") :].splitlines()]
    assert [line[0] for line in words if line and line[-1] == "s"] == ["central", "fedavg", "mine"]
    assert "mine" in report.read_text()
    found = [json.loads(line) for line in splitfl_command("compare", path, "--rounds", "1", "--json").out.splitlines()]
    assert [each["run"] for each in found] == ["central", "fedavg", "mine"]
    for each in found:
        assert len(each["accuracies"]) == 2
        assert each["accuracy"] == pytest.approx(sum(each["accuracies"]) / 2)
        assert each["problems"] == []
        assert each["rounds"] == 1
    assert found[1]["bytes_up"] > found[0]["bytes_up"]  # two clients send their weights, one does not need to


def test_seeds_differ_and_are_those_of_single_runs(comparing):
    path = comparing('seeds = 2\nruns = ["pipar"]\ncentral = false')
    (line,) = compare(load_job(path), rounds=1)
    assert [history.settings["seed"] for history in line.histories] == [0, 1]
    assert {history.settings["micro-batches"] for history in line.histories} == {2}  # the file's own option
    assert line.histories[0].rounds[0].train_loss != line.histories[1].rounds[0].train_loss


def test_a_run_has_an_optimizer_of_its_own(comparing):
    path = comparing(
        'seeds = 1\nruns = ["fedavg", { method = "fedavg", title = "adam", optimizer = { name = "adam", lr = 0.01 } }]'
    )
    found = [line.histories[0].settings["optimizer"] for line in compare(load_job(path), rounds=1)]
    assert found[0] == found[1] != found[2]
    assert "adam" in found[2].lower()


def test_a_run_has_rounds_of_its_own_unless_the_command_says_how_many(comparing):
    path = comparing('seeds = 1\ncentral = false\nruns = ["fedavg", { method = "async", buffer = 1, rounds = 4 }]')
    job = load_job(path)
    assert [len(line.histories[0].rounds) for line in compare(job)] == [job.training.rounds, 4]
    assert [len(line.histories[0].rounds) for line in compare(job, rounds=1)] == [1, 1]


def test_a_seed_that_fails_is_told_and_the_others_stay(comparing):
    path = comparing('seeds = 2\nruns = ["splitfed-v2", "fedavg"]\ncentral = false')
    path.write_text(path.read_text().replace("lr = 0.1", "lr = 1e30"), encoding="utf-8")
    lines = list(compare(load_job(path), rounds=2))
    assert [line.name for line in lines] == ["splitfed-v2", "fedavg"]
    assert all(len(line.problems) == 2 for line in lines)
    assert lines[0].problems[0].startswith("seed 0: ")


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("central = false", "[compare] runs is missing: name the methods"),
        ('runs = ["fedvag"]', "did you mean fedavg?"),
        ('runs = [{ method = "cse-fsl", evry = 2 }]', "evry: method cse-fsl has no such option: did you mean every?"),
        ('runs = [{ method = "cse-fsl", every = "2" }]', "every = '2': expected a valid integer"),
        ('runs = [{ method = "pipar", codec = { gradient = "int9" } }]', "int9"),
        ('runs = [{ method = "async", rounds = 0 }]', "rounds = 0: expected 1 or more"),
        ("seeds = 0", "seeds"),
    ],
)
def test_what_cannot_be_compared_is_refused(splitfl_command, comparing, section, problem):
    outcome = splitfl_command("compare", comparing(section))
    assert outcome.code == 2
    assert problem in outcome.err
    assert "Traceback" not in outcome.err
