"""The job of the lab, and the processes that take part in it: the public API, and nothing else."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import TensorDataset

import splitfl
from splitfl.run.access import Entry, digest
from tests.faults.plan import CLIENTS, ROUNDS, Plan

FEATURES, CLASSES, STEPS, BATCH = 12, 3, 3, 8

METHODS = {
    "fedavg": splitfl.methods.fedavg(),
    "sl": splitfl.methods.sl(),
    "splitfed-v1": splitfl.methods.splitfed_v1(),
    "splitfed-v2": splitfl.methods.splitfed_v2(),
    "splitfed-v3": splitfl.methods.splitfed_v3(),
    "pipar": splitfl.methods.pipar(micro_batches=2),
}

DEADLINES = {"enrollment": 40.0, "step": 6.0, "round": 60.0, "rejoin": 20.0}

PATIENCE = 25.0


def build() -> nn.Module:
    """Batch norm counts every forward pass, on both sides of the cut; dropout draws on both."""
    return nn.Sequential(
        nn.Linear(FEATURES, 32),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(32, 48),
        nn.BatchNorm1d(48),
        nn.Tanh(),
        nn.Dropout(0.1),
        nn.Linear(48, CLASSES),
    )


def make_job(plan: Plan, *, rejoin: float = DEADLINES["rejoin"]) -> splitfl.Job:
    """The job of a run; every client does the same number of steps, so that steps can be counted."""
    return splitfl.Job(
        model=build,
        example_input=torch.zeros(4, FEATURES),
        cut="3",
        method=METHODS[plan.method],
        loss=nn.functional.cross_entropy,
        optimizer=splitfl.sgd(lr=0.05, momentum=0.9),
        optimizer_state=plan.optimizer_state,
        batch_size=BATCH,
        local_steps=STEPS,
        seed=plan.seed,
        deadlines=splitfl.Deadlines(**{**DEADLINES, "rejoin": rejoin}),
    )


def dataset(name: str, seed: int) -> TensorDataset:
    """A client's own data."""
    generator = torch.Generator().manual_seed(1000 * seed + CLIENTS.index(name))
    samples = 24 + 5 * CLIENTS.index(name)
    inputs = torch.randn(samples, FEATURES, generator=generator)
    return TensorDataset(inputs, torch.randint(0, CLASSES, (samples,), generator=generator))


def named(result: splitfl.Result) -> dict[str, torch.Tensor]:
    """All weights of a result under one name each: those of the global model, and of each client that has its own."""
    tensors = {f"global/{name}": value.clone() for name, value in result.state.items()}
    for name, state in result.states.items():
        tensors |= {f"{name}/{tensor}": value.clone() for tensor, value in state.items()}
    return tensors


@dataclass(frozen=True)
class Place:
    """Where a run keeps its files: certificates, tokens, checkpoints, states of clients, the result, and logs."""

    folder: Path

    @property
    def result(self) -> Path:
        """Weights, once training is complete; the records lie beside it."""
        return self.folder / "result.safetensors"

    @property
    def records(self) -> Path:
        """One record of a round in each line."""
        return self.folder / "records.jsonl"


def server(plan: Plan, folder: Path, port: int, tokens: dict[str, str]) -> None:
    """The process of a server; it goes on from the newest checkpoint, if there is one."""
    _own_log(folder, "server")
    place = Place(folder)
    result = splitfl.serve(
        make_job(plan, rejoin=_rejoin(plan)),
        clients=len(CLIENTS),
        rounds=ROUNDS,
        address=f"127.0.0.1:{port}",
        tls=splitfl.ServerTLS(certificate=folder / "server.pem", key=folder / "server.key"),
        access=splitfl.Access(tokens={name: Entry(digest(token)) for name, token in tokens.items()}),
        checkpoint=folder / "checkpoints",
        resume=True,
        slots=2,
    )
    place.records.write_text("".join(record.to_json() + "\n" for record in result.history.rounds))
    aside = place.result.with_suffix(".part")
    save_file(named(result), aside)
    os.replace(aside, place.result)


def client(plan: Plan, folder: Path, name: str, port: int, token: str) -> None:
    """The process of a client."""
    _own_log(folder, name)
    splitfl.join(
        make_job(plan, rejoin=_rejoin(plan)),
        dataset(name, plan.seed),
        server=f"127.0.0.1:{port}",
        name=name,
        tls=splitfl.ClientTLS(ca=folder / "ca.pem"),
        token=token,
        state=folder / "states" / name,
        patience=PATIENCE,
    )


def _rejoin(plan: Plan) -> float:
    """One that leaves for good is not waited for long."""
    return 4.0 if any(event.kind == "leave" for event in plan.events) else DEADLINES["rejoin"]


def _own_log(folder: Path, name: str) -> None:
    torch.set_num_threads(1)
    log = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())
    os.close(log)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
