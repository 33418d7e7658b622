"""A transform at the cut: what is done to an activation as it leaves one end, and as it arrives at the other.

    front ──> sent ══ codec, wire ══> received ──> tail          activation
    front <── sent ══ wire, codec ══ received <── tail           gradient, by autograd through the same two functions

Both run in the training forward of the stages at either side, so they are part of what is trained; an evaluation, and a
front that only runs forward, do without. A loss that a front has of its own sees the activation as it was before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from splitfl.model.crossing import Port
from splitfl.model.errors import TransformError
from splitfl.model.random_state import seeded
from splitfl.model.signature import Tensors
from splitfl.schedule.topology import CLIENT

SENT, RECEIVED = 0x5EED, 0xFEED
"""Set a transform's draws apart from those of its stage, which come of the same seed."""

Function = Callable[[torch.Tensor], torch.Tensor]
"""An activation, (samples, *shape), in; one of the same dtype and shape out."""


def unchanged(activation: torch.Tensor) -> torch.Tensor:
    """What a transform does at an end where it does nothing."""
    return activation


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """A pair of differentiable functions of one activation, (samples, *shape), that keep its dtype and shape.

    name      as the job says it; both ends of a session must have the same
    sent      run where the activation is made, before it leaves
    received  run where it arrives, before the next stage computes
    both_ways also for what a server sends to a head on the client (U-shaped); else for what leaves a client only
    share     columns that are left, as a share: for predictions of what the codec `columns` makes of the activation

    They may draw from torch's default generators, which are seeded for them and put back: the same mini-batch gives the
    same draws, whatever else runs. They must not keep anything from one call to the next.
    """

    name: str
    sent: Function = unchanged
    received: Function = unchanged
    both_ways: bool = False
    share: float = 1.0


def is_transformed(port: Port) -> bool:
    """Whether a transform changes what goes through `port`: floats with samples that take part in the gradient."""
    return port.batched and port.requires_grad and port.dtype.is_floating_point


def transform_after(transform: Transform | None, placement: Sequence[str], stage: int) -> Transform | None:
    """The transform of what leaves `stage` for a stage in another place; None where there is none."""
    if transform is None or not 0 <= stage < len(placement) - 1 or placement[stage] == placement[stage + 1]:
        return None
    return transform if placement[stage] == CLIENT or transform.both_ways else None


def as_sent(
    transform: Transform, tensors: Tensors, ports: Sequence[Port], *, seed: int, device: torch.device
) -> Tensors:
    """The outputs of a stage as they leave it; what `is_transformed` says no of passes on as it is.

    Raises TransformError, naming the tensor, where its dtype or shape is another afterwards.
    """
    with seeded(seed ^ SENT, device):
        return _applied(transform.sent, tensors, ports, what=f"transform = {transform.name!r}: sent")


def as_received(
    transform: Transform, tensors: Tensors, ports: Sequence[Port], *, seed: int, device: torch.device
) -> Tensors:
    """The inputs of a stage as it computes on them; otherwise as `as_sent`."""
    with seeded(seed ^ RECEIVED, device):
        return _applied(transform.received, tensors, ports, what=f"transform = {transform.name!r}: received")


def _applied(function: Function, tensors: Tensors, ports: Sequence[Port], *, what: str) -> Tensors:
    made = dict(tensors)
    for port in filter(is_transformed, ports):
        before = tensors[port.name]
        after = function(before)
        if not isinstance(after, torch.Tensor) or (after.dtype, after.shape) != (before.dtype, before.shape):
            raise TransformError(f"{what} gives {_shown(after)} of {port.name!r}, expected {_shown(before)}")
        made[port.name] = after
    return made


def _shown(value: object) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
