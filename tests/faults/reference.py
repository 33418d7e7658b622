"""What a run must end with: the same job in one process, undisturbed but for the clients that were dropped."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.utils.data import Dataset

import splitfl
from tests.faults.ends import BATCH, STEPS, dataset, make_job, named
from tests.faults.plan import CLIENTS, ROUNDS, Plan


class Leaving(Dataset):
    """A client's data, which it can read for so many samples and no further: then it is lost."""

    def __init__(self, whole: Dataset, samples: int) -> None:
        self._whole = whole
        self._left = samples

    def __len__(self) -> int:
        return len(self._whole)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self._left == 0:
            raise splitfl.SplitflError("this client has left")
        self._left -= 1
        return self._whole[index]


def undisturbed(plan: Plan, last_rounds: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """The weights at the end, named as a run of the lab names them, where some were dropped after their last round."""
    clients = {name: dataset(name, plan.seed) for name in CLIENTS}
    for name, last in last_rounds.items():
        clients[name] = Leaving(clients[name], last * STEPS * BATCH)
    result = splitfl.simulate(make_job(plan), clients=clients, rounds=ROUNDS)
    return named(result)


def difference(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> str | None:
    """The first tensor that is not bit-equal, in words; None where all are."""
    if found.keys() != expected.keys():
        return f"tensors {sorted(found.keys() ^ expected.keys())} are on one side only"
    unequal = [name for name in expected if not torch.equal(found[name], expected[name])]
    return f"{len(unequal)} of {len(expected)} tensors differ, the first is {unequal[0]}" if unequal else None


def steps(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """How many forward passes each norm of each model has counted."""
    return {name: int(value) for name, value in tensors.items() if name.endswith("num_batches_tracked")}
