"""Rounds through real strategies, and every fault of numbers that users of comparable systems met."""

import random
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Strategy

from splitfl.aggregation import AggregationError, Refusal, StrategyRounds, Update, handover, mean, strategy_from

BATCHNORM = ("bn.running_mean", "bn.running_var", "bn.num_batches_tracked")


def trainable(state):
    return {name: value for name, value in state.items() if name not in BATCHNORM}


def run(strategy, state, fleet, *, rounds=1, **options):
    runner = StrategyRounds(strategy, state, **options)
    for number in range(1, rounds + 1):
        outcome = runner.round(number, state, fleet.train, fleet.clients)
        state = outcome.state
    return outcome


def test_fedavg_is_the_mean_bit_for_bit(state, fleet, equal):
    outcome = run(strategy_from("FedAvg"), state, fleet)
    assert equal(outcome.state, mean([fleet.update(client, state) for client in fleet.clients], state))
    assert outcome.metrics == {"train_loss": pytest.approx((10 * 1 + 20 * 2 + 30 * 3) / 60)}
    assert outcome.refused == ()
    assert fleet.configs == [{}, {}, {}]


STRATEGIES = [
    ("FedAvg", {}),
    ("FedProx", {"proximal_mu": 0.1}),
    ("FedAvgM", {"server_momentum": 0.9, "server_learning_rate": 0.5}),
    ("FedAdagrad", {}),
    ("FedAdam", {}),
    ("FedYogi", {}),
    ("FedMedian", {}),
    ("FedTrimmedAvg", {"beta": 0.3}),
    ("Krum", {"num_malicious_nodes": 1}),
    ("MultiKrum", {"num_malicious_nodes": 1, "num_nodes_to_select": 3}),
    ("Bulyan", {"num_malicious_nodes": 1}),
    ("QFedAvg", {"client_learning_rate": 0.1}),
]


@pytest.mark.parametrize(("name", "options"), STRATEGIES)
def test_every_strategy_runs_and_leaves_buffers_and_dtypes_alone(name, options, state, make_fleet):
    fleet = make_fleet(samples=(10, 20, 30, 40, 50, 60, 70))
    before = {key: value.clone() for key, value in state.items()}
    outcome = run(strategy_from(name, options), state, fleet, rounds=3, honors=["proximal-mu"])
    assert [(key, value.dtype, value.shape) for key, value in outcome.state.items()] == [
        (key, value.dtype, value.shape) for key, value in state.items()
    ]
    assert all(torch.equal(state[key], before[key]) for key in state), "the round wrote into the state it was given"
    assert any(not torch.equal(outcome.state[key], state[key]) for key in trainable(state))
    # Buffers follow their own rule whatever the strategy: +(5 + 6) per round, and the mean of 1e-8 x (client + 1).
    assert outcome.state["bn.num_batches_tracked"].item() == 33
    variance = sum(samples * 1e-8 * (client + 1) for client, samples in enumerate(fleet.samples)) / sum(fleet.samples)
    torch.testing.assert_close(outcome.state["bn.running_var"], torch.full((4,), variance), rtol=1e-6, atol=0)


def expected(fleet, state, rule):
    """`rule` over what the clients hand over, tensor by tensor, in double precision."""
    updates = [fleet.update(client, state) for client in fleet.clients]
    return {name: rule(torch.stack([u.state[name].double() for u in updates])) for name in trainable(state)}


def check(outcome, wanted):
    for name, value in wanted.items():
        torch.testing.assert_close(outcome.state[name].double(), value, rtol=1e-6, atol=1e-7)


def test_fedmedian_is_the_median(state, fleet):
    outcome = run(strategy_from("FedMedian"), state, fleet)
    check(outcome, expected(fleet, state, lambda values: values.median(dim=0).values))


def test_fedtrimmedavg_leaves_out_the_extremes(state, make_fleet):
    fleet = make_fleet(samples=(1, 1, 1, 1, 1))
    outcome = run(strategy_from("FedTrimmedAvg", {"beta": 0.2}), state, fleet)
    check(outcome, expected(fleet, state, lambda values: values.sort(dim=0).values[1:-1].mean(dim=0)))


def test_krum_takes_the_update_nearest_to_its_neighbors(state, make_fleet):
    fleet = make_fleet(samples=(1, 1, 1, 1, 1))
    updates = [fleet.update(client, state) for client in fleet.clients]
    flat = torch.stack([torch.cat([u.state[name].flatten() for name in trainable(state)]).double() for u in updates])
    distances = (torch.cdist(flat, flat) ** 2).sort(dim=1).values[:, 1:3].sum(dim=1)
    best = int(distances.argmin())
    outcome = run(strategy_from("Krum", {"num_malicious_nodes": 1}), state, fleet)
    check(outcome, {name: updates[best].state[name].double() for name in trainable(state)})


