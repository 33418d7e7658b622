"""Job files for the tests: one that works, and a way of changing one line of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

JOB = """
[model]
build = "models.py:cnn"
example_shape = [1, 8, 8]

[method]
name = "pipar"

[training]
rounds = 5
batch_size = 32
optimizer = { name = "sgd", lr = 0.05, momentum = 0.9 }

[data]
name = "digits"
clients = 3
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes `job.toml`: the working job with a text replaced, and sections added at its end."""

    def written(old: str = "", new: str = "", *, more: str = "") -> Path:
        assert old in JOB, f"the working job holds no {old!r}"
        path = tmp_path / "job.toml"
        path.write_text(JOB.replace(old, new) + more if old else JOB + more)
        return path

    return written
