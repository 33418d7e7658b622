"""The documents' sequences of commands, carried out; and the examples."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import shutil

import pytest

from splitfl.cli import main


def run(*words: str) -> str:
    """What a command prints; it must end well."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0, words
    return out.getvalue()


def example(root, name):
    spec = importlib.util.spec_from_file_location(name, root / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def job_beside(root, folder, *changes):
    """The example's job, in one round, with some text replaced, and its model beside it."""
    shutil.copy(root / "examples/digits_model.py", folder)
    text = (root / "examples/digits.toml").read_text(encoding="utf-8")
    for old, new in (("rounds = 7", "rounds = 1"), ("local_epochs = 2", "local_steps = 2"), *changes):
        assert old in text
        text = text.replace(old, new)
    (folder / "job.toml").write_text(text, encoding="utf-8")


def test_a_schedule_is_printed_checked_and_run(root, commands, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job_beside(root, tmp_path, ("micro_batches = 4", 'micro_batches = 4\nschedule = "mine.sched"'))
    show, check, simulate = commands(root / "docs/own-schedule.md")
    assert show[-2:] == [">", "mine.sched"]
    (tmp_path / "mine.sched").write_text(run(*show[1:-2]))
    assert "sound" in run(*check[1:])
    assert "round   1" in run(*simulate[1:])


def test_a_schedule_file_may_leave_out_what_is_put_in_again(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = run("show", "pipar", "--clients", "3", "--micro-batches", "4")
    lines = [
        [word for word in line.split() if not any(letter in word.split("(")[0] for letter in "SRLA")]
        for line in whole.splitlines()
    ]
    (tmp_path / "mine.sched").write_text("\n".join(" ".join(line) for line in lines) + "\n")
    assert "SEND" not in (text := (tmp_path / "mine.sched").read_text())
    assert "act" not in text
    run("check", "mine.sched", "--clients", "3", "--micro-batches", "4")
    job_beside(root, tmp_path, ("micro_batches = 4", 'micro_batches = 4\nschedule = "mine.sched"'))
    run("simulate", "job.toml")


def test_the_commands_of_the_readme_that_look_at_a_job(root, commands, tmp_path, monkeypatch):
    monkeypatch.chdir(root)
    looked = [words for words in commands(root / "README.md") if words[1] in ("check", "cuts", "show", "methods")]
    assert len(looked) >= 4
    for words in looked:
        assert run(*words[1:])


def test_the_example_of_an_own_schedule_learns_as_the_built_in_one(root):
    module = example(root, "own_schedule")
    built_in, own = module.train("pipar"), module.train(module.last_first)
    assert own.history.settings["schedule"] == "last_first"
    assert own.accuracy > 0.9
    assert own.accuracy == pytest.approx(built_in.accuracy, abs=0.01)


@pytest.mark.slow
def test_the_example_that_compares_devices(root, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    example(root, "compare_devices").main(rounds=1)
    assert len(capsys.readouterr().out.splitlines()) == 6
    assert (tmp_path / "report.html").exists()


def test_the_first_model(root, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    example(root, "first_model")
    assert float(capsys.readouterr().out.split()[-1]) > 0.9
    assert (tmp_path / "report.html").exists()
