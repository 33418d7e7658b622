"""Who is turned away hears why, and the reason comes before the error that it causes."""

from __future__ import annotations

import asyncio
import json

import pytest

import splitfl
from splitfl.run.blueprint import Deadlines
from splitfl.run.client import Client
from splitfl.run.enrollment import Enrollment
from splitfl.run.pool import Inline
from splitfl.transport import memory_pair
from splitfl.transport.messages import PROTOCOL, Begin, Finish, Hello, Refuse, Welcome


def blueprint(bench, method, **deadlines):
    chosen = Deadlines(**{"enrollment": 5.0, "step": 3.0, "round": 20.0, "rejoin": 0.0, **deadlines})
    return bench.job(bench.Mlp, "fc1", method, deadlines=chosen).blueprint()


def test_one_client_too_many_is_turned_away_before_training_begins(bench):
    made = blueprint(bench, "pipar")

    async def crowd():
        enrollment, words, ends = Enrollment(made, 2), [], []
        tasks = []
        for name in ("a", "b", "c"):
            near, far = memory_pair("client", "server")
            tasks.append(asyncio.create_task(enrollment.admit(far)))
            await near.tell(Hello(PROTOCOL, name, json.dumps(made.fingerprints()), 8, "test", instance=name))
            ends.append(near)
        await asyncio.sleep(0.1)
        roster = await enrollment.roster()
        words = [await end.hear(timeout=2, what="answer") for end in ends]
        for end in ends:
            await end.close()
        await asyncio.gather(*tasks)
        return roster.names, words

    names, words = bench.run(crowd())
    assert names == {0: "a", 1: "b"}
    assert [type(word) for word in words] == [Welcome, Welcome, Refuse]
    assert words[2].message == "all 2 clients are enrolled"


def test_those_who_came_hear_who_is_missing(bench):
    made = blueprint(bench, "pipar", enrollment=0.3)

    async def wait():
        enrollment = Enrollment(made, 2)
        near, far = memory_pair("client", "server")
        admitting = asyncio.create_task(enrollment.admit(far))

        async def connecting():
            return near

        client = Client(made, bench.dataset(8), name="phone", connect=connecting, pool=Inline())
        joining = asyncio.create_task(client.run())
        with pytest.raises(splitfl.SplitflError, match="1 of 2 clients enrolled"):
            await enrollment.roster()
        with pytest.raises(splitfl.SplitflError, match=r"refused phone: 1 of 2 clients enrolled .*missing 1"):
            await joining
        await admitting

    bench.run(wait())


def test_a_servers_word_comes_before_the_error_it_causes(bench):
    """The server drops a client and hangs up; the client says why, not only that the line is dead."""
    made = blueprint(bench, "pipar")

    async def talk():
        near, far = memory_pair("c0", "server")

        async def connecting():
            return near

        client = Client(made, bench.dataset(4), name="c0", connect=connecting, pool=Inline())
        task = asyncio.create_task(client.run())
        await far.hear(timeout=2, what="hello")
        await far.tell(Welcome("s", 0, 1))
        await far.tell(Begin(1, 5, "0R0(avg:server) 0L0", (), "", ()))
        await asyncio.sleep(0.05)
        await far.tell(Refuse("dropped", "you were too slow"))
        await far.close("dropped")
        with pytest.raises(splitfl.SplitflError, match="the server dropped c0: you were too slow"):
            await task

    bench.run(talk())


def test_a_new_turn_comes_before_the_error_it_causes_in_the_old_one(bench):
    made = blueprint(bench, "fedavg")

    async def talk():
        near, far = memory_pair("c0", "server")

        async def connecting():
            return near

        client = Client(made, bench.dataset(4), name="c0", connect=connecting, pool=Inline())
        task = asyncio.create_task(client.run())
        await far.hear(timeout=2, what="hello")
        await far.tell(Welcome("s", 0, 1))
        for turn in range(1, 30):  # each begins while the client still waits for the weights of the one before
            await far.tell(Begin(turn, 5, "0R0(avg:server) 0L0", (), "", ()))
            if turn % 2:
                await asyncio.sleep(0.002)
        await far.tell(Finish("done"))
        assert await task == "done"
        await far.close()

    bench.run(talk())


def test_one_that_comes_back_while_training_ends_is_told_so(bench):
    """It is taken back just after the last words went out to the connections of before."""
    made = bench.job(bench.Mlp, "fc1", splitfl.methods.pipar(micro_batches=2)).blueprint()

    async def scene():
        enrollment = Enrollment(made, 1)
        pairs = [memory_pair("c0", "server") for _ in range(2)]
        tasks = [asyncio.create_task(enrollment.admit(ours)) for _, ours in pairs]
        hello = Hello(PROTOCOL, "c0", json.dumps(made.fingerprints()), 8, "splitfl", instance="same")
        await pairs[0][0].tell(hello)
        roster = await enrollment.roster()
        taken_back = roster.take_back

        async def late(*arguments):
            await taken_back(*arguments)
            enrollment.end(Finish("training is complete"))

        roster.take_back = late
        await pairs[1][0].tell(hello)
        back = pairs[1][0]
        assert isinstance(await back.hear(timeout=5, what="a welcome"), Welcome)
        word = await back.hear(timeout=5, what="the last word")
        for theirs, _ in pairs:
            await theirs.close()
        await asyncio.gather(*tasks)
        return word

    assert bench.run(scene(), within=20) == Finish("training is complete")
