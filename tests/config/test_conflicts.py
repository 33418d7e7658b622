"""Combinations that cannot work are refused, and their nearest neighbors that can are not."""

from __future__ import annotations

import pytest

from splitfl.config import ConfigError, load_job

IMPOSSIBLE = [
    (
        '"pipar"',
        '"pipar"\nmicro_batches = 33',
        "",
        "[method] micro_batches = 33: more than the samples of a mini-batch",
    ),
    ("batch_size = 32", "batch_size = 3", "", "expected 1 to 3, since [training] batch_size = 3"),
    ('"pipar"', '"sl"', '[strategy]\nname = "FedAdam"', "in method sl clients hand their weights on"),
    (
        '[method]\nname = "pipar"',
        'cut = "conv2"\n[method]\nname = "fedavg"',
        "",
        '[model] cut = "conv2": method fedavg',
    ),
    ('"pipar"', '"fedavg"', '[codec]\ngradient = "bf16"', '[codec] gradient = "bf16": nothing crosses a cut'),
    ("[method]", 'cut = ["a", "a"]\n[method]', "", "a place is named twice"),
    ("[method]", 'cut = ["a", "auto"]\n[method]', "", 'expected "auto" alone'),
    ("[method]", 'example_dtype = ["float32", "int64"]\n[method]', "", "expected one dtype, or 1, one for each shape"),
    ("example_shape = [1, 8, 8]", 'example_dtype = "int64"', "", "no meaning without example_shape"),
    ("batch_size = 32", "batch_size = 32\nlocal_epochs = 2\nlocal_steps = 3", "", "[training] local_steps = 3"),
    ('name = "digits"', "", "", "[data] name, load: neither is given"),
    ('name = "digits"', 'name = "digits"\nload = "a.py:f"', "", "[data] name, load: both are given"),
    ("clients = 3", 'split = "dirichlet"', "", '[data] alpha: missing; split = "dirichlet" needs it'),
    ("clients = 3", 'split = "shards"', "", "[data] shards_per_client: missing"),
    ("clients = 3", "alpha = 0.5", "", '[data] alpha = 0.5: has no meaning with split = "iid"'),
    ("", "", '[server]\naddress = "0.0.0.0:9000"', "or allow plain text by insecure = true"),
    ("", "", '[client]\ninsecure = true\ntls = { ca = "a" }', "[client] insecure = true: has no meaning beside tls"),
    ("", "", "[server]\ndeadlines = { step = 60, round = 30 }", "[server] deadlines.step = 60: longer than"),
]


@pytest.mark.parametrize(("old", "new", "more", "expected"), IMPOSSIBLE, ids=[row[3] for row in IMPOSSIBLE])
def test_an_impossible_combination_is_one_line(write, old, new, more, expected):
    with pytest.raises(ConfigError) as caught:
        load_job(write(old, new, more=more))
    (line,) = caught.value.lines
    assert line.startswith("job.toml: [")
    assert expected in line


POSSIBLE = [
    ('"pipar"', '"pipar"\nmicro_batches = 32', ""),
    ('"pipar"', '"pipar"\nmicro_batches = "auto"', ""),
    ('"pipar"', '"pipar"\norder = "1f1b"', ""),
    ('"pipar"', '"pipar"\nschedule = "mine.sched"', ""),
    ('"pipar"', '"pipar"\nschedule = "mine.py:generate"', ""),
    ('"pipar"', '"splitfed-v1"', '[strategy]\nname = "FedAdam"'),
    ('"pipar"', '"fedavg"', '[codec]\nupdate = "fp16"'),
    ("example_shape = [1, 8, 8]", "", ""),
    ("example_shape = [1, 8, 8]", 'example_shape = [[4], [5]]\nexample_dtype = ["int64", "float32"]', ""),
    ("batch_size = 32", "batch_size = 32\nlocal_steps = 3", ""),
    ("clients = 3", 'split = "shards"\nshards_per_client = 2', ""),
    ("clients = 3", 'split = "by_user"', ""),
    ("", "", '[server]\naddress = "0.0.0.0:9000"\ninsecure = true'),
    ("", "", '[server]\naddress = "[::1]:9000"'),
]


@pytest.mark.parametrize(("old", "new", "more"), POSSIBLE, ids=[new or more for _, new, more in POSSIBLE])
def test_its_possible_neighbor_is_accepted(write, old, new, more):
    load_job(write(old, new, more=more))


def test_several_conflicts_are_reported_together(write):
    with pytest.raises(ConfigError) as caught:
        load_job(write("batch_size = 32", "batch_size = 2\nlocal_epochs = 1\nlocal_steps = 1"))
    assert len(caught.value.lines) == 2
