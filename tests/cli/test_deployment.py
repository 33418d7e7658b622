"""What is deployed: `server/` and `clients/edge/`, set up as their instructions say, but on one machine."""

from __future__ import annotations

import configparser
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from splitfl.cli import main
from splitfl.config import load_job

ROOT = Path(__file__).parents[2]
SERVER, EDGE = ROOT / "server", ROOT / "clients" / "edge"


def edited(source: Path, target: Path, *changes: tuple[str, str]) -> Path:
    text = source.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    target.write_text(text, encoding="utf-8")
    return target


@pytest.fixture
def machines(tmp_path):
    """A folder for each of two machines, laid out as the instructions say."""
    server, client = tmp_path / "server", tmp_path / "client"
    for folder in (server, client):
        folder.mkdir()
        shutil.copy(ROOT / "examples/digits_model.py", folder / "model.py")
    with pytest.raises(SystemExit):
        main(["certificates", str(server / "certificates"), "--host", "127.0.0.1"])
    shutil.copy(server / "certificates/ca.pem", client / "ca.pem")
    shutil.copy(EDGE / "sample_data.py", client / "data.py")
    edited(SERVER / "sample.toml", server / "server.toml", ('"0.0.0.0:9070"', '"127.0.0.1:9070"'))
    shutil.copy(EDGE / "sample.toml", client / "client.toml")
    return server, client


class Started:
    """Processes of the deployed entry points."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[str]] = []

    def start(self, program: Path, *arguments: object, folder: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(program), *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self._running.append(process)
        return process

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.communicate(timeout=20)


@pytest.fixture
def started():
    processes = Started()
    yield processes
    processes.end()


def ended(process: subprocess.Popen[str], *, within: float = 90) -> str:
    out, err = process.communicate(timeout=within)
    assert process.returncode == 0, err
    return out


@pytest.mark.slow
def test_a_server_and_two_clients_train_as_the_instructions_say(machines, started, tmp_path):
    at_server, at_client = machines
    state = tmp_path / "state"

    def serve() -> tuple[subprocess.Popen[str], str]:
        more = ("--json", "--address", "127.0.0.1:0")
        server = started.start(SERVER / "main.py", "server.toml", state, *more, folder=at_server)
        return server, json.loads(server.stdout.readline())["address"]

    server, address = serve()
    clients = [
        started.start(EDGE / "main.py", "client.toml", "--server", address, *own, "--link", "wifi-50", folder=at_client)
        for own in (("--data", "data.py:load"), ("--index", 1, "--name", "pi-kitchen"))
    ]
    assert json.loads(server.stdout.readline())["record"]["round"] == 1
    server.send_signal(signal.SIGTERM)  # `systemctl stop`: the round is finished and written
    assert json.loads(ended(server).splitlines()[-1])["event"] == "stopped"
    again = started.start(SERVER / "main.py", "server.toml", state, "--json", "--address", address, folder=at_server)
    events = [json.loads(line) for line in ended(again).splitlines()]
    assert events[-1]["event"] == "done"
    assert "training is complete after 10 rounds" in ended(clients[0])
    assert "pi-kitchen" in events[-1]["history"]["clients"]
    assert len(events[-1]["history"]["rounds"]) == 10
    assert (state / "report.html").stat().st_size > 100_000
    weights = load_file(state / "model.safetensors")
    assert all(torch.isfinite(weight).all() for weight in weights.values())
    ended(clients[1])


def test_the_samples_of_both_ends_agree(machines):
    server, client = (load_job(folder / f"{folder.name}.toml") for folder in machines)
    assert server.contract() == client.contract()
    assert (server.model, server.training) == (client.model, client.training)
    assert server.server.tls is not None
    assert client.client.tls is not None


def test_the_sample_as_it_stands_is_sound(machines, splitfl_command):
    at_server, _ = machines
    shutil.copy(SERVER / "sample.toml", at_server / "server.toml")
    outcome = splitfl_command("check", at_server / "server.toml")
    assert outcome.code == 0, outcome.err
    assert "sound; pipar, cut: pool1" in outcome.out


def test_without_certificates_plain_text_is_refused_beyond_loopback(machines, splitfl_command):
    at_server, at_client = machines
    tls = 'tls = { certificate = "certificates/server.pem", key = "certificates/server.key" }\n# To'
    edited(SERVER / "sample.toml", at_server / "server.toml", (tls, "# To"))
    outcome = splitfl_command("server", at_server / "server.toml")
    assert outcome.code == 2
    assert "reachable from other machines without encryption" in outcome.err
    path = edited(EDGE / "sample.toml", at_client / "client.toml", ('tls = { ca = "ca.pem" } ', ""))
    outcome = splitfl_command("client", path, "--index", "0", "--patience", "1")
    assert outcome.code == 2
    assert "TLS is not set up" in outcome.err
    assert len(outcome.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        (SERVER / "splitfl-server.service", "/etc/splitfl/server.toml /var/lib/splitfl"),
        (EDGE / "splitfl-client.service", "client.toml --data data.py:load --patience 300"),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_units_start_what_is_there(unit, expected):
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str
    parser.read(unit)
    python, program, *arguments = parser["Service"]["ExecStart"].split()
    assert python == "/opt/splitfl/venv/bin/python"
    assert (ROOT / Path(program).relative_to("/opt/splitfl")).is_file()
    assert " ".join(arguments) == expected
    assert (ROOT / Path(parser["Unit"]["Documentation"].removeprefix("file://")).relative_to("/opt/splitfl")).is_file()
    assert parser["Service"]["Restart"] == "on-failure"


def test_the_image_copies_what_is_there():
    for line in (SERVER / "Containerfile").read_text(encoding="utf-8").splitlines():
        if line.startswith("COPY "):
            assert all((ROOT / source).exists() for source in line.split()[1:-1]), line


@pytest.mark.parametrize("program", [SERVER / "main.py", EDGE / "main.py"], ids=["server", "client"])
def test_without_arguments_an_entry_point_says_how_it_is_used(started, program, tmp_path):
    process = started.start(program, folder=tmp_path)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.startswith("usage: python main.py CONFIGURATION.toml")
    assert len(err.splitlines()) == 1
