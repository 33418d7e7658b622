"""The small parts of the engine, one by one."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import splitfl
from splitfl.run.pool import Inline, Threads
from splitfl.run.seeds import derive
from splitfl.run.slots import SlotError, Slots
from splitfl.run.target import is_target, join_target, split_target
from splitfl.schedule import Kind, Op, Value


def test_slots_give_each_value_once():
    slots, value = Slots(), Value(Kind.ACT, 0, 1, 2)
    slots.put(value, "content")
    with pytest.raises(SlotError, match=r"act\[0,1,2\] is already here"):
        slots.put(value, "other")
    assert slots.peek(value) == slots.take(value) == "content"
    with pytest.raises(SlotError, match=r"act\[0,1,2\] is not here; present: nothing"):
        slots.take(value)


def test_slots_forget_what_one_client_left():
    slots = Slots()
    for client in (0, 1, None):
        slots.put(Value(Kind.PARAMS, 1, client), client)
    slots.discard(1)
    assert len(slots) == 2
    slots.discard(None)
    assert slots.take(Value(Kind.PARAMS, 1, 0)) == 0


@given(st.integers(0, 2**63 - 1), st.lists(st.integers(0, 100) | st.text(max_size=5), max_size=4))
def test_seeds_are_named_draws(seed, labels):
    one = derive(seed, *labels)
    assert one == derive(seed, *labels)
    assert 0 <= one < 2**63
    assert derive(seed, *labels, "more") != one


def test_seeds_do_not_change_between_versions():
    assert derive(3, "round", 1) == 6642879394795298899


@pytest.mark.parametrize(
    "target",
    [torch.arange(3), (torch.arange(3), torch.ones(3, 2)), {"mask": torch.ones(3), "label": torch.arange(3)}],
    ids=["tensor", "tuple", "dict"],
)
def test_labels_travel_with_an_activation(target):
    joined = join_target({"act": torch.zeros(3, 4), "target": torch.ones(3)}, target)
    tensors, back = split_target(joined)
    assert set(tensors) == {"act", "target"}  # a value of the model may be called target: the colon tells them apart
    assert sum(is_target(name) for name in joined) == len(joined) - 2
    assert type(back) is type(target)
    torch.testing.assert_close(back, target)


def test_labels_of_another_kind_are_refused():
    with pytest.raises(splitfl.SplitflError, match="labels of type str: expected a tensor, a tuple or a dict"):
        join_target({}, "cat")
    assert split_target({"act": torch.zeros(1)})[1] is None


def test_the_pool_runs_what_others_wait_for_first():
    order = []

    async def fill():
        pool, gate = Threads(1), threading.Event()
        first = asyncio.create_task(pool.run(Op.STEP, gate.wait, 5))
        await asyncio.sleep(0.05)
        ops = (Op.STEP, Op.BACKWARD_WEIGHT, Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT, Op.SEND)
        rest = [asyncio.create_task(pool.run(op, order.append, op)) for op in ops]
        await asyncio.sleep(0.05)
        gate.set()
        await asyncio.gather(first, *rest)
        await asyncio.to_thread(pool.close)
        with pytest.raises(RuntimeError, match="closed"):
            await pool.run(Op.FORWARD, int)

    asyncio.run(fill())
    assert order[:4] == [Op.SEND, Op.BACKWARD_INPUT, Op.BACKWARD, Op.FORWARD]
    assert set(order[4:]) == {Op.STEP, Op.BACKWARD_WEIGHT}


def test_cancelled_work_that_has_begun_is_waited_for():
    state = []

    def work():
        time.sleep(0.2)
        state.append("done")

    async def cancel():
        pool = Threads(1)
        task = asyncio.create_task(pool.run(Op.FORWARD, work))
        queued = asyncio.create_task(pool.run(Op.FORWARD, state.append, "never"))
        await asyncio.sleep(0.05)
        for each in (task, queued):
            each.cancel()
        await asyncio.gather(task, queued, return_exceptions=True)
        assert task.cancelled()
        assert state == ["done"]
        await asyncio.to_thread(pool.close)

    asyncio.run(cancel())


@pytest.mark.parametrize("make", [Inline, lambda: Threads(2)])
def test_errors_of_work_come_back(make):
    async def fail():
        pool = make()
        with pytest.raises(ZeroDivisionError):
            await pool.run(Op.FORWARD, lambda: 1 / 0)
        assert await pool.run(Op.FORWARD, max, 1, 2) == 2
        await asyncio.to_thread(pool.close)

    asyncio.run(fail())
