"""What both ends must agree on: nothing that decides the weights is missing, nothing of one end alone is in it."""

from __future__ import annotations

import json

import pytest
import torch

from splitfl.config import load_job

AGREED = [
    ('"pipar"', '"splitfed-v1"', ""),
    ('"pipar"', '"pipar"\nmicro_batches = 8', ""),
    ('"pipar"', '"pipar"\norder = "1f1b"', ""),
    ("batch_size = 32", "batch_size = 16", ""),
    ("batch_size = 32", "batch_size = 32\nlocal_epochs = 2", ""),
    ("batch_size = 32", "batch_size = 32\nlocal_steps = 2", ""),
    ("batch_size = 32", "batch_size = 32\nshuffle = false", ""),
    ("batch_size = 32", "batch_size = 32\ndrop_last = true", ""),
    ("batch_size = 32", 'batch_size = 32\nloss = "nll_loss"', ""),
    ("batch_size = 32", 'batch_size = 32\noptimizer_state = "keep"', ""),
    ("batch_size = 32", "batch_size = 32\nseed = 1", ""),
    ("lr = 0.05", "lr = 0.01", ""),
    ("", "", '[codec]\nactivation = "int8"'),
    ("", "", '[codec]\ntransform = "feature-dropout:0.25"'),
]
OWN = [
    ("rounds = 5", "rounds = 6", ""),
    ("batch_size = 32", 'batch_size = 32\ndevice = "cuda"', ""),
    ("clients = 3", "clients = 4", ""),
    ("", "", '[strategy]\nname = "FedAdam"'),
    ("", "", '[server]\naddress = "localhost:1234"'),
    ("", "", '[client]\nname = "c7"'),
    ('"pipar"', '"pipar"\nmicro_batches = 4', ""),
    ("batch_size = 32", 'batch_size = 32\nlocal_epochs = 1\nloss = "cross_entropy"', ""),
]


@pytest.mark.parametrize(("old", "new", "more"), AGREED, ids=[new or more for _, new, more in AGREED])
def test_what_decides_the_weights_is_in_the_contract(write, old, new, more):
    ours = load_job(write()).contract()
    theirs = load_job(write(old, new, more=more)).contract()
    assert ours != theirs
    assert ours.keys() == theirs.keys()


@pytest.mark.parametrize(("old", "new", "more"), OWN, ids=[new or more for _, new, more in OWN])
def test_what_one_end_decides_is_not(write, old, new, more):
    assert load_job(write()).contract() == load_job(write(old, new, more=more)).contract()


def test_the_contract_is_plain_json(write):
    contract = load_job(write("momentum = 0.9", "weight_decay = 1e-4")).contract()
    assert json.loads(json.dumps(contract)) == contract


def test_the_example_is_a_batch_of_zeros(write):
    job = load_job(write("[1, 8, 8]", '[[7], [1, 8, 8]]\nexample_dtype = ["int64", "float32"]'))
    tokens, image = job.model.example(batch=2)
    assert tokens.shape == (2, 7)
    assert tokens.dtype == torch.int64
    assert image.shape == (2, 1, 8, 8)


def test_one_dtype_serves_all_inputs(write):
    job = load_job(write("[1, 8, 8]", '[[7], [9]]\nexample_dtype = "float64"'))
    assert [value.dtype for value in job.model.example()] == [torch.float64, torch.float64]


def test_without_a_shape_there_is_no_example(write):
    assert load_job(write("example_shape = [1, 8, 8]")).model.example() is None


def test_paths_count_from_the_job_file(write, tmp_path):
    job = load_job(write())
    assert job.path("certs/ca.pem") == tmp_path / "certs/ca.pem"
    assert job.path("/etc/ca.pem").is_absolute()
