"""The promise: a split model trains to the same weights as the whole one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import splitfl

METHODS = {
    "splitfed-v1": lambda _: splitfl.methods.splitfed_v1(),
    "splitfed-v2": lambda _: splitfl.methods.splitfed_v2(),
    "sl": lambda _: splitfl.methods.sl(),
    "pipar": lambda micro: splitfl.methods.pipar(micro_batches=micro),
    "pipar-1f1b": lambda micro: splitfl.methods.pipar(micro_batches=micro, order="1f1b"),
    "gpipe": lambda micro: splitfl.methods.pipar(micro_batches=micro, schedule="gpipe"),
    "1f1b": lambda micro: splitfl.methods.pipar(micro_batches=micro, schedule="1f1b"),
}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_three_steps_equal_unsplit_training(bench, data):
    name = data.draw(st.sampled_from(list(bench.KINDS)))
    kind = bench.KINDS[name]
    index = data.draw(st.integers(0, len(kind.cuts) - 1))
    batch = data.draw(st.integers(1, 9))
    micro = data.draw(st.integers(1, min(8, batch)))
    method = data.draw(st.sampled_from(list(METHODS)))
    # A trailing mini-batch too, sometimes smaller than the number of micro-batches.
    samples = 2 * batch + data.draw(st.integers(1, batch))
    dtype, bound = data.draw(st.sampled_from([(torch.float64, 1e-12), (torch.float32, 1e-6)]))
    made = bench.job(kind.model, kind.cuts[index], METHODS[method](micro), dtype=dtype, batch_size=batch)
    train = bench.dataset(samples, dtype=dtype)
    result = splitfl.simulate(made, clients=[train], rounds=1)
    parts = made.method.micro_batches
    drawing = kind.drawing[index] if kind.drawing else None
    expected = bench.train_unsplit(made, train, micro_batches=parts, drawing=drawing)
    assert norm_difference(result.state, expected) <= bound


def norm_difference(one, other):
    """Distance of all weights together, relative to their norm."""
    gap = sum(float((one[name].double() - other[name].double()).pow(2).sum()) for name in one) ** 0.5
    return gap / sum(float(value.double().pow(2).sum()) for value in other.values()) ** 0.5


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("state", ["reset", "keep"])
@pytest.mark.parametrize("method", ["splitfed-v1", "pipar", "pipar-1f1b"])
def test_averaging_methods_equal_fedavg_round_by_round(bench, method, state, momentum):
    clients = [bench.dataset(samples, seed=samples) for samples in (9, 14, 5)]
    options = {"optimizer": splitfl.sgd(lr=0.1, momentum=momentum), "optimizer_state": state, "local_epochs": 2}
    rounds = 3
    for count in range(1, rounds + 1):
        whole = splitfl.simulate(bench.job(bench.Mlp, "auto", "fedavg", **options), clients=clients, rounds=count)
        made = bench.job(bench.Mlp, "relu", METHODS[method](3), **options)
        split = splitfl.simulate(made, clients=clients, rounds=count)
        assert bench.difference(split.state, whole.state) < 1e-12


def test_keeping_the_optimizer_is_another_algorithm_than_resetting_it(bench):
    clients = [bench.dataset(8)]
    results = [
        splitfl.simulate(bench.job(bench.Mlp, "fc1", "splitfed-v1", optimizer_state=state), clients=clients, rounds=3)
        for state in ("reset", "keep")
    ]
    assert bench.difference(results[0].state, results[1].state) > 1e-3


def test_batch_norm_counts_every_micro_batch_once_and_takes_none_of_one_sample(bench):
    def model():
        return torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))

    made = bench.job(model, "1", splitfl.methods.pipar(micro_batches=4), batch_size=4)
    result = splitfl.simulate(made, clients=[bench.dataset(5)], rounds=1)
    # Five samples in batches of four: the fifth joins the four, as one sample has no variance; two micro-batches.
    assert int(result.state["1.num_batches_tracked"]) == 2


@pytest.mark.parametrize("model", ["mlp", "residual", "cnn", "transformer", "dropout"])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_over_grpc_three_steps_equal_unsplit_training(bench, model, dtype, bound):
    kind = bench.KINDS[model]
    for batch, micro in ((1, 1), (5, 4), (7, 3)):
        method = splitfl.methods.pipar(micro_batches=micro)
        made = bench.job(kind.model, kind.cuts[0], method, dtype=dtype, batch_size=batch)
        train = bench.dataset(2 * batch + 1, dtype=dtype)
        trained, _ = bench.run(bench.over_grpc(made.blueprint(), {"c0": train}, rounds=1))
        drawing = kind.drawing[0] if kind.drawing else None
        expected = bench.train_unsplit(made, train, micro_batches=micro, drawing=drawing)
        assert norm_difference(trained.state, expected) <= bound
