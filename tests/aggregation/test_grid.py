"""Our grid under Flower's own loop: `strategy.start` runs unchanged and nothing waits for ever."""

import os
import time

import pytest
import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp.strategy import FedAvg, FedProx
from flwr.supercore.run import Run

from splitfl.aggregation import AggregationError, Refusal, SplitGrid, Update, mean, to_record, to_tensors


def test_flower_neither_phones_home_nor_looks_for_updates():
    assert os.environ["FLWR_TELEMETRY_ENABLED"] == "0"
    assert os.environ["FLWR_DISABLE_UPDATE_CHECK"] == "1"


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.complex64, torch.int64, torch.uint8, torch.bool),
    ],
)
@pytest.mark.parametrize("shape", [(), (0, 3), (3, 2)])
def test_tensors_come_back_from_records_bit_for_bit(dtype, shape):
    value = (torch.arange(6).reshape(2, 3).T / 3 if shape == (3, 2) else torch.ones(shape)).to(dtype)
    back = to_tensors(to_record({"w": value}), {"w": value})["w"]
    assert (back.dtype, back.shape) == (dtype, value.shape)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    assert torch.equal(back.to(wide), value.to(wide))


def test_an_array_that_is_no_tensor_of_the_model_is_named():
    with pytest.raises(AggregationError, match="array '0' is no tensor of the model"):
        to_tensors(to_record({"0": torch.ones(1)}), {"w": torch.ones(1)})


def test_flowers_own_loop_runs_unchanged(fleet):
    state = {"w": torch.zeros(3), "half": torch.zeros(2, dtype=torch.bfloat16)}
    grid = SplitGrid(fleet.train, fleet.clients, template=state)
    result = FedAvg().start(grid=grid, initial_arrays=to_record(state), num_rounds=2, timeout=5)
    after = state
    for _ in range(2):
        after = mean([fleet.update(client, after) for client in fleet.clients], after)
    final = to_tensors(result.arrays, state)
    torch.testing.assert_close(final["w"], after["w"], rtol=1e-6, atol=0)
    torch.testing.assert_close(final["half"], after["half"], rtol=2**-7, atol=0)
    assert fleet.asked == [[0, 1, 2], [0, 1, 2]]
    assert result.train_metrics_clientapp[2]["train_loss"] == pytest.approx((10 * 1 + 20 * 2 + 30 * 3) / 60)
    assert result.evaluate_metrics_clientapp == {}


def test_evaluation_reaches_the_clients_where_the_engine_offers_it(fleet):
    seen = []

    def evaluate(assignments):
        seen.extend((job.client, job.config["server-round"]) for job in assignments)
        return {job.client: (job.client + 1, {"accuracy": job.client / 2, "own": 1.0}) for job in assignments[1:]}

    state = {"w": torch.zeros(3)}
    grid = SplitGrid(fleet.train, fleet.clients, template=state, evaluate=evaluate)
    result = FedAvg().start(grid=grid, initial_arrays=to_record(state), num_rounds=1)
    assert seen == [(0, 1), (1, 1), (2, 1)]
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == pytest.approx((2 * 0.5 + 3 * 1.0) / 5)


def test_what_the_strategy_asks_of_clients_reaches_them(fleet):
    state = {"w": torch.zeros(3)}
    grid = SplitGrid(fleet.train, fleet.clients, template=state)
    FedProx(proximal_mu=0.25).start(grid=grid, initial_arrays=to_record(state), num_rounds=1)
    assert [config["proximal-mu"] for config in fleet.configs] == [0.25] * 3


def test_a_strategy_that_waits_for_more_clients_is_stopped_and_told_why(fleet):
    state = {"w": torch.zeros(3)}
    grid = SplitGrid(fleet.train, fleet.clients, template=state, patience=0.5)
    start = time.monotonic()
    with pytest.raises(
        AggregationError, match=r"waited 0.5 s for more clients than the 3 that are there: lower its min_"
    ):
        FedAvg(min_available_nodes=4).start(grid=grid, initial_arrays=to_record(state), num_rounds=1)
    assert time.monotonic() - start < 5
    assert fleet.asked == []


