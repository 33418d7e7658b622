"""What the commands print when all is well."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from splitfl.cli import console
from splitfl.cli.progress import Progress
from splitfl.methods import METHODS
from splitfl.run.record import Failure, RoundRecord


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
def test_what_is_printed_fits_the_terminal(splitfl_command, job, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    simulate = ("simulate", job, "--rounds", "1", "--clients", "11", "--link", "lora-like")
    for arguments in (("methods",), ("cuts", job), ("cuts", job, "--samples", "1000000"), ("doctor",), simulate):
        outcome = splitfl_command(*arguments)
        assert outcome.code == 0, outcome.err
        assert max(len(line) for line in outcome.out.splitlines()) <= columns, outcome.out


def test_a_long_name_wraps_and_numbers_do_not(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    console.table("", ("cut after", "weights"), [("a.long.name." * 10, "1,234,567")])
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert sum("1,234,567" in line for line in lines) == 1
    assert "".join(line.split()[0] for line in lines[2:]) == "a.long.name." * 10


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (99_999, "99,999"), (100_000, "100.0 k"), (2_500_000, "2.5 M"), (3.6e12, "3,600.0 G")]
)
def test_counts_are_short_where_they_are_large(count, text):
    assert console.count_text(count) == text


def test_a_round_is_one_line_under_its_heads_and_failures_stand_below(capsys):
    record = RoundRecord(
        round=1,
        seconds=1234.5,
        accuracy=1.0,
        loss=2.25,
        bytes_up=12_300_000,
        idle={"server": 0.5, "c0": 0.25, "c1": 0.75},
        failures=(Failure("c2", "no answer for 30 s"),),
    )
    with Progress("pipar", rounds=2, as_json=False) as progress:
        progress.round(record)
        progress.round(dataclasses.replace(record, round=2, failures=()))
    head, first, failure, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["accuracy", "loss", "time", "up", "down", "idle:", "server", "clients"]
    assert len(head) == len(first) == len(second) == 80
    assert first.split("  ")[0] == "round"
    for part in ("100.0 %", "2.2500", "1234.50 s", "12.3 MB", "0 B", "50.0 %"):
        assert part in first
    assert failure.strip() == "c2: no answer for 30 s"


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
    assert found[0]["run"] == "pipar"
    assert report.stat().st_size > 100_000
    assert weights.exists()
    text = splitfl_command("simulate", job, "--method", "fedavg", "--rounds", "1")
    said, head, first = text.out.splitlines()[:3]
    assert said == "fedavg: 2 clients (laptop) over wifi-50, in one process"
    assert "virtual" in head
    assert re.fullmatch(r"round   1 +[\d.]+ % +[\d.]+ +[\d.]+ s +[\d.]+ kB +[\d.]+ kB +[\d.]+ % +[\d.]+ %", first)


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
