"""A job is checked when it is made, and when it is put together."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
import torch
from torch import nn

import splitfl
from splitfl.api.loss_probe import find_reduction
from splitfl.codecs import CodecError
from splitfl.model import CutError, LossError, ShapeError, partition

WRONG = {
    "batch size": ({"batch_size": 0}, r"batch_size = 0: expected 1 or more"),
    "micro-batches": ({"batch_size": 1}, r"micro_batches = 2 with batch_size = 1: expected 1 to 1"),
    "both lengths": ({"local_epochs": 1, "local_steps": 1}, r"local_steps = 1: expected none beside local_epochs"),
    "optimizer state": ({"optimizer_state": "lose"}, r'optimizer_state = .lose.: expected "reset" or "keep"'),
    "method": ({"method": "pipa"}, r"method = 'pipa': expected one of .*; did you mean 'pipar'"),
    "strategy of a relay": ({"method": "sl", "strategy": object()}, r"strategy = object with method sl: .* nothing is"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_setting_that_cannot_be_is_refused_when_the_job_is_made(make_job, wrong):
    changed, message = WRONG[wrong]
    with pytest.raises(splitfl.JobError, match=message):
        make_job(**changed)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"cut": "conv9"}, CutError, r"cut = 'conv9': no such place"),
        ({"example_input": torch.zeros(1, 1, 7, 7)}, ShapeError, r"4"),
        ({"loss": lambda output, _: output}, LossError, r"expected a single number"),
        ({"loss": lambda output, _: output.sum() ** 2}, LossError, r"expected a mean \(equal\) or a sum"),
    ],
)
def test_what_does_not_fit_the_model_is_refused_when_it_is_put_together(make_job, changed, error, message):
    with pytest.raises(error, match=message):
        make_job(**changed).blueprint()


def test_names_of_optimizers_and_codecs_are_checked():
    with pytest.raises(splitfl.SplitflError, match=r"sdg.*sgd"):
        splitfl.optimizer("sdg", lr=0.1)
    with pytest.raises(splitfl.SplitflError, match=r"momentun"):
        splitfl.sgd(lr=0.1, momentun=0.9)
    with pytest.raises(splitfl.SplitflError):
        splitfl.adam(lr=-1.0)
    with pytest.raises(CodecError, match=r"activation = 'int7': part 'int7', expected raw, or topk"):
        splitfl.codec(activation="int7")


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_reduction_of_the_loss_is_found(make_job, digits, reduction):
    def loss(output, target):
        return nn.functional.cross_entropy(output, target, reduction=reduction)

    lr = 0.1 if reduction == "mean" else 0.1 / 64
    made = make_job(loss=loss, optimizer=splitfl.sgd(lr=lr), local_steps=2)
    assert made.blueprint().reduction == reduction
    results = [
        splitfl.simulate(make_job(optimizer=splitfl.sgd(lr=0.1), local_steps=2), clients=[digits.test], rounds=1)
    ]
    results.append(splitfl.simulate(made, clients=[digits.test], rounds=1))
    for name, value in results[0].state.items():
        torch.testing.assert_close(results[1].state[name], value)


def test_probing_the_loss_leaves_every_module_in_its_own_mode():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    model[1].eval()
    find_reduction(nn.functional.cross_entropy, model, partition(model, torch.zeros(2, 4), ["1"]))
    assert [part.training for part in model] == [True, False, True]


def test_the_seed_decides_the_initial_weights_and_leaves_the_generator_alone(make_job):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, other = make_job(seed=1).build_model(), make_job(seed=1).build_model()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one[0].weight, other[0].weight)
    assert not torch.equal(one[0].weight, make_job(seed=2).build_model()[0].weight)


def test_a_run_works_where_an_event_loop_runs_already(make_job, digits):
    async def notebook():
        return splitfl.simulate(make_job(), clients=[digits.test], rounds=1)

    assert asyncio.run(notebook()).history.rounds[0].round == 1


def test_serve_and_join_are_the_two_ends_of_a_run(make_job, digits):
    clients = splitfl.dirichlet(digits.train, 2, alpha=5.0)
    jobs = [make_job() for _ in range(3)]
    words, threads = [], []

    def start(address):
        for index, part in enumerate(clients):
            join = lambda index=index, part=part: words.append(  # noqa: E731
                splitfl.join(jobs[index], part, server=address, name=f"c{index}")
            )
            threads.append(threading.Thread(target=join))
            threads[-1].start()
            threads[-1].join(0.3)  # models are traced one after the other

    result = splitfl.serve(jobs[2], clients=2, rounds=2, test=digits.test, on_listen=start)
    for thread in threads:
        thread.join(30)
    assert words == ["training is complete after 2 rounds"] * 2
    simulated = splitfl.simulate(make_job(), clients=clients, rounds=2, test=digits.test)
    assert all(torch.equal(result.state[name], value) for name, value in simulated.state.items())
    assert [each.accuracy for each in result.history.rounds] == [each.accuracy for each in simulated.history.rounds]


def test_what_means_the_same_at_both_ends_is_the_same_contract(make_job, tmp_path):
    text = "c0: 0F0.0 0F0.1 0B0.0 0B0.1 0U0\nserver: 1F0.0 1B0.0 1F0.1 1B0.1 1U0\n"
    methods = []
    for folder in ("server", "client"):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "mine.sched"
        path.write_text(text)
        methods.append(splitfl.methods.pipar(micro_batches=2, schedule=path))
    ours = make_job(method=methods[0]).blueprint().contract
    assert make_job(method=methods[1], local_epochs=1).blueprint().contract == ours
    assert make_job(method=methods[1], local_epochs=2).blueprint().contract != ours
    assert make_job(method="splitfed-v1").blueprint().contract != ours


def test_a_model_that_is_none_is_refused(make_job):
    with pytest.raises(splitfl.JobError, match=r"the function gives int, expected a torch.nn.Module"):
        make_job(model=lambda: 3).blueprint()


def test_a_server_and_its_client_say_when_they_are_connected(make_job, digits):
    seen = []

    def start(address):
        threading.Thread(
            target=lambda: seen.append(
                splitfl.join(make_job(), digits.test, server=address, name="c0", on_connect=lambda: seen.append("here"))
            )
        ).start()

    splitfl.serve(make_job(), clients=1, rounds=1, on_listen=start)
    for _ in range(100):
        if len(seen) == 2:
            break
        time.sleep(0.05)
    assert seen == ["here", "training is complete after 1 rounds"]
