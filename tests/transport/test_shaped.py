"""Emulated links: the time that a message takes is the one that rate and delay give."""

import asyncio
import math
import time

import pytest

from splitfl.errors import SplitflError
from splitfl.transport import Link, Way
from splitfl.transport.messages import Finish

SLACK = 0.15
"""Seconds of lateness that a busy machine is allowed."""


def took(start, seconds):
    elapsed = time.monotonic() - start
    return seconds - 0.005 <= elapsed <= seconds + SLACK


@pytest.mark.parametrize("kind", ["memory", "grpc"])
async def test_rate_and_delay_in_each_direction(kind, memory, grpc_pair, act):
    link = Link(up=Way(rate=2e6, delay=0.05), down=Way(rate=8e6, delay=0.1))
    async with (memory if kind == "memory" else grpc_pair)(link=link) as (near, far):
        start = time.monotonic()
        await near.send(act(), [bytes(400_000)])
        assert took(start, 0.2)
        await far.receive(act(), timeout=10)
        assert took(start, 0.25)
        start = time.monotonic()
        sending = asyncio.create_task(far.send(act(), [bytes(400_000)]))
        await near.receive(act(), timeout=10)
        assert took(start, 0.15)
        await sending


async def test_messages_follow_each_other_without_gaps(memory, act):
    async with memory(link=Link(up=Way(rate=1e7, delay=0.1))) as (near, far):
        start = time.monotonic()
        sends = [asyncio.create_task(near.send(act(index), [bytes(100_000)])) for index in range(30)]
        for index in range(30):
            await far.receive(act(index), timeout=10)
        assert took(start, 0.4)
        await asyncio.gather(*sends)


async def test_directions_do_not_disturb_each_other(memory, act):
    way = Way(rate=2e6)
    async with memory(link=Link(up=way, down=way)) as (near, far):
        start = time.monotonic()
        payload = [bytes(600_000)]
        await asyncio.gather(
            near.send(act(), payload),
            far.send(act(), payload),
            near.receive(act(), timeout=10),
            far.receive(act(), timeout=10),
        )
        assert took(start, 0.3)


async def test_last_words_survive_the_delay(memory):
    async with memory(link=Link(up=Way(delay=0.1))) as (near, far):
        await near.tell(Finish("bye"))
        await near.close()
        assert await far.hear(timeout=5, what="a word") == Finish("bye")


async def test_a_link_without_limits_is_no_burden(memory, act):
    async with memory(link=Link()) as (near, far):
        start = time.monotonic()
        await near.send(act(), [bytes(1000)])
        await far.receive(act(), timeout=5)
        assert took(start, 0.0)


@pytest.mark.parametrize(("rate", "delay"), [(0, 0), (-1, 0), (math.nan, 0), (1, -1), (1, math.nan), (1, math.inf)])
def test_impossible_links_are_refused(rate, delay):
    with pytest.raises(SplitflError, match=r"link: (rate|delay) = "):
        Way(rate=rate, delay=delay)
