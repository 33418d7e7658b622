"""The compute pool: nothing is left running behind a cancelled wait, and nobody waits for what will never run."""

from __future__ import annotations

import asyncio
import functools
import threading
import time

import pytest
import torch

from splitfl.run.pool import Inline, Threads
from splitfl.schedule.instruction import Op


@pytest.fixture
def pool():
    made = Threads(1)
    yield made
    made.close()


def in_loop(test):
    """Run a coroutine test in an event loop of its own, in bounded time."""

    @functools.wraps(test)
    def run(**fixtures):
        asyncio.run(asyncio.wait_for(test(**fixtures), 30))

    return run


class Gate:
    """A computation that runs until it is opened."""

    def __init__(self):
        self.entered, self.opened, self.left = threading.Event(), threading.Event(), False

    def __call__(self):
        self.entered.set()
        assert self.opened.wait(10)
        self.left = True

    async def occupy(self, pool):
        task = asyncio.create_task(pool.run(Op.STEP, self))
        while not self.entered.is_set():
            await asyncio.sleep(0.001)
        return task


@in_loop
async def test_a_cancelled_wait_lasts_until_running_work_is_done(pool):
    gate = Gate()
    task = await gate.occupy(pool)
    for _ in range(3):  # an error and a deadline may both cancel it
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gate.left


@in_loop
async def test_cancelled_work_that_has_not_begun_never_does(pool):
    gate, ran = Gate(), []
    busy = await gate.occupy(pool)
    queued = asyncio.create_task(pool.run(Op.FORWARD, ran.append, 1))
    await asyncio.sleep(0.01)
    queued.cancel()
    await asyncio.wait([queued], timeout=1)
    assert queued.cancelled(), "it does not wait behind the work before it"
    gate.opened.set()
    await busy
    await pool.run(Op.STEP, int)
    assert ran == []


@in_loop
async def test_an_error_of_abandoned_work_stays_quiet(pool, caplog):
    def fail():
        time.sleep(0.05)
        raise ValueError("too late to matter")

    task = asyncio.create_task(pool.run(Op.STEP, fail))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    del task
    assert not caplog.records


@pytest.mark.parametrize("error", [ValueError("bad"), StopIteration("no more"), KeyboardInterrupt()])
@in_loop
async def test_errors_reach_the_caller_and_the_worker_lives_on(pool, error):
    def fail():
        raise error

    expected = RuntimeError if isinstance(error, StopIteration) else type(error)
    with pytest.raises(expected):
        await pool.run(Op.FORWARD, fail)
    assert await pool.run(Op.FORWARD, int, "5") == 5


@in_loop
async def test_closing_frees_those_who_wait():
    pool, gate = Threads(1), Gate()
    busy = await gate.occupy(pool)
    queued = asyncio.create_task(pool.run(Op.FORWARD, int))
    await asyncio.sleep(0.01)
    threading.Timer(0.05, gate.opened.set).start()
    await asyncio.to_thread(pool.close)
    await busy
    with pytest.raises(RuntimeError, match="closed"):
        await queued
    with pytest.raises(RuntimeError, match="closed"):
        await pool.run(Op.FORWARD, int)


@in_loop
async def test_slots_compute_side_by_side_with_one_thread_each():
    pool = Threads(3)
    barrier = threading.Barrier(3)
    try:
        await asyncio.gather(*(pool.run(Op.FORWARD, barrier.wait, 10) for _ in range(3)))
        assert await pool.run(Op.FORWARD, torch.get_num_threads) == 1
    finally:
        pool.close()


def test_work_may_outlive_its_event_loop():
    pool, gate = Threads(1), Gate()

    async def start():
        job = asyncio.ensure_future(pool.run(Op.STEP, gate))
        while not gate.entered.is_set():
            await asyncio.sleep(0.001)
        return job

    loop = asyncio.new_event_loop()
    job = loop.run_until_complete(start())
    job._log_destroy_pending = False
    loop.close()
    gate.opened.set()
    pool.close()
    assert gate.left
    assert not any(thread.is_alive() for thread in pool._threads)


@in_loop
async def test_inline_computes_in_turn_and_lets_others_go_first():
    order = []
    task = asyncio.create_task(Inline().run(Op.FORWARD, order.append, "computed"))
    await asyncio.sleep(0)
    order.append("another task")
    await task
    assert order == ["another task", "computed"]
