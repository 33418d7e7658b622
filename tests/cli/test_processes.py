"""Real servers and real clients, each a process of its own."""

from __future__ import annotations

import json
import time

import pytest
import torch
from safetensors.torch import load_file


def same(one, other):
    left, right = load_file(one), load_file(other)
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def listening(server):
    event = json.loads(server.stdout.readline())
    assert event["event"] == "listening"
    return event["address"]


def finish(*processes, within=90):
    outs = []
    for process in processes:
        out, err = process.communicate(timeout=within)
        assert process.returncode == 0, err
        outs.append(out)
    return outs


def test_local_trains_over_tls_with_three_clients_and_equals_simulate(splitfl_command, job, tmp_path):
    saved, simulated = tmp_path / "local.safetensors", tmp_path / "simulated.safetensors"
    outcome = splitfl_command("local", job, "--clients", 3, "--rounds", 2, "--json", "--save", saved)
    assert outcome.code == 0, outcome.err
    events = [json.loads(line) for line in outcome.out.splitlines()]
    assert [event["event"] for event in events] == ["round", "round", "done"]
    history = events[-1]["history"]
    assert history["clients"] == ["c0", "c1", "c2"]
    assert history["rounds"][0]["clock"] == "real"
    assert set(history["rounds"][0]["idle"]) == {"c0", "c1", "c2", "server"}
    assert history["measured"]
    assert history["predicted"]
    assert splitfl_command("simulate", job, "--clients", 3, "--save", simulated).code == 0
    assert same(saved, simulated)


def test_a_transform_at_the_cut_is_the_same_in_processes_of_their_own(splitfl_command, edit, tmp_path):
    codec = '[codec]\ntransform = "feature-dropout:0.25"\nactivation = "columns+int8"\ngradient = "columns+int8"\n'
    path = edit("[server]", f"{codec}\n[server]")
    saved, simulated = tmp_path / "local.safetensors", tmp_path / "simulated.safetensors"
    outcome = splitfl_command("local", path, "--plain", "--rounds", 2, "--save", saved)
    assert outcome.code == 0, outcome.err
    assert splitfl_command("simulate", path, "--save", simulated).code == 0
    assert same(saved, simulated)


def test_a_client_that_cannot_start_ends_a_local_run_at_once(splitfl_command, edit):
    path = edit("model.py:build_model", "model.py:load_mine")
    outcome = splitfl_command("local", path, "--plain", "--rounds", 1)
    assert outcome.code == 2
    assert outcome.err.startswith("splitfl: server: ")
    assert len(outcome.err.splitlines()) == 1


@pytest.mark.slow
def test_mutual_tls_and_a_client_of_another_authority(processes, splitfl_command, job, tmp_path):
    ours, others, saved = tmp_path / "ours", tmp_path / "others", tmp_path / "server.safetensors"
    splitfl_command("certificates", ours, "--host", "127.0.0.1", "--client", "c0", "--client", "c1")
    splitfl_command("certificates", others, "--host", "127.0.0.1", "--client", "c0")
    tls = ("--certificate", ours / "server.pem", "--key", ours / "server.key", "--client-ca", ours / "ca.pem")
    server = processes.start("server", job, "--address", "127.0.0.1:0", "--json", "--save", saved, *tls)
    address = listening(server)
    own = ("--certificate", others / "c0.pem", "--key", others / "c0.key")
    strangers = [
        processes.start("client", job, "--server", address, "--index", 0, "--patience", 2, *more)
        for more in (("--ca", others / "ca.pem"), ("--ca", ours / "ca.pem", *own), ())
    ]
    for stranger in strangers:
        _, err = stranger.communicate(timeout=60)
        assert stranger.returncode == 2
        assert err.startswith(f"splitfl: cannot connect to {address}")
        assert len(err.splitlines()) == 1
    clients = [
        processes.start(
            "client",
            job,
            "--server",
            address,
            "--index",
            index,
            "--ca",
            ours / "ca.pem",
            "--certificate",
            ours / f"c{index}.pem",
            "--key",
            ours / f"c{index}.key",
        )
        for index in (0, 1)
    ]
    finish(server, *clients)
    simulated = tmp_path / "simulated.safetensors"
    splitfl_command("simulate", job, "--save", simulated)
    assert same(saved, simulated)


def train(processes, job, folder, *, port, disturb=lambda *_: None):
    saved = folder / "weights.safetensors"
    command = (
        "server",
        job,
        "--json",
        "--rounds",
        6,
        "--save",
        saved,
        "--checkpoint",
        folder / "checkpoints",
        "--address",
        f"127.0.0.1:{port}",
    )
    server = processes.start(*command)
    address = listening(server)
    clients = [
        processes.start("client", job, "--server", address, "--index", index, "--link", "wifi-10") for index in (0, 1)
    ]
    server = disturb(server, clients, command, address) or server
    finish(server, *clients)
    return saved


@pytest.mark.slow
def test_a_killed_client_and_a_killed_server_change_no_bit(processes, splitfl_command, job, tmp_path):
    simulated = tmp_path / "simulated.safetensors"
    splitfl_command("simulate", job, "--rounds", 6, "--save", simulated)

    def kill_client(server, clients, command, address):
        assert json.loads(server.stdout.readline())["record"]["round"] == 1
        time.sleep(0.1)
        clients[1].kill()
        clients[1].wait(timeout=10)
        clients[1] = processes.start("client", job, "--server", address, "--index", 1)

    def kill_server(server, clients, command, address):
        for number in (1, 2):
            assert json.loads(server.stdout.readline())["record"]["round"] == number
        time.sleep(0.1)
        server.kill()
        server.wait(timeout=10)
        again = (*command[:-1], address, "--resume")
        return processes.start(*again)

    for number, disturb in enumerate((kill_client, kill_server)):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert same(train(processes, job, folder, port=0, disturb=disturb), simulated)