def test_fedavgm_steps_along_its_momentum(state, fleet):
    options = {"server_momentum": 0.5, "server_learning_rate": 1.0}
    outcome = run(strategy_from("FedAvgM", options), state, fleet, rounds=2)
    first = mean([fleet.update(client, state) for client in fleet.clients], state)
    second = mean([fleet.update(client, first) for client in fleet.clients], first)
    check(
        outcome,
        {
            n: first[n].double() + (second[n] - first[n]).double() + 0.5 * (first[n] - state[n])
            for n in trainable(state)
        },
    )


def test_fedadam_is_adam_on_the_mean_change(state, fleet):
    outcome = run(strategy_from("FedAdam", {"eta": 0.01, "tau": 1e-3}), state, fleet)
    averaged = mean([fleet.update(client, state) for client in fleet.clients], state)
    wanted = {}
    for name in trainable(state):
        change = (averaged[name] - state[name]).double()
        rate = 0.01 * (1 - 0.99**2) ** 0.5 / (1 - 0.9**2)
        wanted[name] = state[name] + rate * 0.1 * change / ((0.01 * change**2).sqrt() + 1e-3)
    check(outcome, wanted)


@pytest.mark.parametrize("strategy", [FedAdam, FedYogi])
def test_adaptive_strategies_never_drive_a_variance_below_zero(strategy, state, fleet):
    outcome = run(strategy(min_available_nodes=1), state, fleet, rounds=5)
    assert (outcome.state["bn.running_var"] > 0).all()
    assert all(torch.isfinite(value).all() for value in outcome.state.values())


def test_buffers_that_the_model_names_stay_out_of_the_strategy(state, fleet):
    outcome = run(FedAdam(), state, fleet, buffers=["conv.weight"])
    plain = mean([fleet.update(client, state) for client in fleet.clients], state)
    assert torch.equal(outcome.state["conv.weight"], plain["conv.weight"])
    assert not torch.equal(outcome.state["fc.bias"], plain["fc.bias"])


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float64]
)
@pytest.mark.parametrize("name", ["FedAvg", "FedMedian", "FedAdam"])
def test_every_floating_dtype_goes_through(name, dtype, make_fleet):
    fleet = make_fleet(samples=(1, 1, 2))
    state = {"w": torch.tensor([0.5, -1.0]).to(dtype), "scale": torch.tensor(1.5).to(dtype), "none": torch.ones(0, 3)}

    def train(assignments):
        return [
            Update(job.client, "c", 1, {n: (v.float() + job.client).to(v.dtype) for n, v in job.state.items()})
            for job in assignments
        ]

    outcome = StrategyRounds(strategy_from(name), state).round(1, state, train, fleet.clients)
    assert [value.dtype for value in outcome.state.values()] == [dtype, dtype, torch.float32]
    assert outcome.state["none"].shape == (0, 3)
    if name != "FedAdam":
        assert outcome.state["w"].float().tolist() == [1.5, 0.0]


# --- what clients send ------------------------------------------------------------------------------------------------


def spoiled(fleet, client, change):
    """A `train` in which one client's update is put through `change`."""

    def train(assignments):
        return [change(update) if update.client == client else update for update in fleet.train(assignments)]

    return train


def with_state(**changes):
    names = {key.replace("_", ".", 1): value for key, value in changes.items()}
    return lambda update: replace(update, state={**update.state, **names})


def test_an_infinite_update_is_refused_by_name_and_the_others_are_averaged(state, fleet, equal):
    change = with_state(fc_bias=torch.tensor([1.0, float("inf")]))
    runner = StrategyRounds(FedAvg(), state)
    outcome = runner.round(1, state, spoiled(fleet, 1, change), fleet.clients)
    assert outcome.refused == (Refusal(1, "phone-1", "tensor 'fc.bias' holds values that are not finite"),)
    assert equal(outcome.state, mean([fleet.update(client, state) for client in (0, 2)], state))


