"""Strategies by name: built with what suits the clients, refused with what would be right."""

import pytest
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    FedMedian,
    QFedAvg,
)

from splitfl.aggregation import StrategyError, strategy_from, strategy_names
from splitfl.aggregation.strategies import adds_noise, clips_on_clients, requirement, weight_key


def test_by_default_every_client_takes_part_and_one_is_enough():
    strategy = strategy_from("fedavg", clients=3)
    assert type(strategy) is FedAvg
    assert strategy.fraction_train == 1.0
    assert requirement(strategy) == ("min_available_nodes", 1)


def test_options_reach_the_strategy():
    strategy = strategy_from("QFedAvg", {"client_learning_rate": 0.1, "q": 0.3, "min_train_nodes": 2}, clients=3)
    assert type(strategy) is QFedAvg
    assert (strategy.client_learning_rate, strategy.q, requirement(strategy)) == (0.1, 0.3, ("min_train_nodes", 2))


@pytest.mark.parametrize("inner", ["FedMedian", {"name": "FedMedian", "min_train_nodes": 2}, FedMedian()])
def test_a_wrapper_takes_the_strategy_it_wraps(inner):
    options = {"strategy": inner, "noise_multiplier": 0.5, "clipping_norm": 1.0}
    strategy = strategy_from("DifferentialPrivacyServerSideFixedClipping", options, clients=4)
    assert type(strategy) is DifferentialPrivacyServerSideFixedClipping
    assert type(strategy.strategy) is FedMedian
    assert strategy.num_sampled_clients == 4
    assert adds_noise(strategy)
    assert weight_key(strategy) == "num-examples"


def test_every_listed_name_can_be_built():
    needed = {
        "QFedAvg": {"client_learning_rate": 0.1},
        "FedProx": {"proximal_mu": 0.1},
        "DifferentialPrivacyServerSideFixedClipping": {"noise_multiplier": 0.5, "clipping_norm": 1.0},
        "DifferentialPrivacyServerSideAdaptiveClipping": {"noise_multiplier": 0.1},
    }
    built = [type(strategy_from(name, needed.get(name), clients=4)).__name__ for name in strategy_names()]
    assert built == strategy_names()
    assert {"FedAvg", "FedAdam", "Krum", "Bulyan", "FedTrimmedAvg"} < set(built)


def test_strategies_that_rely_on_clients_to_clip_are_not_offered():
    assert clips_on_clients(DifferentialPrivacyClientSideFixedClipping)
    assert not any("ClientSide" in name for name in strategy_names())
    assert not adds_noise(FedAvg())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("FedAvrg", {}, "strategy = 'FedAvrg': expected one of Bulyan, "),
        ("FedAvrg", {}, "did you mean 'FedAvg'?"),
        ("FedXgbBagging", {}, "expected one of"),
        ("FedAdam", {"lr": 0.1}, "strategy FedAdam: unknown option 'lr', expected some of fraction_train, "),
        ("QFedAvg", {}, "strategy QFedAvg: option 'client_learning_rate' is missing"),
        ("FedAvg", {"fraction_train": 1.5}, "fraction_train = 1.5, expected a number from 0 to 1"),
        ("FedAvg", {"fraction_train": "half"}, "fraction_train = 'half', expected a number"),
        ("FedAvg", {"min_train_nodes": 5}, "min_train_nodes = 5, expected 1 to 3"),
        ("FedAvg", {"min_available_nodes": 0}, "min_available_nodes = 0, expected 1 to 3"),
        ("FedAvg", {"min_train_nodes": 1.5}, "min_train_nodes = 1.5, expected a whole number"),
        ("FedAvg", {"weighted_by_key": 3}, "weighted_by_key = 3, expected a text"),
        ("FedTrimmedAvg", {"beta": 0.7}, "strategy FedTrimmedAvg: `beta` must be in the range"),
        ("DifferentialPrivacyServerSideFixedClipping", {"clipping_norm": 1.0}, "option 'noise_multiplier' is missing"),
        (
            "DifferentialPrivacyServerSideFixedClipping",
            {"clipping_norm": 1.0, "noise_multiplier": 1.0, "strategy": "FedNone"},
            "strategy = 'FedNone': expected one of",
        ),
    ],
)
def test_what_cannot_be_built_is_refused_with_what_would_be_right(name, options, message):
    with pytest.raises(StrategyError) as raised:
        strategy_from(name, options, clients=3)
    assert message in str(raised.value)
