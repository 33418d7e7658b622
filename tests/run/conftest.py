"""Models, data and the unsplit reference that the engine is compared with."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import splitfl
from splitfl.aggregation import strategy_from
from splitfl.api.loop import run_blocking
from splitfl.data.batches import Batches, plan
from splitfl.model.micro_batches import sizes, split
from splitfl.run.client import Client
from splitfl.run.enrollment import Enrollment
from splitfl.run.options import Options
from splitfl.run.pool import Threads
from splitfl.run.seeds import derive
from splitfl.run.server import run_server
from splitfl.transport import connect, serve

CLASSES = 3


class Mlp(nn.Module):
    """Functional activations, which a cut must not lose."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(6, 8), nn.Linear(8, 7), nn.Linear(7, CLASSES)

    def forward(self, x):
        return self.fc3(torch.tanh(self.fc2(torch.relu(self.fc1(x)))))


class Residual(nn.Module):
    """The input of the first layer is added after the second: two tensors cross a cut between them."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.head(x + self.fc2(torch.tanh(self.fc1(x))))


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 3, 2), nn.Conv2d(3, 2, 2)
        self.head = nn.Linear(2, CLASSES)

    def forward(self, x):
        x = torch.relu(self.conv1(x.reshape(-1, 1, 3, 2).repeat(1, 1, 1, 2)))
        return self.head(torch.relu(self.conv2(x)).mean(dim=(2, 3)))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(2, 4)
        self.norm = nn.LayerNorm(4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.feed, self.head = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x):
        x = self.embed(x.reshape(-1, 3, 2))
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return self.head((x + torch.relu(self.feed(x))).mean(dim=1))


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.drop, self.fc2 = nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.fc2(self.drop(torch.relu(self.fc1(x))))


@dataclass(frozen=True)
class Kind:
    """A model, the cuts to try, and the stage that draws random numbers under each cut."""

    model: Callable[[], nn.Module]
    cuts: tuple[tuple[str, ...], ...]
    drawing: tuple[int, ...] = ()


KINDS = {
    "mlp": Kind(Mlp, (("fc1",), ("relu",), ("fc2",), ("fc1", "fc2"), ("relu", "tanh"))),
    "residual": Kind(Residual, (("fc1",), ("fc2",), ("fc1", "fc2"))),
    "cnn": Kind(Cnn, (("conv1",), ("conv2",), ("conv1", "conv2"))),
    "transformer": Kind(Transformer, (("embed",), ("norm",), ("attention",), ("embed", "attention"))),
    "dropout": Kind(Dropped, (("fc1",), ("drop",)), drawing=(1, 0)),
}


def dataset(samples: int, *, dtype: torch.dtype = torch.float64, seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, 6, generator=generator, dtype=dtype)
    return TensorDataset(inputs, torch.randint(0, CLASSES, (samples,), generator=generator))


def job(model: Callable[[], nn.Module], cut, method, *, dtype: torch.dtype = torch.float64, **options) -> splitfl.Job:
    settings = {"batch_size": 4, "optimizer": splitfl.sgd(lr=0.1, momentum=0.9), "seed": 3, **options}
    return splitfl.Job(
        model=lambda: model().to(dtype),
        example_input=torch.zeros(2, 6, dtype=dtype),
        cut=cut,
        method=method,
        loss=nn.functional.cross_entropy,
        **settings,
    )


def train_unsplit(made: splitfl.Job, data: TensorDataset, *, micro_batches: int = 1, drawing: int | None = None):
    """One round of one client on the whole model, in plain PyTorch, on the very mini-batches that the engine takes.

    `drawing` is the stage whose random draws a micro-batch is seeded for, as the engine seeds it.
    """
    model = made.build_model()
    optimizer = made.optimizer(model.parameters())
    seed = derive(made.seed, "round", 1)
    planned = plan(len(data), batch_size=made.batch_size, epochs=made.local_epochs or 1, steps=made.local_steps)
    batches = Batches(data, sizes=planned, seed=derive(seed, "data", 0), shuffle=made.shuffle)
    for step in range(len(batches)):
        inputs, target = batches[step]
        parts = sizes(len(target), min(micro_batches, len(target))) if drawing is not None else (len(target),)
        for micro, (x, y) in enumerate(zip(split(inputs, parts), split(target, parts), strict=True)):
            if drawing is not None:
                torch.manual_seed(derive(seed, step, 0, drawing, micro))
            (made.loss(model(x), y) * (len(y) / len(target))).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


def difference(one, other) -> float:
    """The largest difference of any weight, relative to the largest weight of its tensor."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max() / one[name].abs().max().clamp(min=1e-3)) for name in one)


async def over_grpc(blueprint, clients, *, rounds, slots=2, tls=None, ends=None, access=None, **options):
    """A run over real gRPC in this process; `ends` replaces the coroutine of a client by name."""
    enrollment = Enrollment(blueprint, len(clients), access=access)
    server = await serve("127.0.0.1:0", enrollment.admit, tls=tls[0] if tls else None)
    pool = Threads(slots)
    strategy = strategy_from("FedAvg", clients=len(clients)) if blueprint.method.takes_strategy else None

    async def open_channel():
        return await connect(server.address, tls=tls[1] if tls else None, timeout=10)

    async def plain(name, data, connecting=open_channel, patience=0.0, **own_options):
        own, more = Threads(1), {"patience": patience, **own_options}
        try:
            return await Client(blueprint, data, name=name, connect=connecting, pool=own, **more).run()
        finally:
            await asyncio.to_thread(own.close)

    def end(name, data):
        return ends[name](name, data, plain, open_channel) if name in (ends or {}) else plain(name, data)

    tasks = [asyncio.create_task(end(name, data)) for name, data in clients.items()]
    try:
        chosen = Options(strategy=strategy, **options)
        trained = await run_server(blueprint, enrollment, pool=pool, options=chosen, rounds=rounds)
        words = await asyncio.gather(*tasks, return_exceptions=True)
        return trained, dict(zip(clients, words, strict=True))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.stop(1.0)
        await asyncio.to_thread(pool.close)


def leaving_at(step):
    """A client that goes away when it is to send something of mini-batch `step`."""

    async def end(name, data, plain, open_channel):
        async def connecting():
            channel = await open_channel()
            told = channel.send

            async def send(address, payload):
                if address.step == step:
                    await channel.close()
                return await told(address, payload)

            channel.send = send
            return channel

        return await plain(name, data, connecting)

    return end


def run(work, *, within: float = 60.0):
    """Run a coroutine on the library's own loop, in bounded time."""
    return run_blocking(asyncio.wait_for(work, within))


@pytest.fixture
def bench():
    """The tools of this file, for tests."""
    return sys.modules[__name__]
