"""How blocks are divided between clients and server: by prediction, and by nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import splitfl
from splitfl.api.auto import CLIENTS, STEPS
from splitfl.run.virtual import Fleet

BATCH = 8
CUTS = ["1", "3", "5", "7"]


def model():
    layers = [part for width in (64, 512, 512, 64) for part in (nn.LazyLinear(width), nn.Tanh())]
    made = nn.Sequential(*layers, nn.LazyLinear(3))
    made(torch.zeros(2, 32))
    return made


@pytest.fixture
def job():
    return splitfl.Job(
        model=model,
        example_input=torch.zeros(2, 32),
        cut=CUTS,
        method=splitfl.methods.block_local(front_blocks="auto"),
        batch_size=BATCH,
        loss=nn.functional.cross_entropy,
        optimizer=splitfl.sgd(lr=0.01),
    )


def data(seed):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(STEPS * BATCH, 32, generator=generator)
    return TensorDataset(features, torch.randint(0, 3, (len(features),), generator=generator))


@pytest.mark.parametrize(
    ("device", "link", "server"),
    [
        ("raspberry-pi-3", "ethernet-1000", "gpu-server"),
        ("laptop", "ethernet-1000", "raspberry-pi-3"),
        ("raspberry-pi-4", "4g", "gpu-server"),
    ],
)
def test_the_choice_is_the_fastest_of_all(job, device, link, server):
    chosen = job.blueprint(Fleet(device, link, server=server)).method
    assert not chosen.balance
    seconds = {}
    for count in range(1, len(CUTS) + 1):
        fixed = replace(job, method=splitfl.methods.block_local(front_blocks=count))
        result = splitfl.simulate(
            fixed, clients=[data(seed) for seed in CLIENTS], rounds=1, devices=device, link=link, server=server
        )
        seconds[count] = result.history.rounds[0].seconds
    assert seconds[chosen.front_stages] == pytest.approx(min(seconds.values()), rel=1e-6)


def test_a_slow_end_gets_less_to_do(job):
    slow_client = job.blueprint(Fleet("raspberry-pi-3", "ethernet-1000", server="gpu-server")).method.front_stages
    slow_server = job.blueprint(Fleet("gpu-server", "ethernet-1000", server="raspberry-pi-3")).method.front_stages
    assert slow_client < slow_server


def test_it_trains_as_if_it_had_been_said(job):
    fleet = {"devices": "laptop", "link": "ethernet-1000", "server": "raspberry-pi-3"}
    count = job.blueprint(Fleet("laptop", "ethernet-1000", server="raspberry-pi-3")).method.front_stages
    said = replace(job, method=splitfl.methods.block_local(front_blocks=count))
    states = [splitfl.simulate(each, clients=[data(0), data(1)], rounds=1, **fleet).state for each in (job, said)]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
