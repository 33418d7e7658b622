"""Small models of every kind that a cut must survive, and a driver that trains their stages by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from splitfl.model import Partition, Replica, partition, possible_cuts, sizes, split, weight

CLASSES = 3


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(6, 8), nn.Linear(8, 7), nn.Linear(7, CLASSES)

    def forward(self, x: torch.Tensor, scale: float = 0.5) -> torch.Tensor:
        x = torch.relu(self.fc1(x))
        return self.fc3(F.relu(self.fc2(x) * scale, inplace=True))


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(3, 4, 3),
            nn.GroupNorm(2, 4),
        )
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.features(x)
        return self.head(x.view(x.size(0), -1))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 5)
        self.act, self.head = nn.ReLU(inplace=True), nn.Linear(5, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = self.stem(x)
        y = self.act(self.a(torch.tanh(skip)))
        y = self.act(self.b(y) + skip)
        return self.head(y + x.mean(1, keepdim=True))


class Attention(nn.Module):
    """Sequence first inside, so that the batch is not the first dimension at most cuts."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.randn(4, 1, 6))
        self.norm, self.mha = nn.LayerNorm(6), nn.MultiheadAttention(6, 2)
        self.mlp, self.head = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6)), nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length, batch = x.shape[1], x.shape[0]
        y = x.transpose(0, 1) + self.position[:length]
        normed = self.norm(y)
        attended, _ = self.mha(normed, normed, normed, need_weights=False)
        y = y + attended
        flat = y.transpose(0, 1).reshape(batch * length, -1)
        y = flat + self.mlp(flat)
        return self.head(y.view(batch, length, -1).mean(1))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(6, 4), nn.Linear(5, 4), nn.Linear(8, CLASSES)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        left = torch.sigmoid(self.left(first))
        return self.head(torch.cat([left, torch.tanh(self.right(second))], dim=1))


class Containers(nn.Module):
    """A dict and a tuple are alive across its places, a shape and a boolean mask too."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.again, self.head = nn.LSTM(3, 4, batch_first=True), nn.LSTM(4, 4, batch_first=True), Parts()

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        size = x.shape
        mask = x[..., :1] > 0
        y, state = self.lstm(x)
        y, _ = self.again(y.masked_fill(mask, 0.0), state)
        parts = self.head({"last": y[:, -1], "mean": y.sum(1) / size[1]})
        return {"logits": parts["both"], "extra": (parts["last"], size[0])}


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last, self.mean = nn.Linear(4, CLASSES), nn.Linear(4, CLASSES)

    def forward(self, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        last = self.last(given["last"])
        return {"last": last, "both": last + self.mean(given["mean"])}


class Tokens(nn.Module):
    """Integer input, and the embedding used again, functionally, as the output layer of its own stage."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(7, 5), nn.Linear(5, 5)
        self.unembed, self.head = nn.Linear(5, 7, bias=False), nn.Linear(7, CLASSES)
        self.unembed.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        y = self.unembed(torch.relu(self.mix(self.embed(tokens)))) + F.linear(self.embed(tokens), self.embed.weight)
        return self.head(y.mean(1) * self.scale)


