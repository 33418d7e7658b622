"""What an actor sends and receives, as bytes: each value in the codec of its role, each message checked."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from splitfl.codecs import Limits, frame
from splitfl.codecs.frame import Buffer
from splitfl.run.blueprint import Blueprint
from splitfl.run.changes import Changes
from splitfl.run.expectation import largest, verify
from splitfl.schedule.instruction import Kind, Value
from splitfl.schedule.topology import Topology

Tensors = dict[str, torch.Tensor]


class Wire:
    """One actor's way to bytes and back. Safe to use from several threads, for different values."""

    def __init__(self, blueprint: Blueprint) -> None:
        self.changes = Changes()
        self._blueprint = blueprint
        self._codecs = blueprint.codecs
        self._sends_changes = self._codecs.update is not None and self._codecs.update.keep is not None

    def pack(self, value: Value, tensors: Tensors, *, draw: int) -> list[Buffer]:
        """The buffers of a message; `draw` decides what its codec does at random."""
        codec = self._codecs.for_kind(value.kind)
        if self._sends_changes and value.kind is Kind.PARAMS and codec is not None:
            return self.changes.pack(value, tensors, codec, draw=draw)
        buffers = frame.encode(tensors, codec, draw=draw)
        if self._sends_changes and value.kind is Kind.AVG:
            arrives = frame.decode(b"".join(buffers), limits=frame.TRUSTED)
            self.changes.count_from(value, arrives)
        return buffers

    def unpack(self, value: Value, payload: Buffer, topology: Topology, samples: Mapping[int, int]) -> Tensors:
        """The tensors in a message. Raises SplitflError, naming the tensor, unless they are what `value` must hold."""
        room = largest(value, self._blueprint, topology, samples=samples)
        tensors = frame.decode(payload, limits=Limits(thinned=room))
        verify(tensors, value, self._blueprint, topology, samples=samples)
        if self._sends_changes and value.kind is Kind.AVG:
            self.changes.count_from(value, tensors)
        if self._sends_changes and value.kind is Kind.PARAMS:
            return self.changes.unpack(value, tensors)
        return tensors
