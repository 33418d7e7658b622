"""A server that asks for tokens, watched and drained: real processes over TLS."""

from __future__ import annotations

import json
import signal
import urllib.request

import pytest


def lines(process, event):
    """The next event of that name that the process prints."""
    while True:
        found = json.loads(process.stdout.readline())
        if found["event"] == event:
            return found


def test_tokens_for_nobody_are_refused(splitfl_command, tmp_path):
    outcome = splitfl_command("tokens", tmp_path)
    assert outcome.code == 2
    assert "--client NAME or --observer NAME is missing" in outcome.err


def test_a_token_that_is_none_is_refused_without_showing_it(splitfl_command, job, tmp_path):
    (tmp_path / "bad.token").write_text("not a token\n")
    arguments = ("client", job, "--server", "127.0.0.1:1", "--index", 0, "--token", tmp_path / "bad.token")
    outcome = splitfl_command(*arguments)
    assert outcome.code == 2
    assert "holds no token" in outcome.err
    assert "not a token" not in outcome.err.replace(str(tmp_path), "")


def test_a_token_is_not_sent_in_plain_text_beyond_this_machine(splitfl_command, job, tmp_path):
    splitfl_command("tokens", tmp_path, "--client", "c0")
    arguments = ("--insecure", "--index", 0, "--token", tmp_path / "c0.token", "--patience", 1)
    outcome = splitfl_command("client", job, "--server", "192.0.2.1:9070", *arguments)
    assert outcome.code == 2
    assert "would travel in plain text" in outcome.err


def test_a_server_without_its_tokens_says_so(splitfl_command, job, tmp_path):
    outcome = splitfl_command("server", job, "--tokens", tmp_path / "tokens.json")
    assert outcome.code == 2
    assert "cannot read the tokens" in outcome.err


@pytest.mark.slow
def test_a_guarded_server_is_watched_and_drained(processes, splitfl_command, job, tmp_path):
    splitfl_command("certificates", tmp_path, "--host", "127.0.0.1")
    splitfl_command("tokens", tmp_path, "--client", "c0", "--client", "c1", "--observer", "ops")
    tls = ("--certificate", tmp_path / "server.pem", "--key", tmp_path / "server.key")
    server = processes.start(
        *("server", job, "--address", "127.0.0.1:0", "--json", "--rounds", 500, "--checkpoint", tmp_path / "kept"),
        *(*tls, "--tokens", tmp_path / "tokens.json", "--metrics", "127.0.0.1:0"),
        *("--log-level", "info", "--log-format", "json"),
    )
    url = lines(server, "metrics")["url"]
    there = ("--server", lines(server, "listening")["address"], "--ca", tmp_path / "ca.pem")

    def token(name):
        return "--name", name, "--token", tmp_path / f"{name}.token"

    clients = [processes.start("client", job, *there, "--index", 0, *token("c0"))]
    impostor = splitfl_command("client", job, *there, "--index", 1, "--name", "c1", "--token", tmp_path / "c0.token")
    assert impostor.code == 2
    assert "client 'c1' shows no valid token of its own" in impostor.err
    clients.append(processes.start("client", job, *there, "--index", 1, *token("c1")))
    lines(server, "round")

    standing = json.loads(splitfl_command("status", *there, *token("ops"), "--json").out)
    assert standing["phase"] == "training"
    assert standing["clients"] == {"c0": "connected", "c1": "connected"}
    assert standing["last"]["participants"] == ["c0", "c1"]
    assert "may come as trainer, not as observer" in splitfl_command("status", *there, *token("c0")).err
    with urllib.request.urlopen(url, timeout=10) as answer:
        metrics = answer.read().decode()
    assert 'splitfl_clients{state="connected"} 2.0' in metrics

    server.send_signal(signal.SIGTERM)
    out, err = server.communicate(timeout=60)
    assert server.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["event"] == "stopped"
    logged = [json.loads(line) for line in err.splitlines()]
    told = {"server_started", "client_enrolled", "round_finished", "checkpoint_saved", "draining", "server_stopped"}
    assert told <= {each["message"] for each in logged}
    assert {each["code"] for each in logged if each["message"] == "client_refused"} == {"token", "role"}
    secrets = [(tmp_path / f"{name}.token").read_text().strip() for name in ("c0", "c1", "ops")]
    assert not any(secret in text for secret in secrets for text in (out, err, metrics))
