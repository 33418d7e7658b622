"""What every channel promises, whatever carries it."""

import asyncio
import time

import pytest

from splitfl.transport import ChannelClosed, ChannelLimits, DeadlineExceeded, TransportError
from splitfl.transport.envelope import EnvelopeError, encode_control
from splitfl.transport.messages import PROTOCOL, Begin, Finish, Hello, Refuse, Report, Step, Traced, Welcome
from splitfl.transport.part import PART_SIZE, SLACK, bundle_size

CONTROLS = [
    Hello(PROTOCOL, "phone", "{}", 600, "test", "token"),
    Welcome("id", 0, 3, '{"seed": 1}'),
    Begin(1, 2**63 - 1, "0L0", ("0F0.0", ""), "", (Step(0, 32), Step(1, 0))),
    Report(1, 600, {"loss": 0.5}, (Traced("0F0.0", 0.0, 0.25, 7),)),
    Refuse("failed", "because"),
    Finish("done"),
]


async def test_control_messages_arrive_in_order(channels):
    async with channels() as (near, far):
        for control in CONTROLS:
            await near.tell(control)
        for control in CONTROLS:
            assert await far.hear(timeout=10, what="a message") == control


@pytest.mark.parametrize("size", [0, 1, PART_SIZE - 1, PART_SIZE, PART_SIZE + SLACK + 1, 5_000_000])
async def test_bundles_of_every_size(channels, act, size):
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    async with channels() as (near, far):
        sending = asyncio.create_task(near.send(act(), [payload[:10], memoryview(payload)[10:]]))
        received = await far.receive(act(), timeout=30)
        assert received == payload
        assert len(received) == size
        assert await sending == bundle_size(act(), size) == near.sent_bytes == far.received_bytes


async def test_receiving_goes_by_address_not_by_arrival(channels, act):
    async with channels() as (near, far):
        waiting = asyncio.create_task(far.receive(act(2), timeout=10))
        for micro_batch in (0, 1, 2):
            await near.send(act(micro_batch), [bytes([micro_batch])])
        assert bytes(await waiting) == b"\2"
        assert bytes(await far.receive(act(1), timeout=10)) == b"\1"
        assert bytes(await far.receive(act(0), timeout=10)) == b"\0"


async def test_both_directions_at_once(channels, act):
    big = bytes(3 * PART_SIZE)
    async with channels() as (near, far):
        sends = asyncio.gather(near.send(act(), [big]), far.send(act(), [big]))
        received = await asyncio.gather(near.receive(act(), timeout=30), far.receive(act(), timeout=30))
        await sends
        assert [len(payload) for payload in received] == [len(big)] * 2


async def test_the_buffer_may_change_once_it_is_sent(channels, act):
    buffer = bytearray(b"\1" * (2 * PART_SIZE))
    async with channels() as (near, far):
        await near.send(act(), [buffer])
        buffer[:] = bytes(len(buffer))
        assert bytes(await far.receive(act(), timeout=10)) == b"\1" * len(buffer)


async def test_deadlines_say_what_was_awaited_from_whom_for_how_long(channels, act):
    async with channels() as (near, _):
        start = time.monotonic()
        with pytest.raises(DeadlineExceeded, match=r"waited 0.05 s for act\[0,0,3\] of round 1, step 2 from .*"):
            await near.receive(act(3, step=2), timeout=0.05)
        with pytest.raises(DeadlineExceeded, match=r"waited 0.05 s for the next round from") as caught:
            await near.hear(timeout=0.05, what="the next round")
        assert near.peer in str(caught.value)
        assert time.monotonic() - start < 5


async def test_close_wakes_everybody_with_its_reason(channels, act):
    async with channels() as (near, far):
        waiting = [
            asyncio.create_task(near.receive(act(), timeout=60)),
            asyncio.create_task(near.hear(timeout=60, what="a word")),
            asyncio.create_task(near.wait_closed()),
        ]
        await asyncio.sleep(0.02)
        await far.tell(Finish("done"))
        await far.close("lunch")
        assert await waiting[1] == Finish("done")
        with pytest.raises(ChannelClosed, match="lunch"):
            await waiting[0]
        await waiting[2]
        assert near.closed
        assert "lunch" in near.reason
        assert far.closed
        assert far.reason == "lunch"
        with pytest.raises(ChannelClosed, match="lunch"):
            await near.send(act(), [b"x"])
        with pytest.raises(ChannelClosed, match="lunch"):
            await near.hear(timeout=60, what="a word")
        with pytest.raises(ChannelClosed, match="lunch"):
            await far.tell(Finish("again"))


async def test_own_close_wakes_own_waiters(channels, act):
    async with channels() as (near, _):
        waiting = asyncio.create_task(near.receive(act(), timeout=60))
        await asyncio.sleep(0.02)
        await near.close("enough")
        with pytest.raises(ChannelClosed, match="enough"):
            await waiting
        await near.close("twice is fine")
        assert near.reason == "enough"


async def test_what_arrived_before_the_end_can_still_be_taken(channels, act):
    async with channels() as (near, far):
        await near.send(act(), [b"late"])
        await near.tell(Finish("bye"))
        await near.close()
        await far.wait_closed()
        assert bytes(await far.receive(act(), timeout=1)) == b"late"
        assert await far.hear(timeout=1, what="a word") == Finish("bye")


async def test_a_refusal_gets_through_before_the_close(channels):
    async with channels() as (near, far):
        await far.tell(Refuse("name", "taken"))
        await far.close("taken")
        assert await near.hear(timeout=10, what="a welcome") == Refuse("name", "taken")


