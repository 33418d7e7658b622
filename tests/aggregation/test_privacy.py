"""Differentially private strategies: noise that is there, that nobody can draw again, and that covers everything."""

import math

import pytest
import torch
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg

from splitfl.aggregation import AggregationError, StrategyRounds, mean, strategy_from

FIXED = "DifferentialPrivacyServerSideFixedClipping"
ADAPTIVE = "DifferentialPrivacyServerSideAdaptiveClipping"
STATE = {"w": torch.zeros(2000), "steps": torch.tensor(0)}


def run(fleet, name=FIXED, rounds=1, *, strategy=None, **options):
    settings = options.pop("settings", {"noise_multiplier": 1.0, "clipping_norm": 0.5})
    strategy = strategy or strategy_from(name, settings, clients=3)
    runner = StrategyRounds(strategy, STATE, **options)
    state = STATE
    for number in range(1, rounds + 1):
        state = runner.round(number, state, fleet.train, fleet.clients).state
    return state


def test_without_noise_or_clipping_it_is_the_strategy_within(fleet, equal):
    result = run(fleet, settings={"noise_multiplier": 0.0, "clipping_norm": 1e9})
    plain = mean([fleet.update(client, STATE) for client in fleet.clients], STATE)
    torch.testing.assert_close(result["w"], plain["w"])
    assert result["steps"].item() == 7


def test_updates_are_clipped_and_noise_of_the_stated_size_is_added(fleet):
    clipped = run(fleet, settings={"noise_multiplier": 0.0, "clipping_norm": 0.5})
    assert clipped["w"].norm() <= 0.5 + 1e-6
    noise = run(fleet)["w"] - clipped["w"]
    assert noise.std().item() == pytest.approx(1.0 * 0.5 / 3, rel=0.1)


def test_noise_differs_from_run_to_run_although_the_jobs_seed_does_not(fleet):
    assert not torch.equal(run(fleet, seed=1)["w"], run(fleet, seed=1)["w"])


def test_a_noise_seed_makes_a_run_repeatable_with_other_noise_every_round(fleet):
    first, again = (run(fleet, rounds=2, noise_seed=5) for _ in range(2))
    assert torch.equal(first["w"], again["w"])
    one = run(fleet, noise_seed=5)["w"] - run(fleet, settings={"noise_multiplier": 0.0, "clipping_norm": 0.5})["w"]
    assert not torch.allclose(first["w"] - one, one, atol=0.05)


def test_adaptive_clipping_adapts(fleet):
    strategy = strategy_from(ADAPTIVE, {"noise_multiplier": 0.0}, clients=3)
    run(fleet, rounds=2, strategy=strategy)
    # All three updates exceed the norm, half should: it moves by a factor of exp(0.2 x 0.5) each round.
    assert abs(math.log(strategy.clipping_norm / 0.1)) == pytest.approx(2 * 0.2 * 0.5)


def test_running_statistics_would_leave_without_noise(state):
    strategy = strategy_from(FIXED, {"noise_multiplier": 1.0, "clipping_norm": 1.0}, clients=3)
    with pytest.raises(AggregationError, match=r"adds no noise to 'bn.running_mean'.*GroupNorm instead of BatchNorm"):
        StrategyRounds(strategy, state)


def test_clipping_on_clients_is_refused_as_nobody_would_do_it():
    strategy = DifferentialPrivacyClientSideFixedClipping(FedAvg(), 1.0, 1.0, 3)
    with pytest.raises(AggregationError, match="use DifferentialPrivacyServerSideFixedClipping"):
        StrategyRounds(strategy, STATE)


def test_one_bound_per_client_needs_one_block():
    strategy = strategy_from(FIXED, {"noise_multiplier": 1.0, "clipping_norm": 1.0}, clients=2)
    template = {"a": torch.zeros(1), "b": torch.zeros(1)}
    with pytest.raises(AggregationError, match="the cuts make 2 blocks"):
        StrategyRounds(strategy, template, holds={0: ["a"], 1: ["a", "b"]})
