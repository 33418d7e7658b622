"""Malformed messages are refused in one kind of error, quickly, and leave no memory behind."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import pickle
import time
import tracemalloc
from pathlib import Path

import grpc.aio
import pytest

import splitfl
from splitfl.api.loop import run_blocking
from splitfl.cli import main
from splitfl.codecs import FrameError, frame
from splitfl.codecs.proto3 import bytes_field, length_header, uint_field, varint
from splitfl.run.checkpoint import load
from splitfl.run.client_memory import ClientMemory
from splitfl.run.tokens import load_token, load_tokens
from splitfl.schedule import ScheduleError
from splitfl.schedule.file import from_file
from splitfl.transport import check_health, serve
from splitfl.transport.envelope import EnvelopeError, decode
from splitfl.transport.grpc_stream import METHOD
from tests.faults.ends import make_job
from tests.faults.plan import Plan
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
        assert set(frame.decode(message)) == {"weight", "bias", "count", "mask", "empty", "half", "long"}


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


LOADERS = {"checkpoint": load, "tokens": load_tokens, "token": load_token, "schedule": from_file}


@pytest.mark.parametrize("loader", LOADERS)
def test_a_payload_in_a_file_is_refused(payload, loader, tmp_path):
    path = tmp_path / "round-000001.safetensors"
    path.write_bytes(payload)
    with pytest.raises((splitfl.SplitflError, ScheduleError), match="round-000001"):
        LOADERS[loader](path)


def test_a_payload_in_a_clients_memory_is_refused(payload, tmp_path):
    job = make_job(Plan(1, "splitfed-v3", "keep", (None,) * 3, (0.0,) * 3, ()))
    for when in ("before", "after"):
        (tmp_path / f"{when}.safetensors").write_bytes(payload)
    with pytest.raises(splitfl.SplitflError, match=r"before\.safetensors cannot be read"):
        ClientMemory(tmp_path, "ada", job.blueprint()).recall(1, 0)


@pytest.mark.parametrize(
    "command",
    [
        ("simulate",),
        ("local",),
        ("check",),
        ("cuts",),
        ("show",),
        ("server",),
        ("client", "--server", "127.0.0.1:1", "--name", "ada"),
    ],
)
def test_a_payload_given_to_a_command_is_refused(payload, command, tmp_path, capsys):
    path = tmp_path / "job.toml"
    path.write_bytes(payload)
    with pytest.raises(SystemExit) as ended:
        main([command[0], str(path), *command[1:]])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "job.toml" in said.replace("\n", "")
    assert "Traceback" not in said


RPCS = (METHOD, "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch", "/splitfl.v0.Session/Open", "/x/Y")


@pytest.mark.parametrize("rpc", RPCS)
def test_a_payload_sent_to_an_rpc_is_refused(payload, rpc):
    async def send():
        sessions = []

        async def on_session(channel):
            sessions.append(channel)
            await channel.hear(timeout=5, what="a hello")

        server = await serve("127.0.0.1:0", on_session)
        async with grpc.aio.insecure_channel(server.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            call = channel.stream_stream(rpc)()
            answers = []
            try:
                await call.write(payload)
                async with asyncio.timeout(10):
                    while (answer := await call.read()) is not grpc.aio.EOF:
                        answers.append(answer)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass
            code = await call.code()
        health = await check_health(server.address)
        await server.stop(1.0)
        return code, answers, health

    code, answers, health = run_blocking(send())
    assert health == "SERVING"
    if rpc == METHOD:
        (refusal,) = map(decode, answers)
        assert refusal.code == "protocol"
    else:
        assert answers == []
        assert code is not grpc.StatusCode.OK


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
