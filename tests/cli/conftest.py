"""A tiny job file, and ways to run the command: in this process, or as a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from splitfl.cli import main

MODEL = """
import torch
from torch import nn


def build_model(width=8, classes=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, classes))


def three(context=None):
    return 3


def fails():
    raise ValueError("no disk")


def both():
    return load_mine(), load_mine()


def load_mine():
    import splitfl
    return splitfl.load("digits").test
"""

JOB = """
[model]
build = "model.py:build_model"
cut = "1"

[method]
name = "pipar"
micro_batches = 2

[training]
rounds = 2
batch_size = 64
optimizer = { name = "sgd", lr = 0.1, momentum = 0.9 }

[data]
name = "digits"
split = "iid"
clients = 2

[server]
deadlines = { enrollment = 60, step = 30, round = 60, rejoin = 30 }
"""


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def job(tmp_path) -> Path:
    """The job file; the model lies beside it."""
    (tmp_path / "model.py").write_text(MODEL)
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return path


@pytest.fixture
def edit(job) -> Callable[..., Path]:
    """The job file with some text replaced."""

    def change(old: str, new: str) -> Path:
        assert old in JOB
        job.write_text(JOB.replace(old, new))
        return job

    return change


@pytest.fixture
def splitfl_command(capsys) -> Callable[..., Outcome]:
    """Run the command in this process."""

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), captured.out, captured.err)

    return run


class Processes:
    """Processes of the command; all are ended when the test is over."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[str]] = []

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "splitfl", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self._folder,
        )
        self._running.append(process)
        return process

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.communicate(timeout=20)


@pytest.fixture
def processes(tmp_path) -> Iterator[Processes]:
    started = Processes(tmp_path)
    yield started
    started.end()
