"""The transform of a job file: a name, a function of the user's, and what does not go together with it."""

from __future__ import annotations

import pytest
import torch

import splitfl
from splitfl.api.override import override
from splitfl.api.settings import job_from
from splitfl.config import ConfigError, load_job
from splitfl.model import Transform

MODEL = """
import torch
from torch import nn
from splitfl.model import Transform

def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))

def noise():
    return Transform(name="noise", sent=lambda x: x + 0.1 * torch.randn_like(x))

def nothing():
    return 3
"""
JOB = """
[model]
build = "model.py:build"
cut = "1"
teacher = "model.py:build"
[method]
name = "METHOD"
[training]
rounds = 1
batch_size = 16
optimizer = { name = "sgd", lr = 0.1 }
[data]
name = "digits"
clients = 2
[codec]
transform = "TRANSFORM"
"""


@pytest.fixture
def job_file(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)

    def write(transform, method="pipar"):
        path = tmp_path / "job.toml"
        path.write_text(JOB.replace("TRANSFORM", transform).replace("METHOD", method))
        return path

    return write


def job(path):
    return job_from(load_job(path), example_input=torch.zeros(1, 1, 8, 8))


def test_a_name_or_a_function_of_the_users(job_file):
    assert job(job_file("feature-dropout:0.25")).transform.name == "feature-dropout:0.25"
    made = job(job_file("model.py:noise")).transform
    assert isinstance(made, Transform)
    assert made.name == "noise"
    with pytest.raises(splitfl.JobError, match=r"\[codec\] transform = 'model.py:nothing' gives int: expected a"):
        job(job_file("model.py:nothing"))


@pytest.mark.parametrize(
    ("transform", "method", "line"),
    [
        ("feature-dropout:2", "pipar", 'transform = "feature-dropout:2": expected the share of the features'),
        ("feature-dropout", "pipar", 'transform = "feature-dropout": expected the share of the features'),
        ("dropout", "pipar", 'transform = "dropout": expected feature-dropout:SHARE'),
        ("drop:0.5", "pipar", 'or, for one of your own, expected "file.py:function"'),
        ("feature-dropout:0.5", "fedavg", 'transform = "feature-dropout:0.5": nothing crosses a cut in method fedavg'),
        ("feature-dropout:0.5", "ampere", "in method ampere the server also computes on activations that it keeps"),
    ],
)
def test_what_cannot_be_is_one_line(job_file, transform, method, line):
    path = job_file(transform, method)
    if method == "fedavg":
        path.write_text(path.read_text().replace('cut = "1"\n', ""))
    with pytest.raises(ConfigError) as caught:
        load_job(path)
    (found,) = caught.value.lines
    assert found.startswith("job.toml: [codec] transform = ")
    assert line in found


def test_it_is_in_the_contract(job_file):
    contracts = [load_job(job_file(f"feature-dropout:{share}")).contract() for share in (0.25, 0.5)]
    assert [name for name in contracts[0] if contracts[0][name] != contracts[1][name]] == ["codec"]


@pytest.mark.parametrize("method", ["fedavg", "ampere", "ecofed", "fsl-sage", "pipe-bd"])
def test_a_switch_to_a_method_that_has_no_use_for_one_leaves_it_out(job_file, method):
    settings = load_job(job_file("feature-dropout:0.25"))
    assert override(settings, method="splitfed-v2").codec.transform == "feature-dropout:0.25"
    assert override(settings, method=method).codec.transform is None
