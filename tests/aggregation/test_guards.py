"""What is refused before a strategy sees it, and what of its result is not believed."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitfl.aggregation import AggregationError, Refusal, Update, guard_result, guard_updates

TEMPLATE = {"a.weight": torch.zeros(2, 2), "b.running_var": torch.ones(2), "b.num_batches_tracked": torch.tensor(0)}


def good(client=0, **changes):
    state = {"a.weight": torch.ones(2, 2), "b.running_var": torch.ones(2), "b.num_batches_tracked": torch.tensor(4)}
    state |= changes.pop("state", {})
    return replace(Update(client, f"phone-{client}", 5, state), **changes)


def without(name):
    update = good()
    return replace(update, state={key: value for key, value in update.state.items() if key != name})


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (without("a.weight"), "lacks tensor 'a.weight'"),
        (good(state={"z.weight": torch.ones(1), "y": torch.ones(1)}), "sent unknown tensor 'y' and 1 more"),
        (good(state={"a.weight": torch.ones(2, 3)}), "tensor 'a.weight' has shape (2, 3), expected (2, 2)"),
        (good(state={"a.weight": torch.ones(4)}), "tensor 'a.weight' has shape (4,), expected (2, 2)"),
        (
            good(state={"a.weight": torch.ones(2, 2).double()}),
            "tensor 'a.weight' has dtype torch.float64, expected torch.float32",
        ),
        (
            good(state={"b.num_batches_tracked": torch.tensor(4.0)}),
            "tensor 'b.num_batches_tracked' has dtype torch.float32, expected torch.int64",
        ),
        (
            good(state={"a.weight": torch.ones(2, 2).to_sparse()}),
            "tensor 'a.weight' is torch.sparse_coo, expected a dense tensor",
        ),
        (
            good(state={"a.weight": torch.tensor([[1.0, float("inf")], [0, 0]])}),
            "tensor 'a.weight' holds values that are not finite",
        ),
        (
            good(state={"a.weight": torch.tensor([[1.0, float("nan")], [0, 0]])}),
            "tensor 'a.weight' holds values that are not finite",
        ),
        (good(state={"b.running_var": torch.tensor([1.0, -1e-8])}), "tensor 'b.running_var' holds a negative variance"),
        (good(samples=0), "trained on 0 samples, expected 1 or more"),
        (good(samples=-3), "trained on -3 samples, expected 1 or more"),
        (good(kind="delta"), "sent a delta where weights are expected"),
    ],
)
def test_a_bad_update_is_refused_by_name_and_the_others_count(update, reason):
    accepted, refused = guard_updates([good(1), update, good(2)], TEMPLATE)
    assert [each.client for each in accepted] == [1, 2]
    assert refused == [Refusal(0, "phone-0", reason)]
    assert str(refused[0]) == f"phone-0: {reason}"


@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.float16, torch.bfloat16, torch.complex64])
def test_infinity_is_found_in_every_dtype(dtype):
    template = {"w": torch.zeros(2, dtype=torch.float32).to(dtype)}
    _, refused = guard_updates([Update(0, "c0", 1, {"w": torch.tensor([1.0, float("inf")]).to(dtype)})], template)
    assert refused[0].reason == "tensor 'w' holds values that are not finite"
    accepted, _ = guard_updates([Update(0, "c0", 1, {"w": torch.tensor([1.0, 2.0]).to(dtype)})], template)
    assert len(accepted) == 1


def test_deltas_are_taken_where_they_are_expected():
    accepted, refused = guard_updates([good(0, kind="delta"), good(1)], TEMPLATE, kind="delta")
    assert [each.client for each in accepted] == [0]
    assert refused[0].reason == "sent weights where a delta is expected"


@given(order=st.permutations([0, 1, 1, 2, 3]))
def test_order_of_arrival_decides_nothing_and_a_double_update_does_not_count(order):
    accepted, refused = guard_updates([good(client) for client in order], TEMPLATE, asked=[0, 1, 2])
    assert [each.client for each in accepted] == [0, 2]
    assert [(each.client, each.reason) for each in refused] == [
        (1, "sent 2 updates in one round, expected 1"),
        (3, "sent an update but was not asked in this round"),
    ]


def test_refusals_of_the_engine_are_passed_on():
    lost = Refusal(1, "phone-1", "connection lost")
    accepted, refused = guard_updates([lost, good(0)], TEMPLATE, asked=[0, 1])
    assert ([each.client for each in accepted], refused) == ([0], [lost])


def test_clients_with_their_own_cut_hand_over_what_they_hold():
    holds = {0: ["a.weight"], 1: list(TEMPLATE)}
    short = Update(0, "phone-0", 5, {"a.weight": torch.ones(2, 2)})
    accepted, refused = guard_updates([short, good(1)], TEMPLATE, holds=holds)
    assert (len(accepted), refused) == (2, [])
    _, refused = guard_updates([good(0)], TEMPLATE, holds=holds)
    assert refused[0].reason == "sent unknown tensor 'b.num_batches_tracked' and 1 more"


def test_a_result_is_put_in_order_and_cast_back():
    template = {"a": torch.zeros(2, dtype=torch.bfloat16), "n": torch.tensor(0)}
    result = guard_result({"n": torch.tensor(7.0), "a": torch.tensor([1.5, 2.5]).double()}, template, source="FedAdam")
    assert [(name, value.dtype) for name, value in result.items()] == [("a", torch.bfloat16), ("n", torch.int64)]
    assert result["a"].tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ({}, "lacks tensor 'a'"),
        ({"a": torch.zeros(2), "c": torch.zeros(1)}, "has unknown tensor 'c'"),
        ({"a": torch.zeros(3)}, "cannot be used: tensor 'a' has shape (3,), expected (2,)"),
        ({"a": torch.tensor([1.0, float("nan")])}, "cannot be used: tensor 'a' holds values that are not finite"),
        ({"a": torch.tensor([1.0, 1e6])}, "cannot be used: tensor 'a' holds values that are not finite"),
    ],
)
def test_a_result_that_cannot_be_used_names_source_and_tensor(result, reason):
    template = {"a": torch.zeros(2, dtype=torch.float16)}
    with pytest.raises(AggregationError) as raised:
        guard_result(result, template, source="round 3: the result of strategy FedYogi")
    assert str(raised.value) == f"round 3: the result of strategy FedYogi {reason}"