def test_a_refusal_stops_the_round_where_the_job_says_so(state, fleet):
    runner = StrategyRounds(FedAvg(), state, on_refusal="stop")
    change = with_state(fc_bias=torch.tensor([1.0, float("nan")]))
    with pytest.raises(AggregationError, match=r"round 1: an update was refused .*phone-1: tensor 'fc.bias'"):
        runner.round(1, state, spoiled(fleet, 1, change), fleet.clients)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda u: replace(u, state={n: v for n, v in u.state.items() if n != "fc.bias"}), "lacks tensor 'fc.bias'"),
        (with_state(fc_bias=torch.ones(3)), "tensor 'fc.bias' has shape (3,), expected (2,)"),
        (lambda u: replace(u, kind="delta"), "sent a delta where weights are expected"),
        (lambda u: replace(u, samples=0), "trained on 0 samples, expected 1 or more"),
    ],
)
def test_what_does_not_fit_is_refused_and_named(change, reason, state, fleet):
    outcome = StrategyRounds(FedAvg(), state).round(1, state, spoiled(fleet, 2, change), fleet.clients)
    assert outcome.refused == (Refusal(2, "phone-2", reason),)


def test_a_client_without_samples_may_hold_nan(state, make_fleet):
    fleet = make_fleet(samples=(0, 5))
    change = with_state(fc_bias=torch.full((2,), float("nan")))
    outcome = StrategyRounds(FedAvg(), state).round(1, state, spoiled(fleet, 0, change), fleet.clients)
    assert torch.equal(outcome.state["fc.bias"], fleet.update(1, state).state["fc.bias"])


def test_no_samples_anywhere_fails_the_round_and_keeps_the_model(state, make_fleet):
    fleet = make_fleet(samples=(0, 0))
    before = {name: value.clone() for name, value in state.items()}
    with pytest.raises(AggregationError) as raised:
        StrategyRounds(FedAvg(), state).round(1, state, fleet.train, fleet.clients)
    assert str(raised.value) == (
        "round 1: no update counts (phone-0: trained on 0 samples, expected 1 or more; "
        "phone-1: trained on 0 samples, expected 1 or more); the weights before the round stay"
    )
    assert all(torch.equal(state[name], before[name]) for name in state)


def test_nobody_answering_fails_the_round(state, fleet):
    with pytest.raises(AggregationError, match="round 4: no client sent an update; the weights before the round stay"):
        StrategyRounds(FedAvg(), state).round(4, state, lambda _: [], fleet.clients)


def test_updates_from_strangers_and_twice_from_one_are_refused(state, fleet):
    def train(assignments):
        updates = fleet.train(assignments)
        return [*updates, updates[1], replace(updates[0], client=9, name="stranger")]

    outcome = StrategyRounds(FedAvg(), state).round(1, state, train, fleet.clients)
    assert [(refusal.client, refusal.reason) for refusal in outcome.refused] == [
        (1, "sent 2 updates in one round, expected 1"),
        (9, "sent an update but was not asked in this round"),
    ]


def test_clients_that_report_other_metrics_do_not_stop_the_round(state, fleet):
    change = lambda update: replace(update, metrics={"train_loss": 0.0, "battery": 0.5})  # noqa: E731
    outcome = StrategyRounds(FedAvg(), state).round(1, state, spoiled(fleet, 0, change), fleet.clients)
    assert set(outcome.metrics) == {"train_loss"}


def test_the_state_a_round_starts_from_must_fit(state, fleet):
    runner = StrategyRounds(FedAvg(), state)
    with pytest.raises(AggregationError, match=r"round 2: the state to start from lacks tensor 'fc.bias'"):
        runner.round(2, {name: v for name, v in state.items() if name != "fc.bias"}, fleet.train, fleet.clients)


# --- order and chance -------------------------------------------------------------------------------------------------


def test_the_order_in_which_clients_finish_does_not_change_a_bit(state, fleet, equal):
    def train_backwards(assignments):
        return fleet.train(assignments)[::-1]

    for name in ("FedAvg", "FedAdam", "Krum"):
        one = StrategyRounds(strategy_from(name), state).round(1, state, fleet.train, fleet.clients)
        other = StrategyRounds(strategy_from(name), state).round(1, state, train_backwards, fleet.clients)
        assert equal(one.state, other.state)


def sampled(state, fleet, *, seed, rounds=6):
    runner = StrategyRounds(strategy_from("FedAvg", {"fraction_train": 0.5}), state, seed=seed)
    for number in range(1, rounds + 1):
        random.random()
        runner.round(number, state, fleet.train, fleet.clients)
    return fleet.asked


