"""What the commands print when all is well."""

from __future__ import annotations

import json
import re

import pytest

from splitfl.methods import METHODS


def events(out):
    return [json.loads(line) for line in out.splitlines()]


def test_methods_lists_every_method(splitfl_command):
    outcome = splitfl_command("methods", "--json")
    (event,) = events(outcome.out)
    rows = {row["method"]: row for row in event["methods"]}
    assert set(rows) == set(METHODS)
    assert rows["splitfed-v2"]["tail"] == "shared"
    assert rows["splitfed-v3"]["averaged"] == "tail"
    assert rows["sl"]["averaged"] == "handed on"
    table = splitfl_command("methods")
    assert table.code == 0
    assert all(name in table.out for name in METHODS)


@pytest.mark.parametrize("columns", [80, 120])
def test_tables_fit_the_terminal(splitfl_command, job, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    for arguments in (("methods",), ("cuts", job), ("doctor",), ("show", "pipar", "--gantt")):
        outcome = splitfl_command(*arguments)
        assert outcome.code == 0
        widest = max(len(line) for line in outcome.out.splitlines())
        assert widest <= max(columns, 112)  # schedules are text for files, of their own width


def test_cuts_lists_the_places_with_their_costs(splitfl_command, job):
    (event,) = events(splitfl_command("cuts", job, "--json").out)
    places = {cut["place"]: cut for cut in event["cuts"]}
    assert places["1"]["parameters"] == [64 * 8 + 8, 8 * 10 + 10]
    assert places["1"]["bytes"] == 8 * 4
    assert places["1"]["flops"][0] == 2 * 64 * 8
    assert "smashed" in splitfl_command("cuts", job).out


def test_show_prints_a_schedule_that_check_accepts(splitfl_command, tmp_path):
    path = tmp_path / "mine.sched"
    options = ("--clients", "3", "--micro-batches", "2")
    for name in (*METHODS, "gpipe", "1f1b"):
        path.write_text(splitfl_command("show", name, *options).out)
        method = name if name in METHODS else "pipar"
        count = "1" if METHODS.get(name) and METHODS[name]().micro_batches == 1 else "2"
        micro = ("--micro-batches", "2") if count == "2" or name in METHODS else ()
        outcome = splitfl_command("check", path, "--method", method, "--clients", "3", *micro)
        assert outcome.code == 0, outcome.err
        assert re.search(r"sound; \d+ instructions", outcome.out)


def test_check_says_what_it_found_in_a_job(splitfl_command, job):
    outcome = splitfl_command("check", job)
    assert "sound; pipar, cut: 1, 2 micro-batches, loss: mean, 2 clients with 719 to 719 samples" in outcome.out


def test_doctor_finds_what_is_needed(splitfl_command):
    (event,) = events(splitfl_command("doctor", "--json").out)
    assert event["missing"] == []
    assert event["facts"]["torch"].startswith("2.")


def test_simulate_prints_rounds_and_writes_report_and_weights(splitfl_command, job, tmp_path):
    report, weights = tmp_path / "r.html", tmp_path / "w.safetensors"
    outcome = splitfl_command("simulate", job, "--json", "--report", report, "--save", weights, "--link", "4g")
    found = events(outcome.out)
    assert [event["event"] for event in found] == ["round", "round", "done"]
    assert found[-1]["history"]["rounds"] == [event["record"] for event in found[:2]]
    assert found[0]["record"]["clock"] == "virtual"
    assert report.stat().st_size > 100_000
    assert weights.exists()
    text = splitfl_command("simulate", job, "--method", "fedavg", "--rounds", "1")
    assert re.search(r"round   1  accuracy .* %  loss .* s \(virtual\)", text.out)


def test_a_schedule_file_and_a_generator_of_ones_own_run_from_a_job(splitfl_command, edit, job):
    (job.parent / "mine.sched").write_text(splitfl_command("show", "pipar", "--micro-batches", "2").out)
    path = edit("micro_batches = 2", 'micro_batches = 2\nschedule = "mine.sched"')
    assert splitfl_command("simulate", path, "--rounds", "1").code == 0
    (job.parent / "own.py").write_text(
        "from splitfl.schedule import gpipe\n\ndef mine(topology):\n    return gpipe(topology)\n"
    )
    path = edit("micro_batches = 2", 'micro_batches = 2\nschedule = "own.py:mine"')
    assert splitfl_command("simulate", path, "--rounds", "1").code == 0


def test_certificates_are_made_once_and_kept_private(splitfl_command, tmp_path):
    outcome = splitfl_command("certificates", tmp_path, "--host", "10.1.2.3", "--client", "phone", "--json")
    (event,) = events(outcome.out)
    assert [path.rsplit("/", 1)[1] for path in event["files"]] == [
        "ca.pem",
        "server.pem",
        "server.key",
        "phone.pem",
        "phone.key",
    ]
    authority = (tmp_path / "ca.pem").read_bytes()
    assert (tmp_path / "phone.key").stat().st_mode & 0o777 == 0o600
    splitfl_command("certificates", tmp_path, "--host", "10.1.2.4")
    assert (tmp_path / "ca.pem").read_bytes() == authority
