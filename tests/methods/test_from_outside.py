"""Methods that other packages offer: installed, named, run; and refused where they cannot be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from splitfl.methods import METHODS, Method, registry

PACKAGE = Path(__file__).parents[2] / "examples" / "own_method"

RUN = """
import json, torch, splitfl
from torch import nn
from torch.utils.data import TensorDataset
data = [TensorDataset(torch.randn(24, 6), torch.randint(0, 3, (24,))) for _ in range(2)]
job = splitfl.Job(model=lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), method="quiet-sl", cut="1",
    example_input=torch.zeros(1, 6), loss=nn.functional.cross_entropy, optimizer=splitfl.sgd(lr=0.1), batch_size=4)
result = splitfl.simulate(job, clients=data, rounds=2)
print(json.dumps([result.history.method, len(result.history.rounds), sorted(result.state)]))
"""


@pytest.mark.slow
def test_an_installed_package_adds_a_method(tmp_path):
    """The example's package, built and installed as a user does, and then found by its name."""
    source, site = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    for file in PACKAGE.iterdir():
        if file.is_file():
            (source / file.name).write_bytes(file.read_bytes())
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--target", str(site), str(source)], check=True, timeout=120)
    environment = {**os.environ, "PYTHONPATH": str(site)}

    def printed(*command):
        words = [sys.executable, *command]
        ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    rows = json.loads(printed("-m", "splitfl", "methods", "--json"))["methods"]
    assert [row["method"] for row in rows][: len(METHODS)] == list(METHODS)
    assert rows[-1]["method"] == "quiet-sl"
    assert "0F0.0" in printed("-m", "splitfl", "show", "quiet-sl", "--clients", "1", "--step-only")
    method, rounds, names = json.loads(printed("-c", RUN))
    assert (method, rounds) == ("quiet-sl", 2)
    assert names == ["0.bias", "0.weight", "2.bias", "2.weight"]


@pytest.fixture
def offering(monkeypatch):
    """A registry with one built-in method, and entry points (name -> object reference)."""

    def made(**points):
        entries = [EntryPoint(name, value, registry.GROUP) for name, value in points.items()]
        monkeypatch.setattr(registry, "entry_points", lambda **_: entries)
        return registry.Registry({"mine": lambda: Method(name="mine", schedule="sequential")})

    return made


def test_built_in_names_stay_what_they_are(offering):
    found = offering(mine="splitfl.methods:fedavg", other="splitfl.methods:pipar")
    assert list(found) == ["mine", "other"]
    assert len(found) == 2
    assert found["mine"]().name == "mine"
    assert found["other"]().name == "pipar"
    with pytest.raises(KeyError):
        found["none"]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("splitfl.nowhere:method", "cannot be imported: No module named 'splitfl.nowhere'"),
        ("splitfl.methods:nothing", "cannot be imported: module 'splitfl.methods' has no attribute 'nothing'"),
        ("splitfl.version:__version__", "is no function that makes a Method"),
    ],
)
def test_what_cannot_be_used_is_named(offering, value, problem):
    with pytest.raises(ValueError, match=f"method 'broken': {value} {problem}"):
        offering(broken=value)["broken"]
