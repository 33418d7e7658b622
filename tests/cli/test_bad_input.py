"""Whatever a user gets wrong is one clear line on stderr and exit code 2, never a traceback."""

from __future__ import annotations

import re
import socket

import pytest

WRONG = {
    "unknown method": ('name = "pipar"', 'name = "pipa"', r"name = 'pipa': .*did you mean 'pipar'|pipar"),
    "layer that does not exist": ('cut = "1"', 'cut = "layer7"', r"cut = 'layer7': no such place.*0, .*1"),
    "batch smaller than micro-batches": ("micro_batches = 2", "micro_batches = 65", r"micro_batches = 65.*64"),
    "unknown key": ("rounds = 2", "rounds = 2\nshufle = true", r"shufle.*did you mean shuffle"),
    "wrong type": ("rounds = 2", 'rounds = "two"', r"rounds = 'two'|rounds"),
    "no file": ("model.py:build_model", "models.py:build_model", r"no file .*models.py"),
    "no function": ("model.py:build_model", "model.py:build", r"no function 'build'"),
    "no data function": ('name = "digits"', 'load = "model.py:load"', r"no function 'load': did you mean load_mine"),
    "data that is none": ('name = "digits"', 'load = "model.py:three"', r"gives int: expected \(train, test\)"),
    "more cuts than layers": ('cut = "1"', 'cut = ["1", "1"]', r"named twice"),
    "wrong option of the model": ('cut = "1"', 'cut = "1"\nargs = { wide = 3 }', r"wide"),
    "wrong shape": ('cut = "1"', 'cut = "1"\nexample_shape = [1, 7, 7]', r"49.*64|64.*49"),
    "no module": ("model.py:build_model", "model.py:three", r"gives int, expected a torch.nn.Module"),
    "no such device": ("batch_size = 64", 'batch_size = 64\ndevice = "cuda:99"', r"device = 'cuda:99' cannot be used"),
    "unknown strategy": ("[server]", '[strategy]\nname = "FedAvgg"\n[server]', r"'FedAvgg': .*did you mean 'FedAvg'"),
    "unknown data": ('name = "digits"', 'name = "digit"', r"digits"),
    "unknown optimizer": ('name = "sgd"', 'name = "sdg"', r"sgd"),
    "unknown option of the optimizer": ("momentum", "momentun", r"momentum"),
    "unknown link": ("[server]", '[planning]\nlink = "wifi-5"\n[server]', r"wifi-50"),
    "TOML": ("[training]", "[training", r"line \d+"),
}


def one_line(outcome, pattern):
    assert outcome.code == 2, outcome
    lines = outcome.err.strip().splitlines()
    assert len(lines) == 1, outcome.err
    assert lines[0].startswith("splitfl: "), lines
    assert "Traceback" not in outcome.err
    assert re.search(pattern, lines[0]), lines[0]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_job_file(edit, splitfl_command, wrong):
    old, new, pattern = WRONG[wrong]
    one_line(splitfl_command("check", edit(old, new)), pattern)


def test_a_loss_that_is_no_mean_and_no_sum(edit, splitfl_command):
    path = edit("batch_size = 64", 'batch_size = 64\nloss = "model.py:three"')
    one_line(splitfl_command("check", path), "loss")