def message(grid, client, kind=MessageType.TRAIN, **state):
    content = RecordDict({"arrays": to_record(state), "config": ConfigRecord({})})
    return grid.create_message(content, kind, client, group_id="1")


def test_replies_come_in_client_order_and_are_pulled_once(fleet):
    grid = SplitGrid(fleet.train, fleet.clients, template={"w": torch.zeros(1)})
    ids = list(grid.push_messages([message(grid, client, w=torch.zeros(1)) for client in (2, 0, 1)]))
    replies = list(grid.pull_messages(ids))
    assert [reply.metadata.src_node_id for reply in replies] == [0, 1, 2]
    assert [reply.metadata.reply_to_message_id for reply in replies] == ids
    assert list(grid.pull_messages(ids)) == []
    assert list(grid.pull_messages(["never sent"])) == []


def test_messages_to_one_client_are_one_assignment_and_get_a_reply_each(fleet):
    template = {"a": torch.zeros(1), "b": torch.zeros(1), "steps": torch.tensor(3)}
    grid = SplitGrid(fleet.train, fleet.clients, template=template)
    replies = list(grid.send_and_receive([message(grid, 1, a=torch.ones(1)), message(grid, 1, b=torch.ones(1) * 2)]))
    assert fleet.asked == [[1]]
    assert {name: value.item() for name, value in fleet.received[0].items()} == {"a": 1, "b": 2, "steps": 3}
    assert [list(reply.content["arrays"]) for reply in replies] == [["a"], ["b"]]


def test_whoever_cannot_answer_is_answered_for():
    def train(assignments):
        return [Refusal(0, "c0", "ran out of battery"), Update(2, "c2", 1, {"other": torch.ones(1)})]

    grid = SplitGrid(train, {0: "c0", 1: "c1", 2: "c2"}, template={"w": torch.zeros(1)})
    replies = grid.send_and_receive([message(grid, client, w=torch.zeros(1)) for client in (0, 1, 2, 7)], timeout=1)
    assert [reply.error.reason for reply in replies] == [
        "client 0 ran out of battery",
        "client 1 gave no update",
        "client 2 lacks tensor 'w'",
        "client 7 is not in session",
    ]


@pytest.mark.parametrize("kind", [MessageType.QUERY, MessageType.EVALUATE])
def test_messages_that_clients_do_not_take_are_answered_at_once(fleet, kind):
    grid = SplitGrid(fleet.train, fleet.clients, template={"w": torch.zeros(1)})
    (reply,) = grid.send_and_receive([message(grid, 0, kind, w=torch.zeros(1))])
    assert reply.error.reason == f"client 0 does not take {str(kind)!r} messages"
    assert fleet.asked == []


def test_metrics_that_only_some_clients_report_are_left_out(fleet):
    def train(assignments):
        return [
            Update(job.client, "", 1, job.state, {"loss": 1.0} | ({"extra": 2.0} if job.client else {}))
            for job in assignments
        ]

    grid = SplitGrid(train, fleet.clients, template={"w": torch.zeros(1)}, weighted_by="weight")
    replies = grid.send_and_receive([message(grid, client, w=torch.zeros(1)) for client in fleet.clients])
    assert [dict(reply.content["metrics"]) for reply in replies] == [{"loss": 1.0, "weight": 1}] * 3


def test_the_run_can_be_described_and_clients_may_come_and_go(fleet):
    clients = fleet.clients
    grid = SplitGrid(fleet.train, clients, template={})
    assert isinstance(grid.run, Run)
    described = Run.create_empty(run_id=9)
    grid.set_run(described)
    assert grid.run is described
    assert list(grid.get_node_ids()) == [0, 1, 2]
    del clients[1]
    assert list(grid.get_node_ids()) == [0, 2]
    assert [node.node_id for node in grid.get_nodes()] == [0, 2]


def test_an_empty_push_asks_nobody(fleet):
    grid = SplitGrid(fleet.train, fleet.clients, template={})
    assert list(grid.send_and_receive([])) == []
    assert fleet.asked == []


def test_messages_can_be_made_outside_a_flower_process(fleet):
    SplitGrid(fleet.train, fleet.clients, template={})
    assert Message(RecordDict(), dst_node_id=0, message_type=MessageType.TRAIN).metadata.dst_node_id == 0
