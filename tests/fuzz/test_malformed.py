"""Malformed messages are refused in one kind of error, quickly, and leave no memory behind."""

from __future__ import annotations

import ast
import json
import os
import pickle
import time
import tracemalloc
from pathlib import Path

import pytest

import splitfl
from splitfl.cli import main
from splitfl.codecs import FrameError, frame
from splitfl.codecs.proto3 import bytes_field, length_header, uint_field, varint
from splitfl.run.checkpoint import load
from splitfl.run.tokens import load_token, load_tokens
from splitfl.transport.envelope import EnvelopeError, decode
from tests.fuzz.corpus import envelopes, frames
from tests.fuzz.malformed import fuzz

PACKAGE = Path(splitfl.__file__).parent


def held_to(found, messages):
    assert sum(found.outcomes.values()) == messages
    assert found.outcomes["frames refused"] > messages // 4
    assert found.outcomes["envelopes refused"] > messages // 4
    assert found.slowest < 1.0  # a pause of the machine, not an amount of work
    assert found.grown < 20e6


def test_the_corpus_is_well_formed():
    for message in envelopes():
        decode(message)
    for message in frames():
        assert set(frame.decode(message)) == {"weight", "bias", "count", "mask", "empty", "half"}


def test_malformed_messages():
    held_to(fuzz(60_000, seed=5), 60_000)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_million_malformed_messages():
    held_to(fuzz(1_000_000, seed=1), 1_000_000)


def test_a_header_of_a_trillion_elements_costs_neither_time_nor_memory():
    shape = bytes_field(3, b"".join(map(varint, (10**6, 10**6))))
    body = bytes_field(1, b"x") + uint_field(2, 2) + shape + bytes_field(8, b"\0" * 64)
    message = length_header(1, len(body)) + body
    times = []
    for _ in range(5):
        start = time.perf_counter()
        with pytest.raises(FrameError, match="takes 4000000000000 bytes, but 64 came"):
            frame.decode(message)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.010
    tracemalloc.start()
    with pytest.raises(FrameError):
        frame.decode(message)
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


class Payload:
    """What a pickle does to whoever loads it."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.fixture
def payload(tmp_path):
    marker = tmp_path / "executed"
    content = pickle.dumps(Payload(marker))
    yield content
    assert not marker.exists()
    pickle.loads(content)  # noqa: S301 (it would have worked)
    assert marker.exists()


def test_a_payload_sent_as_a_message_is_refused(payload):
    with pytest.raises(EnvelopeError):
        decode(payload)
    with pytest.raises(FrameError):
        frame.decode(payload)


LOADERS = {
    "checkpoint": load,
    "tokens": load_tokens,
    "token": load_token,
}


@pytest.mark.parametrize("loader", LOADERS)
def test_a_payload_in_a_file_is_refused(payload, loader, tmp_path):
    path = tmp_path / "round-000001.safetensors"
    path.write_bytes(payload)
    with pytest.raises(splitfl.SplitflError, match="round-000001"):
        LOADERS[loader](path)


@pytest.mark.parametrize(
    "command",
    [("run",), ("server",), ("client", "--server", "127.0.0.1:1", "--name", "ada"), ("schedule", "check"), ("cuts",)],
)
def test_a_payload_given_to_a_command_is_refused(payload, command, tmp_path, capsys):
    path = tmp_path / "job.toml"
    path.write_bytes(payload)
    with pytest.raises(SystemExit) as ended:
        main(
            [command[0], *command[1:2], str(path)]
            if command[0] == "schedule"
            else [command[0], str(path), *command[1:]]
        )
    assert ended.value.code not in (0, None)
    assert "Traceback" not in capsys.readouterr().err


def test_nothing_in_the_package_unpickles_or_evaluates():
    forbidden = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
    calls = {"eval", "exec", "compile", "__import__"}
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if forbidden & {name.partition(".")[0] for name in names}:
                found.append(f"{path.name}:{node.lineno} imports {names}")
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in calls:
                found.append(f"{path.name}:{node.lineno} calls {node.func.id}")
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "numpy.load", "np.load"):
                found.append(f"{path.name}:{node.lineno} calls {ast.unparse(node.func)}")
    assert found == []


def test_json_of_tokens_that_is_no_table_is_refused(tmp_path):
    path = tmp_path / "tokens.json"
    for content in ([1], "x", {"ada": 7}, {"ada": {"digest": 5}}):
        path.write_text(json.dumps(content))
        with pytest.raises(splitfl.SplitflError, match=r"tokens\.json"):
            load_tokens(path)