def test_labels_that_the_model_does_not_know(edit, splitfl_command, monkeypatch):
    path = edit('cut = "1"', 'cut = "1"\nargs = { classes = 5 }')
    one_line(splitfl_command("simulate", path), r"c0: 1F0.0 on its data: IndexError: Target \d is out of bounds")
    monkeypatch.setenv("SPLITFL_DEBUG", "1")
    lines = splitfl_command("simulate", path).err.splitlines()
    assert "Traceback (most recent call last):" in lines
    assert lines[-1].startswith("splitfl: round 1: ")


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (("simulate", "{folder}/missing.toml"), r"missing.toml"),
        (("simulate", "{job}", "--link", "wifi-5"), r"link = 'wifi-5'.*wifi-50"),
        (("simulate", "{job}", "--device", "pi"), r"device = 'pi'.*raspberry-pi-4"),
        (("simulate", "{job}", "--method", "splitfed"), r"splitfed-v1"),
        (("simulate", "{job}", "--rounds", "0"), r"0 is not in the range x>=1"),
        (
            ("simulate", "{job}", "--report", "{folder}/none/r.html"),
            r"none/r.html cannot be written: .*no folder",
        ),
        (("local", "{job}", "--report", "{folder}"), r"--report.*cannot be written: it is a folder"),
        (("server", "{job}", "--save", "{folder}/model.py/w.safetensors"), r"--save.*w.safetensors cannot be written"),
        (("local", "{job}", "--link", "wifi-5"), r"link = 'wifi-5'.*wifi-50"),
        (("local", "{job}", "--method", "splitfed"), r"splitfed-v1"),
        (
            ("local", "{job}", "--method", "pipar", "--method", "fedavg", "--save", "w"),
            r"--save w: .*one --method",
        ),
        (("client", "{job}", "--index", "0"), r"--server is missing"),
        (("client", "{job}", "--server", "127.0.0.1:9"), r"--index N .*--data"),
        (("client", "{job}", "--server", "127.0.0.1:9", "--index", "2"), r"--index 2: the job has 2 clients"),
        (("client", "{job}", "--server", "nowhere", "--index", "0"), r"nowhere"),
        (("client", "{job}", "--server", "127.0.0.1:9", "--index", "0", "--patience", "0.5"), r"127.0.0.1:9.*0.5 s"),
        (("client", "{job}", "--server", "192.0.2.1:9", "--index", "0"), r"plain text|TLS|insecure"),
        (("client", "{job}", "--server", "127.0.0.1:9", "--index", "0", "--ca", "{folder}/ca.pem"), r"ca.pem"),
        (("client", "{job}", "--server", "127.0.0.1:9", "--data", "mine.py:load"), r"no file .*mine.py"),
        (
            ("client", "{job}", "--server", "127.0.0.1:9", "--data", "{folder}/model.py:load_it"),
            r"no function 'load_it'",
        ),
        (("client", "{job}", "--server", "127.0.0.1:9", "--data", "{folder}/model.py:fails"), r"ValueError: no disk"),
        (("client", "{job}", "--server", "127.0.0.1:9", "--data", "{folder}/model.py:three"), r"a torch Dataset of"),
        (
            ("client", "{job}", "--server", "127.0.0.1:9", "--data", "{folder}/model.py:both"),
            r"gives a tuple: ",
        ),
        (("server", "{job}", "--certificate", "{folder}/s.pem"), r"--certificate and --key go together"),
        (("server", "{job}", "--certificate", "{folder}/s.pem", "--key", "{folder}/s.key"), r"s.pem"),
        (("server", "{job}", "--address", "0.0.0.0:0"), r"plain text|TLS|insecure"),
        (("server", "{job}", "--resume"), r"--resume needs --checkpoint"),
        (("show", "pipa"), r"'pipa' is no method"),
        (("show", "{folder}/none.sched"), r"none.sched: No such file"),
        (("check", "{folder}/none.sched"), r"none.sched"),
        (("certificates", "{folder}/c", "--host", "http://x"), r"host 'http://x'"),
        (("nonsense",), r"nonsense"),
        (("simulate",), r"JOB"),
    ],
    ids=lambda value: " ".join(value[:1] + value[2:]) if isinstance(value, tuple) else "",
)
def test_a_wrong_command_line(job, splitfl_command, arguments, pattern):
    filled = [part.format(job=job, folder=job.parent) for part in arguments]
    one_line(splitfl_command(*filled), pattern)


def test_a_schedule_file_with_a_mistake_is_refused_with_its_place(job, splitfl_command):
    path = job.parent / "mine.sched"
    text = splitfl_command("show", "pipar", "--micro-batches", "2").out
    path.write_text(text.replace("0U0 ", "", 1))
    one_line(splitfl_command("check", path, "--micro-batches", "2"), r"c0: 0U0 is missing")
    path.write_text(text.replace("0U0 ", "0Q0 ", 1))
    one_line(splitfl_command("check", path, "--micro-batches", "2"), r"0Q0")


def test_a_port_in_use(job, splitfl_command):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        one_line(splitfl_command("server", job, "--address", f"127.0.0.1:{port}"), rf"{port}.*in use|in use.*{port}")


def test_a_damaged_checkpoint(job, splitfl_command, processes):
    folder = job.parent / "checkpoints"
    folder.mkdir()
    (folder / "round-000001.safetensors").write_bytes(b"rubbish")
    server = processes.start(
        "server", job, "--address", "127.0.0.1:0", "--clients", 1, "--checkpoint", folder, "--resume", "--json"
    )
    import json

    address = json.loads(server.stdout.readline())["address"]
    client = processes.start("client", job, "--clients", 1, "--server", address, "--index", 0)
    _, err = server.communicate(timeout=60)
    assert server.returncode == 2
    assert re.fullmatch(r"splitfl: checkpoint .*round-000001.safetensors cannot be read .*\n", err), err
    _, err = client.communicate(timeout=60)
    assert client.returncode == 2
    assert "training ended: checkpoint" in err
