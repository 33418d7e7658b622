"""Random draws of a strategy, decided by the round alone.

Strategies sample clients with Python's global generator and draw privacy noise from numpy's; one of the user's may use
torch's. All are seeded for the duration of one call and put back afterwards, so that a strategy neither depends on what
ran before nor disturbs what runs after.
"""

from __future__ import annotations

import hashlib
import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_for(seed: int, *labels: int | str) -> int:
    """A seed for the draw that `labels` name; equal on every machine."""
    text = "/".join(["aggregation", str(seed), *map(str, labels)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")


def secret_seed() -> int:
    """A seed that nobody can guess: privacy noise that a client could draw again would hide nothing from it."""
    return secrets.randbits(128)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within, the global generators of `random`, numpy and torch (CPU) start from `seed`; then they go on as before."""
    python, numpy, tensors = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    torch.default_generator.manual_seed(seed & 0xFFFFFFFFFFFFFFFF)
    np.random.seed([seed >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)])
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(tensors)
