"""Random draws under a given seed, with the global generators left as they were."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

LOCK = threading.Lock()
"""Dropout draws from the process's default generator, so only one thread at a time may seed and use it."""


def generators(device: torch.device) -> list[torch.Generator]:
    """The default generators that an operation on `device` may draw from."""
    found = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        found.append(torch.cuda.default_generators[index])
    return found


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Run the body under `seed`; afterwards the global generators are where they were before."""
    with LOCK:
        saved = [(generator, generator.get_state()) for generator in generators(device)]
        try:
            for generator, _ in saved:
                generator.manual_seed(seed)
            yield
        finally:
            for generator, state in saved:
                generator.set_state(state)


def snapshot(device: torch.device) -> list[torch.Tensor]:
    """The state of every generator of torch that `device` uses; two are compared with `drawn`."""
    return [generator.get_state() for generator in generators(device)]


def drawn(before: list[torch.Tensor], device: torch.device) -> bool:
    """Whether a random number was drawn since `before`."""
    return not all(map(torch.equal, before, snapshot(device)))


class ForeignDraws:
    """Notices draws from Python's and NumPy's global generators, and puts those back on `restore`."""

    def __init__(self) -> None:
        self._numpy: Any = sys.modules.get("numpy")
        self._python_state = random.getstate()
        self._numpy_state: Any = self._numpy.random.get_state() if self._numpy else None

    def happened(self) -> bool:
        """Whether either generator moved since this object was made."""
        if random.getstate() != self._python_state:
            return True
        if self._numpy is None:
            return False
        now = self._numpy.random.get_state()
        then = self._numpy_state
        return bool(now[2] != then[2] or (now[1] != then[1]).any())

    def restore(self) -> None:
        """Put both generators back."""
        random.setstate(self._python_state)
        if self._numpy is not None:
            self._numpy.random.set_state(self._numpy_state)
