"""Clients that fail, misbehave or stay away: the round closes with the others, and says who and why."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import pytest
import torch

import splitfl
from splitfl.codecs import frame
from splitfl.run.blueprint import Deadlines
from splitfl.run.client import Client
from splitfl.run.enrollment import Enrollment
from splitfl.run.pool import Inline
from splitfl.schedule import Kind
from splitfl.transport import memory_pair
from splitfl.transport.messages import PROTOCOL, Finish, Hello, Refuse, Welcome


class Breaking(torch.utils.data.Dataset):
    """Raises at the given access."""

    def __init__(self, data, at):
        self.data, self.left = data, at

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        self.left -= 1
        if self.left < 0:
            raise OSError("the memory card is gone")
        return self.data[index]


class Altered:
    """A channel whose activations or weights are changed on their way out."""

    def __init__(self, channel, kind, change):
        self.channel, self.kind, self.change = channel, kind, change

    def __getattr__(self, name):
        return getattr(self.channel, name)

    async def send(self, address, payload):
        if address.value.kind is self.kind:
            tensors = frame.decode(b"".join(payload))
            payload = frame.encode(self.change(tensors))
        return await self.channel.send(address, payload)


def blueprint(bench, method="pipar", **options):
    deadlines = Deadlines(**{"enrollment": 5.0, "step": 5.0, "round": 20.0, "rejoin": 0.5, **options})
    return bench.job(bench.Mlp, "fc1", method, deadlines=deadlines).blueprint()


@pytest.fixture
def clients(bench):
    return {f"c{client}": bench.dataset(8, seed=client) for client in range(3)}


def run(bench, made, clients, *, rounds=2, **options):
    trained, words = bench.run(bench.over_grpc(made, clients, rounds=rounds, **options))
    return trained, words


@pytest.mark.parametrize("method", ["pipar", "splitfed-v2", "fedavg", "sl"])
def test_a_client_that_fails_is_named_with_its_own_words_and_the_others_go_on(bench, clients, method):
    clients["c1"] = Breaking(clients["c1"], at=5)
    trained, words = run(bench, blueprint(bench, method), clients)
    first, second = trained.rounds
    assert [(failure.client, failure.reason) for failure in first.failures] == [
        ("c1", "OSError: the memory card is gone")
    ]
    assert set(first.participants) == set(second.participants) == {"c0", "c2"}
    assert second.failures == ()
    assert isinstance(words["c1"], OSError)
    assert words["c0"] == words["c2"] == "training is complete after 2 rounds"


def test_on_a_shared_tail_a_lost_client_leaves_no_trace(bench, clients):
    whole = dict(clients)
    clients["c2"] = Breaking(clients["c2"], at=5)
    trained, _ = run(bench, blueprint(bench, "splitfed-v2"), clients)
    del whole["c2"]
    without, _ = run(bench, blueprint(bench, "splitfed-v2"), whole)
    assert all(torch.equal(trained.state[name], without.state[name]) for name in without.state)


WRONG = {
    "shape": (Kind.ACT, lambda t: {n: v[:, :-1] if v.dim() > 1 else v for n, v in t.items()}, r"fc1 is float64\[.*7\]"),
    "dtype": (Kind.ACT, lambda t: {n: v.float() if v.dim() > 1 else v for n, v in t.items()}, "fc1 is float32"),
    "name": (Kind.ACT, lambda t: {f"other_{n}": v for n, v in t.items()}, "expected"),
    "labels": (Kind.ACT, lambda t: {n: v for n, v in t.items() if v.dim() > 1}, "without labels"),
    "weights": (Kind.PARAMS, lambda t: {n: v[:1] for n, v in t.items()}, "fc1.weight is"),
    "not finite": (Kind.PARAMS, lambda t: {n: v * float("nan") for n, v in t.items()}, "'fc1.bias' holds values"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_a_client_sends_is_checked(bench, clients, wrong):
    kind, change, message = WRONG[wrong]

    async def hostile(name, data, plain, open_channel):
        async def connecting():
            return Altered(await open_channel(), kind, change)

        return await plain(name, data, connecting)

    trained, _ = run(bench, blueprint(bench), clients, rounds=1, ends={"c1": hostile})
    (failure,) = trained.rounds[0].failures
    assert failure.client == "c1"
    assert pytest.importorskip("re").search(message, failure.reason), failure.reason
    assert all(torch.isfinite(value).all() for value in trained.state.values())


def test_a_silent_client_is_left_behind_by_the_step_deadline(bench, clients):
    async def silent(name, data, plain, open_channel):
        del data, plain
        channel = await open_channel()
        made = blueprint(bench)
        await channel.tell(Hello(PROTOCOL, name, json.dumps(made.fingerprints()), 8, "test"))
        assert isinstance(await channel.hear(timeout=5, what="welcome"), Welcome)
        await channel.wait_closed()
        return channel.reason

    trained, words = run(bench, blueprint(bench, step=1.0), clients, ends={"c1": silent})
    (failure,) = trained.rounds[0].failures
    assert failure.client == "c1"
    assert "waited 1 s for act[0,1,0]" in failure.reason
    assert set(trained.rounds[1].participants) == {"c0", "c2"}
    assert "waited 1 s" in str(words["c1"])


def test_a_round_has_a_deadline_as_a_whole(bench, clients):
    class Slow(Breaking):
        def __getitem__(self, index):
            import time

            time.sleep(0.2)
            return self.data[index]

    clients["c1"] = Slow(clients["c1"], at=0)
    trained, _ = run(bench, blueprint(bench, round=1.0), clients, rounds=1)
    (failure,) = trained.rounds[0].failures
    assert failure == ("c1", "not done when the round's deadline of 1 s passed")


def test_when_all_are_lost_the_run_ends_with_the_reasons(bench, clients):
    broken = {name: Breaking(data, at=3) for name, data in clients.items()}
    with pytest.raises(splitfl.SplitflError, match=r"the memory card is gone"):
        run(bench, blueprint(bench), broken)


@pytest.mark.parametrize("method", ["pipar", "splitfed-v2"])
def test_a_client_without_a_mini_batch_takes_no_part_and_says_so(bench, clients, method):
    clients["c1"] = bench.dataset(3)
    made = blueprint(bench, method)
    made = dataclasses.replace(made, training=dataclasses.replace(made.training, drop_last=True))
    trained, words = run(bench, made, clients)
    for record in trained.rounds:
        (failure,) = record.failures
        assert failure == ("c1", "takes no part: 3 training samples, no full mini-batch of 4 (drop_last)")
        assert set(record.participants) == {"c0", "c2"}
    assert words["c1"] == "training is complete after 2 rounds"


async def enroll(made, hello, *, expected=2, before=()):
    """What the server answers to `hello` after those of `before`."""
    enrollment = Enrollment(made, expected)
    tasks, ends = [], []
    for word in (*before, hello):
        near, far = memory_pair("client", "server")
        tasks.append(asyncio.create_task(enrollment.admit(far)))
        await near.tell(word)
        ends.append(near)
        await asyncio.sleep(0.05)
    answer = await ends[-1].hear(timeout=2, what="answer")
    for end in ends:
        await end.close()
    await asyncio.gather(*tasks, return_exceptions=True)
    return answer


def hello(made, **changed):
    facts = {
        "protocol": PROTOCOL,
        "client": "phone",
        "fingerprint": json.dumps(made.fingerprints()),
        "samples": 8,
        "software": "test",
        "instance": "a",
    }
    return Hello(**{**facts, **changed})


REFUSED = {
    "version": ({"protocol": PROTOCOL + 1}, r"speaks protocol 2 .*, this server speaks 1|install matching versions"),
    "name": ({"client": "../etc"}, "a client's name has"),
    "samples": ({"samples": 0}, "no training samples"),
    "job": ({"fingerprint": "[1, 2]"}, r"another job than this server: it differs in model, cut, method"),
}


@pytest.mark.parametrize("code", REFUSED)
def test_enrollment_refuses_with_a_reason(bench, code):
    made = blueprint(bench)
    changed, message = REFUSED[code]
    answer = bench.run(enroll(made, hello(made, **changed)))
    assert isinstance(answer, Refuse)
    assert answer.code == code
    assert pytest.importorskip("re").search(message, answer.message), answer.message


def test_enrollment_names_the_part_of_the_job_that_differs(bench):
    made = blueprint(bench)
    other = bench.job(bench.Mlp, "fc1", "pipar", batch_size=5).blueprint()
    answer = bench.run(enroll(made, hello(other)))
    assert "it differs in training;" in answer.message


def test_a_second_client_of_a_name_is_refused_while_the_first_is_there(bench):
    made = blueprint(bench)
    answer = bench.run(enroll(made, hello(made, instance="b"), before=[hello(made)]))
    assert isinstance(answer, Refuse)
    assert "connected already: choose another --name" in answer.message


def test_too_few_clients_is_a_bounded_wait_that_says_who_is_missing(bench):
    made = blueprint(bench, enrollment=0.5)

    async def wait():
        enrollment = Enrollment(made, 3)
        near, far = memory_pair("client", "server")
        task = asyncio.create_task(enrollment.admit(far))
        await near.tell(hello(made))
        try:
            await enrollment.roster()
        finally:
            await near.close()
            await task

    with pytest.raises(splitfl.SplitflError, match=r"1 of 3 clients enrolled within 0.5 s \(present: phone\);"):
        bench.run(wait())


def test_a_client_refuses_programs_that_are_not_its_own(bench):
    """A server that sends instructions for another client, or for a stage that does not exist."""
    from splitfl.transport.messages import Begin, Step

    made = blueprint(bench)

    async def talk(program):
        near, far = memory_pair("c0", "server")

        async def connecting():
            return near

        client = Client(made, bench.dataset(4), name="c0", connect=connecting, pool=Inline())
        task = asyncio.create_task(client.run())
        await far.hear(timeout=2, what="hello")
        await far.tell(Welcome("s", 0, 1))
        await far.tell(Begin(1, 5, program, (), "", (Step(0, 4),)))
        answer = await far.hear(timeout=2, what="answer")
        await far.tell(Finish("over"))
        with pytest.raises((splitfl.SplitflError, ValueError)):
            await task
        await far.close()
        return answer

    for program in ("0L1", "7L0", "0X0"):
        answer = bench.run(talk(program))
        assert isinstance(answer, Refuse)