async def test_control_messages_overtake_a_large_bundle(channels, act):
    async with channels() as (near, far):
        sending = asyncio.create_task(near.send(act(), [bytes(40 * PART_SIZE)]))
        await asyncio.sleep(0)
        await near.tell(Finish("now"))
        assert not sending.done()
        assert await far.hear(timeout=10, what="a word") == Finish("now")
        await far.receive(act(), timeout=60)
        await sending


async def test_a_full_mailbox_makes_the_sender_wait_and_loses_nothing(channels, act):
    limits = ChannelLimits(waiting=3 * PART_SIZE)
    count = 40
    async with channels(limits=limits) as (near, far):
        sends = [asyncio.create_task(near.send(act(index), [bytes([index]) * PART_SIZE])) for index in range(count)]
        await asyncio.sleep(0.3)
        assert far.received_bytes <= 5 * PART_SIZE
        assert not sends[-1].done()
        for index in range(count):
            assert bytes(await far.receive(act(index), timeout=10)) == bytes([index]) * PART_SIZE
        await asyncio.gather(*sends)


async def test_what_is_awaited_passes_a_full_mailbox(channels, act):
    async with channels(limits=ChannelLimits(waiting=10)) as (near, far):
        await near.send(act(0), [bytes(10)])
        waiting = asyncio.create_task(far.receive(act(1), timeout=10))
        await near.send(act(1), [bytes(1000)])
        assert len(await waiting) == 1000


async def test_a_bundle_sent_twice_is_refused(channels, act):
    async with channels() as (near, far):
        await near.send(act(), [b"first"])
        await near.send(act(), [b"second"])
        refusal = await near.hear(timeout=10, what="a refusal")
        assert refusal.code == "protocol"
        assert "act[0,0,0] of round 1, step 0 was sent twice" in refusal.message
        await far.wait_closed()
        assert "broke the protocol" in far.reason
        assert bytes(await far.receive(act(), timeout=1)) == b"first"


async def test_a_bundle_over_the_limit_is_refused_at_its_first_part(channels, act):
    async with channels(limits=ChannelLimits(message=2 * PART_SIZE)) as (near, far):
        sending = asyncio.create_task(near.send(act(), [bytes(100 * PART_SIZE)]))
        refusal = await near.hear(timeout=10, what="a refusal")
        assert f"{100 * PART_SIZE} bytes, expected at most {2 * PART_SIZE}" in refusal.message
        with pytest.raises(ChannelClosed):
            await sending
        assert far.received_bytes < 100 * PART_SIZE


async def test_leftovers_of_an_earlier_round_are_dropped(channels, act):
    async with channels() as (near, far):
        await near.send(act(0, round_number=1), [b"old"])
        await near.send(act(0, round_number=2), [b"new"])
        assert bytes(await far.receive(act(0, round_number=2), timeout=10)) == b"new"
        with pytest.raises(TransportError, match="round 2 has begun"):
            await far.receive(act(0, round_number=1), timeout=10)
        await near.send(act(1, round_number=1), [b"stale"])
        await near.send(act(1, round_number=2), [b"fresh"])
        assert bytes(await far.receive(act(1, round_number=2), timeout=10)) == b"fresh"


async def test_a_cancelled_send_does_not_break_the_channel(channels, act):
    async with channels() as (near, far):
        begun = asyncio.create_task(near.send(act(0), [bytes(30 * PART_SIZE)]))
        queued = asyncio.create_task(near.send(act(1), [b"queued"]))
        await asyncio.sleep(0.001)
        begun.cancel()
        queued.cancel()
        await asyncio.gather(begun, queued, return_exceptions=True)
        await near.send(act(2), [b"next"])
        assert bytes(await far.receive(act(2), timeout=30)) == b"next"


async def test_a_cancelled_wait_can_be_repeated(channels, act):
    async with channels() as (near, far):
        for wait in (lambda: far.receive(act(), timeout=10), lambda: far.hear(timeout=10, what="a word")):
            waiting = asyncio.create_task(wait())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        await near.send(act(), [b"x"])
        await near.tell(Finish("y"))
        assert bytes(await far.receive(act(), timeout=10)) == b"x"
        assert await far.hear(timeout=10, what="a word") == Finish("y")


async def test_values_that_do_not_travel_are_refused_at_once(channels, act):
    async with channels() as (near, _):
        address = act()
        stash = address._replace(value=address.value._replace(kind="stash"))
        with pytest.raises(EnvelopeError, match="does not travel, expected one of act, grad, params, avg"):
            await near.send(stash, [b"x"])
        with pytest.raises(EnvelopeError, match=r"Begin.seed = -1, expected a uint64"):
            await near.tell(Begin(1, -1, "", (), "", ()))
        with pytest.raises(EnvelopeError, match=r"Finish has .* bytes, expected at most"):
            await near.tell(Finish("x" * (9 << 20)))


async def test_the_same_messages_take_the_same_bytes_everywhere(channels, act):
    async with channels() as (near, far):
        for control in CONTROLS:
            await near.tell(control)
        await near.send(act(), [bytes(2 * PART_SIZE)])
        await far.receive(act(), timeout=10)
        wanted = sum(len(encode_control(control)) for control in CONTROLS) + bundle_size(act(), 2 * PART_SIZE)
        assert near.sent_bytes == far.received_bytes == wanted


async def test_a_million_bytes_of_small_messages(channels, act):
    async with channels() as (near, far):

        async def feed():
            for index in range(500):
                await near.send(act(index % 50, step=index // 50), [bytes(200)])

        feeding = asyncio.create_task(feed())
        for index in range(500):
            assert len(await far.receive(act(index % 50, step=index // 50), timeout=20)) == 200
        await feeding
