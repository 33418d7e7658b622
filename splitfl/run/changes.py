"""Updates of which only a part is sent: changes of weights, and what was left out of them.

Of weights nothing can be left out, of their changes most can. Both ends know the average that a client began its round
with, exactly as it came out of its codec. The client sends how its weights differ from that, and the server adds it up:

    client   change + left over from before ──> codec ──> sent;   what the codec lost is left over for the next round
    server   average + what arrived

(Error feedback: arXiv 1809.07599, algorithm 1, for local training 1901.09847.) What is left over counts from the next
turn on; a turn that is done again takes it from before itself, so that a lost connection changes no bit.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from splitfl.codecs import Chain, frame
from splitfl.codecs.frame import Buffer
from splitfl.schedule.instruction import Kind, Value

Tensors = dict[str, torch.Tensor]


class Changes:
    """The averages that updates count from, and on a client what was left over, each by the weights that it is of."""

    def __init__(self) -> None:
        self._averages: dict[Value, Tensors] = {}
        self._next: dict[Value, Tensors] = {}
        self.left_over: dict[Value, Tensors] = {}

    def count_from(self, average: Value, tensors: Mapping[str, torch.Tensor]) -> None:
        """Updates of these weights count from `tensors`, the average as it arrives, from now on."""
        held = {name: value.detach().cpu() for name, value in tensors.items()}
        self._averages[_weights(average)] = held

    def pack(self, value: Value, state: Mapping[str, torch.Tensor], codec: Chain, *, draw: int) -> list[Buffer]:
        """The buffers of an update: of each float tensor its change, of all others the tensor itself."""
        changes = {name: new.detach().cpu() for name, new in state.items()}
        before, left = self._averages[value], self.left_over.get(value, {})
        for name, new in changes.items():
            if new.is_floating_point():
                changes[name] = new - before[name]
                if codec.feedback and name in left:
                    changes[name] = changes[name] + left[name]
        buffers = frame.encode(changes, codec, draw=draw)
        if codec.feedback:
            arrives = frame.decode(b"".join(buffers), limits=frame.TRUSTED)
            floats = [name for name, change in changes.items() if change.is_floating_point()]
            self._next[value] = {name: changes[name] - arrives[name] for name in floats}
        return buffers

    def unpack(self, value: Value, received: Mapping[str, torch.Tensor]) -> Tensors:
        """The weights that an update stands for."""
        before = self._averages[value]
        return {name: before[name] + new if new.is_floating_point() else new for name, new in received.items()}

    @property
    def left_for_next(self) -> dict[Value, Tensors]:
        """What the turn after the present one begins with, once that counts."""
        return self.left_over | self._next

    def turn_over(self) -> None:
        """The last turn counts: what it left over is for the next one."""
        self.left_over |= self._next
        self._next.clear()

    def undo(self) -> None:
        """The last turn does not count: what it left over is forgotten."""
        self._next.clear()


def _weights(average: Value) -> Value:
    return average._replace(kind=Kind.PARAMS)
