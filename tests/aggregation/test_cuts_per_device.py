"""Clients that hold different layers: each layer is averaged among those who hold it."""

import pytest
import torch

from splitfl.aggregation import StrategyRounds, mean, strategy_from

TEMPLATE = {
    "front": torch.zeros(2),
    "middle": torch.ones(3),
    "middle.running_mean": torch.zeros(3),
    "tail": torch.full((2,), 7.0),
}
HOLDS = {0: ["front"], 1: ["front", "middle", "middle.running_mean"], 2: ["front", "middle", "middle.running_mean"]}


def updates(fleet, state):
    return [fleet.update(client, {name: state[name] for name in held}) for client, held in HOLDS.items()]


def test_each_layer_is_averaged_over_its_holders(fleet, equal):
    runner = StrategyRounds(strategy_from("FedAvg"), TEMPLATE, holds=HOLDS)
    outcome = runner.round(1, TEMPLATE, fleet.train, fleet.clients)
    assert [list(received) for received in fleet.received] == [HOLDS[0], HOLDS[1], HOLDS[2]]
    assert fleet.asked == [[0, 1, 2]]
    assert equal(outcome.state, mean(updates(fleet, TEMPLATE), TEMPLATE))
    assert torch.equal(outcome.state["tail"], TEMPLATE["tail"]), "a layer that nobody holds must stay"
    assert outcome.metrics == {"train_loss": pytest.approx((10 * 1 + 20 * 2 + 30 * 3) / 60)}


def test_every_block_has_moments_of_its_own(fleet):
    names = ("front", "middle")
    options = {"eta": 0.1}
    blocks = StrategyRounds(strategy_from("FedAdam", options), TEMPLATE, holds=HOLDS)
    alone = {
        name: StrategyRounds(strategy_from("FedAdam", options), {name: TEMPLATE[name]}, holds=None) for name in names
    }
    state = TEMPLATE
    for number in (1, 2, 3):
        after = blocks.round(number, state, fleet.train, fleet.clients).state
        for name in names:
            holders = [client for client, held in HOLDS.items() if name in held]
            part = alone[name].round(number, {name: state[name]}, trainer(fleet, state), holders).state
            assert torch.equal(part[name], after[name])
        state = after


def trainer(fleet, state):
    """Clients that train on all they hold and hand over only what they are asked for."""

    def train(assignments):
        full = {update.client: update for update in updates(fleet, state)}
        return [
            type(full[job.client])(
                job.client, "", fleet.samples[job.client], {name: full[job.client].state[name] for name in job.state}
            )
            for job in assignments
        ]

    return train


def test_sampling_is_the_same_for_every_block(make_fleet):
    fleet = make_fleet(samples=(1,) * 8)
    holds = {client: ["front"] if client < 4 else ["front", "middle"] for client in range(8)}
    template = {"front": torch.zeros(2), "middle": torch.ones(3)}
    runner = StrategyRounds(strategy_from("FedAvg", {"fraction_train": 0.5}), template, holds=holds, seed=2)
    for number in range(1, 6):
        runner.round(number, template, fleet.train, fleet.clients)
    assert all(len(asked) == 4 for asked in fleet.asked)
    asked = [client for each in fleet.asked for client in each]
    assert [sorted(received) for received in fleet.received] == [sorted(holds[client]) for client in asked]


def test_a_block_whose_holders_are_away_keeps_its_weights(fleet):
    runner = StrategyRounds(strategy_from("FedMedian"), TEMPLATE, holds=HOLDS)
    outcome = runner.round(1, TEMPLATE, fleet.train, [0])
    assert torch.equal(outcome.state["middle"], TEMPLATE["middle"])
    assert not torch.equal(outcome.state["front"], TEMPLATE["front"])


def test_a_client_that_sends_more_than_it_holds_is_refused(fleet):
    def train(assignments):
        return [fleet.update(job.client, TEMPLATE) for job in assignments]

    runner = StrategyRounds(strategy_from("FedAvg"), TEMPLATE, holds={**HOLDS, 2: list(TEMPLATE)})
    outcome = runner.round(1, TEMPLATE, train, fleet.clients)
    assert [(refusal.client, refusal.reason) for refusal in outcome.refused] == [
        (0, "sent unknown tensor 'middle' and 2 more"),
        (1, "sent unknown tensor 'tail'"),
    ]
