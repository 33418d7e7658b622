"""How large the numbers are that clients send to weights that all share: who spoils them, or has done so.

One client's huge activations make a step of the shared weights after which the next client's loss is no number. It is
not the next client's fault.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

import torch

FAR = 1e4
"""How many times the others' median a client's largest number is where it is blamed for a loss that is no number."""

TOO_FAR = 1e6
"""... and where it is refused at once: the step that it makes could not be taken back later."""


class Scales:
    """The largest number that each client sent in the turns under way."""

    def __init__(self) -> None:
        self._largest: dict[int, float] = {}

    def note(self, client: int, tensors: Iterable[torch.Tensor]) -> None:
        """Look at what `client` sent."""
        numbers = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
        largest = max((float(tensor.detach().abs().amax()) for tensor in numbers), default=0.0)
        self._largest[client] = max(self._largest.get(client, 0.0), largest)

    def forget(self, client: int) -> None:
        """Forget what `client` sent."""
        self._largest.pop(client, None)

    def outlier(self, far: float = FAR) -> tuple[int, str] | None:
        """The client whose numbers are `far` times those of the others or more, and a phrase that says so."""
        if len(self._largest) < 2:
            return None
        client = max(sorted(self._largest), key=lambda each: self._largest[each])
        usual = median(value for each, value in self._largest.items() if each != client)
        largest = self._largest[client]
        if largest <= far * max(usual, 1.0):
            return None
        return client, f"what it sent is as large as {largest:.1e}, that of the others {usual:.1e}"
