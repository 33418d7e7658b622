"""The example that a newcomer sees first, with digits for data: everything "auto", and codecs by role."""

from __future__ import annotations

import flwr.serverapp.strategy
import pytest
import torch
from torch import nn

import splitfl


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


@pytest.fixture(scope="module")
def result(digits):
    job = splitfl.Job(
        model=build_model,
        example_input=torch.zeros(1, 1, 8, 8),
        cut="auto",
        method=splitfl.methods.pipar(micro_batches="auto"),
        loss=torch.nn.functional.cross_entropy,
        optimizer=splitfl.sgd(lr=0.1, momentum=0.9),
        strategy=flwr.serverapp.strategy.FedAvg(),
        codec=splitfl.codec(activation="int8", gradient="bf16"),
        batch_size=32,
        shuffle=True,
    )
    return splitfl.simulate(
        job,
        clients=splitfl.dirichlet(digits.train, 8, alpha=0.5),
        test=digits.test,
        devices="raspberry-pi-4",
        link="wifi-50",
        rounds=12,
    )


def test_it_learns(result):
    assert result.accuracy > 0.8
    assert [record.round for record in result.history.rounds] == list(range(1, 13))


def test_the_model_is_the_whole_trained_module(result, digits):
    model = result.model
    assert not model.training
    images, labels = next(iter(torch.utils.data.DataLoader(digits.test, batch_size=len(digits.test))))
    assert float((model(images).argmax(1) == labels).float().mean()) == pytest.approx(result.accuracy)
    assert set(result.models) == {f"c{client}" for client in range(8)}


def test_time_is_virtual_and_every_actor_has_an_idle_share(result):
    record = result.history.rounds[-1]
    assert record.clock == "virtual"
    assert record.seconds > 0
    assert set(record.idle) == {*(f"c{client}" for client in range(8)), "server"}
    assert result.history.settings["cut"] not in ("auto", "uncut")
    assert result.history.settings["micro-batches"] >= 1
    assert result.history.predicted


def test_the_report_and_the_weights_are_written(result, tmp_path):
    path = result.report(tmp_path / "report.html")
    assert "pipar" in path.read_text(encoding="utf-8")
    result.save(tmp_path / "weights.safetensors")
    from safetensors.torch import load_file

    saved = load_file(tmp_path / "weights.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in result.state.items())


def test_codecs_save_bytes(result, digits):
    raw = splitfl.simulate(
        splitfl.Job(
            model=build_model,
            example_input=torch.zeros(1, 1, 8, 8),
            cut=result.history.settings["cut"],
            method=splitfl.methods.pipar(micro_batches=int(result.history.settings["micro-batches"])),
            loss=torch.nn.functional.cross_entropy,
            optimizer=splitfl.sgd(lr=0.1, momentum=0.9),
            batch_size=32,
        ),
        clients=splitfl.dirichlet(digits.train, 8, alpha=0.5),
        rounds=1,
    )
    assert result.history.rounds[0].bytes_up < raw.history.rounds[0].bytes_up
    assert result.history.rounds[0].bytes_down < raw.history.rounds[0].bytes_down
