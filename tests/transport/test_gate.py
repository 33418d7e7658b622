"""A server takes so many sessions, and so often, and says no to one too many."""

from __future__ import annotations

import asyncio

import pytest

from splitfl.api.loop import run_blocking
from splitfl.transport import SessionLimits, TransportError, connect, serve
from splitfl.transport.gate import HOSTS, WINDOW, Gate


def test_one_host_is_counted_over_a_minute():
    now = [1000.0]
    gate = Gate(SessionLimits(open=10, per_minute=3), clock=lambda: now[0])
    assert [gate.objection("a", open_sessions=0) for _ in range(3)] == [None] * 3
    assert "a opened 3 sessions within a minute" in gate.objection("a", open_sessions=0)
    assert gate.objection("b", open_sessions=0) is None
    now[0] += WINDOW
    assert gate.objection("a", open_sessions=0) is None


def test_open_sessions_are_bounded():
    gate = Gate(SessionLimits(open=2), clock=lambda: 0.0)
    assert gate.objection("a", open_sessions=1) is None
    assert "this server has 2 sessions" in gate.objection("a", open_sessions=2)


def test_memory_is_bounded_however_many_hosts_come():
    gate = Gate(SessionLimits(), clock=lambda: 0.0)
    for number in range(HOSTS + 100):
        gate.objection(str(number), open_sessions=0)
    assert len(gate._recent) == HOSTS


@pytest.mark.parametrize(("limits", "words"), [
    (SessionLimits(open=1), "this server has 1 sessions, as many as it takes"),
    (SessionLimits(per_minute=1), "opened 1 sessions within a minute"),
])  # fmt: skip
def test_one_too_many_is_told_why(limits, words):
    async def run():
        server = await serve("127.0.0.1:0", lambda channel: channel.wait_closed(), sessions=limits)
        first = await connect(server.address, timeout=5)
        try:
            with pytest.raises(TransportError, match=words):
                await connect(server.address, timeout=0.5)
        finally:
            await first.close()
            await server.stop(1)

    run_blocking(asyncio.wait_for(run(), 20))


def test_a_place_that_becomes_free_is_given_to_the_next():
    async def run():
        server = await serve("127.0.0.1:0", lambda channel: channel.wait_closed(), sessions=SessionLimits(open=1))
        first = await connect(server.address, timeout=5)
        waiting = asyncio.create_task(connect(server.address, timeout=10))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await first.close()
        second = await waiting
        assert not second.closed
        await second.close()
        await server.stop(1)

    run_blocking(asyncio.wait_for(run(), 20))
