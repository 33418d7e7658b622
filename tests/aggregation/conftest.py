"""A small model's state, and clients whose updates are decided by their id."""

import gc
from dataclasses import dataclass, field

import pytest
import torch

from splitfl.aggregation import Update


def net_state():
    """State of a small net with BatchNorm, as a model's `state_dict` names it."""
    generator = torch.Generator().manual_seed(0)
    return {
        "conv.weight": torch.randn(4, 3, generator=generator),
        "bn.weight": torch.ones(4),
        "bn.running_mean": torch.zeros(4),
        "bn.running_var": torch.full((4,), 1e-8),
        "bn.num_batches_tracked": torch.tensor(0),
        "fc.bias": torch.randn(2, generator=generator),
    }


@dataclass
class Fleet:
    """Clients that add their own fixed step to the weights they are given; keeps what each was asked."""

    samples: tuple[int, ...] = (10, 20, 30)
    asked: list[list[int]] = field(default_factory=list)
    configs: list[dict] = field(default_factory=list)
    received: list[dict] = field(default_factory=list)

    @property
    def clients(self):
        return {client: f"phone-{client}" for client in range(len(self.samples))}

    def update(self, client, state):
        generator = torch.Generator().manual_seed(100 + client)
        trained = {}
        for name, value in state.items():
            if name.endswith("running_var"):
                trained[name] = value * 0 + 1e-8 * (client + 1)
            elif value.is_floating_point():
                step = 0.1 * torch.randn(value.shape, generator=generator, dtype=torch.float32)
                trained[name] = value + step.to(value.dtype)
            else:
                trained[name] = value + 5 + client if value.dtype is not torch.bool else value
        return Update(client, f"phone-{client}", self.samples[client], trained, {"train_loss": 1.0 + client})

    def train(self, assignments):
        self.asked.append([job.client for job in assignments])
        self.configs += [job.config for job in assignments]
        self.received += [job.state for job in assignments]
        return [self.update(job.client, job.state) for job in assignments]


@pytest.fixture(autouse=True)
def quick_collections():
    """QFedAvg and Bulyan collect garbage once per record; what was there before need not be looked through again."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def state():
    return net_state()


@pytest.fixture
def fleet():
    return Fleet()


@pytest.fixture
def make_fleet():
    return Fleet


def same(one, other):
    """Equal in names, dtypes and bits."""
    return list(one) == list(other) and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


@pytest.fixture
def equal():
    return same
