"""Random draws that depend on the round alone and disturb nobody."""

import random

import numpy as np
import pytest
import torch

from splitfl.aggregation.draws import secret_seed, seed_for, seeded


def draw():
    return random.random(), float(np.random.rand()), float(torch.rand(1))


def failing_draw():
    with seeded(seed_for(0, "sample", 1)):
        draw()
        raise KeyError


def test_the_seed_decides_every_generator():
    results = []
    for seed in (5, 5, 6):
        draw()
        with seeded(seed):
            results.append(draw())
    first, again, other = results
    assert first == again
    assert all(one != two for one, two in zip(first, other, strict=True))


def test_the_global_generators_go_on_as_before():
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = [draw(), draw()]
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    found = [draw()]
    with pytest.raises(KeyError):
        failing_draw()
    assert [*found, draw()] == expected


def test_labels_give_their_own_seeds():
    seeds = {seed_for(seed, label, number) for seed in (0, 1) for label in ("sample", "noise") for number in range(50)}
    assert len(seeds) == 200
    assert secret_seed() != secret_seed()