class Branching(nn.Module):
    """The number of dimensions decides in Python: torch.fx cannot follow, torch.export can."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if x.shape[1] > 4:
            x = F.relu(self.second(x))
        for _ in range(x.shape[1] - 4):
            x = x * 1.5
        return self.head(x) + torch.zeros(x.shape[0], 1)


def cross_entropy(output: Any, target: torch.Tensor) -> torch.Tensor:
    if isinstance(output, dict):
        return F.cross_entropy(output["logits"] + 0.1 * output["extra"][0], target)
    return F.cross_entropy(output, target)


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    integers: int = 0
    keyword: tuple[str, ...] = ()

    def model(self, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.build().to(dtype)

    def batch(self, samples: int, *, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Any, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        parts = tuple(
            torch.randint(self.integers, (samples, *shape), generator=generator)
            if self.integers
            else torch.randn(samples, *shape, generator=generator, dtype=torch.float64).to(dtype)
            for shape in self.shapes
        )
        target = torch.randint(CLASSES, (samples,), generator=generator)
        if self.keyword:
            return dict(zip(self.keyword, parts, strict=True)), target
        return (parts if len(parts) > 1 else parts[0]), target


ZOO = {
    "mlp": Case(Mlp, ((6,),)),
    "cnn": Case(Cnn, ((1, 8, 8),)),
    "residual": Case(Residual, ((6,),)),
    "attention": Case(Attention, ((4, 6),)),
    "two-inputs": Case(TwoInputs, ((6,), (5,))),
    "keyword-inputs": Case(TwoInputs, ((5,), (6,)), keyword=("second", "first")),
    "containers": Case(Containers, ((5, 3),)),
    "tokens": Case(Tokens, ((4,),), integers=7),
    "branching": Case(Branching, ((6,),)),
}


@cache
def places_of(name: str) -> tuple[str, ...]:
    case = ZOO[name]
    return tuple(cut.place for cut in possible_cuts(case.model(), case.batch(2)[0]))


@cache
def partition_of(name: str, cuts: tuple[str, ...], dtype: torch.dtype = torch.float64) -> Partition:
    case = ZOO[name]
    return partition(case.model(dtype), case.batch(1, dtype=dtype)[0], cuts)


@dataclass
class Trained:
    state: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor]
    losses: list[float] = field(default_factory=list)


SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def train_whole(model: nn.Module, batches: Sequence[tuple[Any, torch.Tensor]]) -> Trained:
    """Plain PyTorch on the unsplit model; the gradients are those of the first step."""
    model = copy.deepcopy(model)
    optimizer, first = SGD(model.parameters()), {}
    losses = []
    for inputs, target in batches:
        optimizer.zero_grad()
        if isinstance(inputs, dict):
            output = model(**inputs)
        else:
            output = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
        loss = cross_entropy(output, target)
        loss.backward()
        first = first or gradients(model)
        optimizer.step()
        losses.append(float(loss.detach()))
    return Trained({name: value.clone() for name, value in model.state_dict().items()}, first, losses)


def gradients(module: nn.Module) -> dict[str, torch.Tensor]:
    named = module.named_parameters(remove_duplicate=False)
    return {name: value.grad.clone() for name, value in named if value.grad is not None}


def forward_all(replicas: Sequence[Replica], values: Any, *, seed: int, target: Any, weight: float) -> list[Any]:
    stashes = []
    for replica in replicas:
        values, stash = replica.forward(values, seed=seed, target=target, weight=weight)
        stashes.append(stash)
    return stashes


def backward_all(replicas: Sequence[Replica], stashes: Sequence[Any], *, halves: bool = False) -> list[Any]:
    """Backward through every stage; with `halves` the weight gradients are left for later, and returned."""
    gradient, left = None, []
    for replica, stash in reversed(list(zip(replicas, stashes, strict=True))):
        if halves:
            gradient, rest = replica.backward_input(stash, gradient)
            left.append((replica, rest))
        else:
            gradient = replica.backward(stash, gradient)
    return left


def train_split(
    parts: Partition, batches: Sequence[tuple[Any, torch.Tensor]], *, micro_batches: int, halves: bool = False
) -> Trained:
    """Every micro-batch in flight at once: all forwards, then all backwards, one step."""
    replicas = [Replica(stage, SGD, loss=cross_entropy if stage.last else None) for stage in parts.stages]
    first: dict[str, torch.Tensor] = {}
    losses = []
    for inputs, target in batches:
        counts = sizes(len(target), min(micro_batches, len(target)))
        micro = zip(split(inputs, counts), split(target, counts), counts, strict=True)
        shares = [weight(count, len(target), "mean") for count in counts]
        flight = [
            forward_all(replicas, parts.bind(x), seed=m, target=y, weight=shares[m])
            for m, (x, y, _) in enumerate(micro)
        ]
        losses.append(sum(share * stashes[-1].loss for share, stashes in zip(shares, flight, strict=True)))
        left = [item for stashes in flight for item in backward_all(replicas, stashes, halves=halves)]
        for replica, rest in left:
            replica.backward_weight(rest)
        first = first or {name: g for replica in replicas for name, g in gradients(replica.module).items()}
        for replica in replicas:
            replica.step()
    return Trained(parts.join([replica.state() for replica in replicas]), first, losses)


def distance(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    """Norm of the difference over all tensors together, relative to the norm of `right`."""
    assert left.keys() == right.keys()
    flat = [torch.cat([side[name].double().flatten() for name in right]) for side in (left, right)]
    return float((flat[0] - flat[1]).norm() / flat[1].norm())


@dataclass(frozen=True)
class Bench:
    """Everything above, for the tests."""

    zoo = ZOO
    sgd = SGD
    loss = staticmethod(cross_entropy)
    places_of = staticmethod(places_of)
    partition_of = staticmethod(partition_of)
    train_whole = staticmethod(train_whole)
    train_split = staticmethod(train_split)
    forward_all = staticmethod(forward_all)
    backward_all = staticmethod(backward_all)
    gradients = staticmethod(gradients)
    distance = staticmethod(distance)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def bench() -> Bench:
    return Bench()