@pytest.mark.parametrize("name", ["FedAvg", "FedAdam", "FedMedian", "Krum"])
def test_where_nothing_is_averaged_clients_still_train(name, fleet):
    for template in ({}, {"steps": torch.tensor(0)}):
        outcome = run(strategy_from(name), template, fleet)
        assert {key: value.item() for key, value in outcome.state.items()} == dict.fromkeys(template, 7)
    assert fleet.asked == [[0, 1, 2], [0, 1, 2]]


def test_the_seed_decides_who_is_sampled_and_nothing_else_does(state, make_fleet):
    drawn = [sampled(state, make_fleet(samples=(1,) * 10), seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(len(asked) == 5 and asked == sorted(asked) for asked in drawn[0])
    assert len({tuple(asked) for asked in drawn[0]}) > 1, "every round sampled the same clients"


def test_a_round_alone_samples_as_it_does_in_a_row(state, make_fleet):
    in_a_row = sampled(state, make_fleet(samples=(1,) * 10), seed=3, rounds=4)
    fleet = make_fleet(samples=(1,) * 10)
    runner = StrategyRounds(strategy_from("FedAvg", {"fraction_train": 0.5}), state, seed=3)
    runner.round(4, state, fleet.train, fleet.clients)
    assert fleet.asked == [in_a_row[3]]


def test_global_random_state_is_left_as_it_was(state, fleet):
    python, numpy, tensors = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    run(strategy_from("FedAvg", {"fraction_train": 0.5}), state, fleet)
    assert random.getstate() == python
    assert (np.random.get_state()[1] == numpy).all()
    assert torch.equal(torch.get_rng_state(), tensors)


# --- too few clients --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "setting"),
    [(FedAvg(min_available_nodes=5), "min_available_nodes = 5"), (FedAvg(min_train_nodes=4), "min_train_nodes = 4")],
)
def test_too_few_clients_fail_at_once_and_the_setting_is_named(strategy, setting, state, fleet):
    start = time.monotonic()
    with pytest.raises(AggregationError, match=f"round 1: strategy FedAvg needs {setting} clients, 3 are there"):
        StrategyRounds(strategy, state).round(1, state, fleet.train, fleet.clients)
    assert time.monotonic() - start < 1
    assert fleet.asked == []


def test_no_clients_at_all_fail_at_once(state, fleet):
    with pytest.raises(AggregationError, match="needs min_available_nodes = 1 clients, 0 are there"):
        StrategyRounds(strategy_from("FedAvg"), state).round(1, state, fleet.train, {})


def test_a_wrapped_strategy_is_asked_too(fleet):
    state = {"w": torch.zeros(3)}
    options = {"strategy": FedAvg(min_available_nodes=9), "noise_multiplier": 0.0, "clipping_norm": 1.0}
    strategy = strategy_from("DifferentialPrivacyServerSideFixedClipping", options, clients=3)
    with pytest.raises(AggregationError, match="needs min_available_nodes = 9 clients, 3 are there"):
        StrategyRounds(strategy, state).round(1, state, fleet.train, fleet.clients)


def test_a_strategy_that_makes_nothing_is_reported_with_its_own_words(state, fleet):
    with pytest.raises(AggregationError) as raised:
        run(strategy_from("Bulyan", {"num_malicious_nodes": 1}), state, fleet)
    message = str(raised.value)
    assert message.startswith("round 1: strategy Bulyan: it made no weights from 3 updates (Insufficient replies")
    assert "Required at least 7" in message


def test_a_strategy_that_asks_nobody_fails_the_round(state, fleet):
    with pytest.raises(AggregationError, match="round 1: no client sent an update"):
        run(FedAvg(fraction_train=0.0), state, fleet)


# --- strategies that fail or could not keep a promise -----------------------------------------------------------------


class Exploding(FedAvgM):
    """Remembers a momentum, and returns NaN in the rounds it is told to."""

    bad_rounds = (2,)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        if server_round in self.bad_rounds:
            self.momentum_vector = [value * float("nan") for value in self.momentum_vector]
            for name, array in arrays.items():
                arrays[name] = type(array)(array.numpy() * float("nan"))
        return arrays, metrics


def test_a_failed_round_leaves_no_trace_in_the_strategy(state, fleet, equal):
    options = {"server_momentum": 0.9, "min_available_nodes": 1}
    runner, clean = StrategyRounds(Exploding(**options), state), StrategyRounds(FedAvgM(**options), state)
    after = runner.round(1, state, fleet.train, fleet.clients).state
    with pytest.raises(
        AggregationError, match=r"round 2: the result of strategy Exploding cannot be used: tensor 'conv.weight'"
    ):
        runner.round(2, after, fleet.train, fleet.clients)
    again = runner.round(3, after, fleet.train, fleet.clients)
    assert equal(clean.round(1, state, fleet.train, fleet.clients).state, after)
    assert equal(clean.round(2, after, fleet.train, fleet.clients).state, again.state)


class Raising(FedAvg):
    def aggregate_train(self, server_round, replies):
        raise ZeroDivisionError("float division by zero")


def test_errors_of_a_strategy_name_it_and_the_round(state, fleet):
    with pytest.raises(AggregationError, match="round 1: strategy Raising: float division by zero"):
        run(Raising(), state, fleet)


def test_errors_of_training_come_through_as_they_are(state, fleet):
    def train(assignments):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        StrategyRounds(FedAvg(), state).round(1, state, train, fleet.clients)


def test_what_is_no_strategy_is_refused(state):
    with pytest.raises(AggregationError, match=r"strategy = 'FedAvg': expected one of flwr.serverapp.strategy"):
        StrategyRounds("FedAvg", state)
    with pytest.raises(AggregationError, match='on_refusal = \'ask\': expected "continue" or "stop"'):
        StrategyRounds(FedAvg(), state, on_refusal="ask")


def test_a_request_that_clients_do_not_act_on_is_refused_not_ignored(state, fleet):
    with pytest.raises(
        AggregationError, match=r"strategy FedProx asks clients for 'proximal-mu', which they do not act"
    ):
        run(FedProx(proximal_mu=0.1), state, fleet)
    run(FedProx(proximal_mu=0.1), state, fleet, honors=["proximal-mu"])
    assert fleet.configs == [{"proximal-mu": 0.1}] * 3


def test_the_jobs_own_configuration_reaches_the_clients(state, fleet):
    StrategyRounds(FedAvg(), state).round(1, state, fleet.train, fleet.clients, config={"lr": 0.5})
    assert fleet.configs == [{"lr": 0.5}] * 3


def test_clients_may_be_given_as_ids(state, fleet):
    outcome = StrategyRounds(FedAvg(), state).round(1, state, fleet.train, [2, 0])
    assert fleet.asked == [[0, 2]]
    assert outcome.refused == ()


def test_a_round_can_run_in_another_thread(state, fleet, equal):
    found = []
    runner = StrategyRounds(FedAvg(), state)
    thread = threading.Thread(target=lambda: found.append(runner.round(1, state, fleet.train, fleet.clients)))
    thread.start()
    thread.join(30)
    assert equal(found[0].state, mean([fleet.update(client, state) for client in fleet.clients], state))


def test_any_message_based_strategy_of_the_users_runs(state, fleet):
    class FirstOnly(Strategy):
        """Not derived from FedAvg: keeps the update of the lowest id."""

        def configure_train(self, server_round, arrays, config, grid):
            from flwr.app import Message, RecordDict

            for node in grid.get_node_ids():
                yield Message(
                    RecordDict({"model": arrays, "config": config}), dst_node_id=node, message_type="train.fast"
                )

        def aggregate_train(self, server_round, replies):
            return replies[0].content["model"], None

        def configure_evaluate(self, server_round, arrays, config, grid):
            return []

        def aggregate_evaluate(self, server_round, replies):
            return None

        def summary(self):
            return None

    outcome = run(FirstOnly(), state, fleet)
    first = fleet.update(0, state)
    assert all(torch.equal(outcome.state[name], first.state[name]) for name in trainable(state))
    assert outcome.metrics == {}


# --- handing on -------------------------------------------------------------------------------------------------------


def test_a_relay_hands_the_weights_on(state, fleet, equal):
    update = fleet.update(1, state)
    outcome = handover([update], state)
    assert equal(outcome.state, update.state)
    assert outcome.metrics == {"train_loss": 2.0}


def test_a_relay_goes_on_without_a_refused_client(state, fleet, equal):
    update = with_state(fc_bias=torch.tensor([float("nan"), 0.0]))(fleet.update(1, state))
    outcome = handover([update], state)
    assert equal(outcome.state, state)
    assert outcome.refused == (Refusal(1, "phone-1", "tensor 'fc.bias' holds values that are not finite"),)
    assert equal(handover([], state).state, state)


def test_a_relay_takes_one_client_at_a_time(state, fleet):
    with pytest.raises(AggregationError, match=r"2 clients \(phone-0, phone-1\) in one turn of a relay, expected 1"):
        handover([fleet.update(0, state), fleet.update(1, state)], state)
