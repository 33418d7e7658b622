"""What the server keeps of the activations that came, with their labels, to learn from later."""

from __future__ import annotations

import torch

from splitfl.schedule.instruction import Instruction

Tensors = dict[str, torch.Tensor]


class Store:
    """Bundles as they arrived (`target:` entries are the labels), by client, mini-batch and micro-batch.

    What is sent again after a lost connection takes the place of what was there.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int, int, int], Tensors] = {}

    def put(self, at: Instruction, step: int, bundle: Tensors) -> None:
        """Keep what belongs to instruction `at` of mini-batch `step`."""
        self._kept[at.client or 0, step, at.micro_batch or 0, at.chunk] = bundle

    def forget(self, client: int) -> None:
        """Forget what `client` sent."""
        for key in [key for key in self._kept if key[0] == client]:
            del self._kept[key]

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()

    def __bool__(self) -> bool:
        return bool(self._kept)

    def joined(self, client: int | None = None) -> Tensors:
        """All samples in one bundle, (samples, *shape) each, in the order of clients, whoever came first.

        `client`: only those that it sent.
        """
        chosen = [item for item in self._kept.items() if client is None or item[0][0] == client]
        bundles = [bundle for _, bundle in sorted(chosen, key=lambda item: item[0])]
        return {name: torch.cat([bundle[name] for bundle in bundles]) for name in bundles[0]} if bundles else {}

    def restore(self, bundle: Tensors) -> None:
        """Keep what `joined` gave, and nothing else."""
        self.clear()
        if bundle:
            self._kept[0, 0, 0, 0] = dict(bundle)
