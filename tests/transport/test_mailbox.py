"""Parts that a broken or hostile peer sends."""

import asyncio
import resource
from pathlib import Path

import pytest

from splitfl.transport import ChannelLimits, DeadlineExceeded
from splitfl.transport.envelope import EnvelopeError, Part
from splitfl.transport.mailbox import MAX_CONTROLS, Mailbox
from splitfl.transport.messages import Finish


def part(address, *, size, number=0, payload=b"x"):
    return Part(address, size, number, memoryview(payload))


@pytest.fixture
def mailbox():
    return Mailbox("c1", limits=ChannelLimits(message=1 << 40, waiting=1000))


@pytest.mark.parametrize(
    ("parts", "objection"),
    [
        ([{"size": 4, "number": 1}], "part 1 of .* follows none"),
        ([{"size": 4}, {"size": 4, "number": 2}], "part 2 of .* follows none"),
        ([{"size": 4}, {"size": 4}], "sent twice"),
        ([{"size": 1}, {"size": 1}], "sent twice"),
        ([{"size": 1}, {"size": 1, "number": 1}], "part 1 of .* follows none"),
        ([{"size": 4}, {"size": 5, "number": 1}], "does not fit"),
        ([{"size": 4}, {"size": 4, "number": 1, "payload": b"12345"}], "does not fit"),
        ([{"size": 4}, {"size": 4, "number": 1, "payload": b""}], "does not fit"),
        ([{"size": 4, "payload": b""}], "4 bytes, but its first part 0"),
        ([{"size": 0}], "0 bytes, but its first part 1"),
        ([{"size": 1 << 41}], "expected at most"),
    ],
)
async def test_parts_that_do_not_fit_are_refused(mailbox, act, parts, objection):
    for fields in parts[:-1]:
        await mailbox.put(part(act(), **fields))
    with pytest.raises(EnvelopeError, match=objection):
        await mailbox.put(part(act(), **parts[-1]))


async def test_a_claimed_size_costs_nothing(act):
    mailbox = Mailbox("c1", limits=ChannelLimits(message=1 << 40, waiting=1 << 40))
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    for index in range(4):
        await mailbox.put(part(act(index), size=4 << 30))
    grown = (int(Path("/proc/self/statm").read_text().split()[1]) - pages) * resource.getpagesize()
    assert grown < 50 << 20


async def test_a_deadline_tells_how_far_it_came(mailbox, act):
    await mailbox.put(part(act(), size=10, payload=b"123"))
    with pytest.raises(DeadlineExceeded, match=r"from c1; 3 of 10 bytes came"):
        await mailbox.take(act(), timeout=0.01)


async def test_one_receiver_per_address(mailbox, act):
    first = asyncio.create_task(mailbox.take(act(), timeout=10))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="being received already"):
        await mailbox.take(act(), timeout=10)
    await mailbox.put(part(act(), size=1))
    assert bytes(await first) == b"x"


async def test_parts_of_a_round_that_is_over_are_ignored(mailbox, act):
    await mailbox.put(part(act(round_number=1), size=3))
    await mailbox.put(part(act(round_number=2), size=1))
    await mailbox.put(part(act(round_number=1), size=3, number=1))
    await mailbox.put(part(act(round_number=1), size=3, number=7))
    assert bytes(await mailbox.take(act(round_number=2), timeout=1)) == b"x"


async def test_an_old_round_makes_room(mailbox, act):
    await mailbox.put(part(act(round_number=1), size=1000, payload=bytes(1000)))
    blocked = asyncio.create_task(mailbox.put(part(act(1, round_number=1), size=1000, payload=bytes(1000))))
    await asyncio.sleep(0.01)
    assert not blocked.done()
    waiting = asyncio.create_task(mailbox.take(act(round_number=2), timeout=1))
    await blocked
    await mailbox.put(part(act(round_number=2), size=1))
    assert bytes(await waiting) == b"x"


async def test_control_messages_are_capped(mailbox):
    for _ in range(MAX_CONTROLS):
        await mailbox.put_control(Finish(""))
    blocked = asyncio.create_task(mailbox.put_control(Finish("last")))
    await asyncio.sleep(0.01)
    assert not blocked.done()
    await mailbox.take_control(timeout=1, what="a word")
    await blocked
    for _ in range(MAX_CONTROLS - 1):
        await mailbox.take_control(timeout=1, what="a word")
    assert await mailbox.take_control(timeout=1, what="a word") == Finish("last")
