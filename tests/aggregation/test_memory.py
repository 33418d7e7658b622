"""What strategies remember survives a restart, bit for bit, without pickle."""

import json

import pytest
import torch

from splitfl.aggregation import AggregationError, StrategyRounds, strategy_from

STATE = {"w": torch.linspace(-1, 1, 7), "scalar": torch.tensor(0.5), "steps": torch.tensor(0)}


def rounds(runner, state, fleet, numbers):
    for number in numbers:
        state = runner.round(number, state, fleet.train, fleet.clients).state
    return state


MAKERS = {
    "FedAvg": {"fraction_train": 0.7},
    "FedAvgM": {"server_momentum": 0.9, "server_learning_rate": 0.5},
    "FedAdagrad": {},
    "FedAdam": {},
    "FedYogi": {},
    "QFedAvg": {"client_learning_rate": 0.1},
    "FedMedian": {},
    "DifferentialPrivacyServerSideAdaptiveClipping": {"noise_multiplier": 0.0, "strategy": "FedAdam"},
}


@pytest.mark.parametrize(("name", "options"), MAKERS.items())
def test_a_resumed_job_ends_with_the_same_bits(name, options, fleet, equal):
    def make():
        return StrategyRounds(strategy_from(name, options, clients=3), STATE, seed=4)

    whole = rounds(make(), STATE, fleet, range(1, 7))
    first = make()
    half = rounds(first, STATE, fleet, range(1, 4))
    tensors, record = first.checkpoint()
    assert all(isinstance(value, torch.Tensor) for value in tensors.values())
    second = make()
    second.resume(tensors, json.loads(json.dumps(record)))
    assert equal(rounds(second, half, fleet, range(4, 7)), whole)


def test_without_its_memory_the_bits_would_differ(fleet, equal):
    def make():
        return StrategyRounds(strategy_from("FedAdam"), STATE)

    whole = rounds(make(), STATE, fleet, range(1, 4))
    half = rounds(make(), STATE, fleet, [1, 2])
    assert not equal(rounds(make(), half, fleet, [3]), whole)


def test_a_checkpoint_does_not_follow_what_happens_later(fleet):
    runner = StrategyRounds(strategy_from("FedAvgM", {"server_momentum": 0.9}), STATE)
    state = rounds(runner, STATE, fleet, [1])
    tensors, _ = runner.checkpoint()
    kept = {name: value.clone() for name, value in tensors.items()}
    rounds(runner, state, fleet, [2])
    assert all(torch.equal(tensors[name], kept[name]) for name in kept)


def test_settings_are_the_jobs_not_the_checkpoints(fleet):
    first = StrategyRounds(strategy_from("FedAdam", {"eta": 0.5}), STATE)
    rounds(first, STATE, fleet, [1])
    strategy = strategy_from("FedAdam", {"eta": 0.01})
    StrategyRounds(strategy, STATE).resume(*first.checkpoint())
    assert strategy.eta == 0.01
    assert set(strategy.m_t) == {"w", "scalar"}


def test_every_block_is_restored(fleet, equal):
    template = {"a": torch.zeros(2), "b": torch.zeros(3)}

    def make():
        return StrategyRounds(strategy_from("FedAdam"), template, holds={0: ["a"], 1: ["a", "b"], 2: ["a", "b"]})

    whole = rounds(make(), template, fleet, [1, 2])
    first = make()
    half = rounds(first, template, fleet, [1])
    second = make()
    second.resume(*first.checkpoint())
    assert equal(rounds(second, half, fleet, [2]), whole)


def test_a_checkpoint_of_another_strategy_or_cut_is_refused(fleet):
    runner = StrategyRounds(strategy_from("FedAdam"), STATE)
    rounds(runner, STATE, fleet, [1])
    saved = runner.checkpoint()
    with pytest.raises(AggregationError, match="belongs to strategy FedAdam, the job has FedYogi"):
        StrategyRounds(strategy_from("FedYogi"), STATE).resume(*saved)
    template = {"a": torch.zeros(2), "b": torch.zeros(3)}
    blocks = StrategyRounds(strategy_from("FedAdam"), template, holds={0: ["a"], 1: ["a", "b"]})
    with pytest.raises(AggregationError, match="the checkpoint has 1 blocks of layers, the job 2"):
        blocks.resume(*saved)
