"""What a message must hold: every tensor that comes from outside is checked against the probed shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

import torch

from splitfl.errors import SplitflError
from splitfl.model import Port
from splitfl.model.micro_batches import sizes
from splitfl.run.blueprint import Blueprint
from splitfl.run.target import is_target, split_target
from splitfl.schedule.instruction import Kind, Value
from splitfl.schedule.topology import Topology

Tensors = dict[str, torch.Tensor]
Signature = dict[str, tuple[torch.dtype, tuple[int, ...]]]


def verify(
    tensors: Tensors,
    value: Value,
    blueprint: Blueprint,
    topology: Topology,
    *,
    samples: Mapping[int, int] | None = None,
) -> None:
    """Raise SplitflError, naming the tensor, unless `tensors` are what `value` must hold.

    `samples` are the sizes of the clients' mini-batches; weights need none. What is on its way to a shared or a stored
    stage must be free of NaN, which would spoil the weights of all.
    """
    stage = blueprint.stage(value.stage, value.client)
    if value.kind in (Kind.PARAMS, Kind.AVG):
        wanted = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in stage.state.items()}
        _compare(tensors, wanted, required=wanted, what=value)
        return
    if value.client is None or value.micro_batch is None or samples is None:
        raise SplitflError(f"{value} names no micro-batch of this step")
    count = sizes(samples[value.client], len(topology.micro(value.client)))[value.micro_batch]
    if value.kind is Kind.GRAD:
        ports = _signature((port for port in stage.outputs if port.requires_grad), count)
        _compare(tensors, ports, required=(), what=value)
        return
    _, carried = split_target(tensors)
    if (carried is not None) != blueprint.carries_target(value.stage, topology, value.client):
        raise SplitflError(f"{value} comes {'without' if carried is None else 'with'} labels, expected the opposite")
    labels = {name: tensor for name, tensor in tensors.items() if is_target(name)}
    for name, label in labels.items():
        if label.dim() == 0 or label.shape[0] != count:
            raise SplitflError(f"{value}: {name} has shape {tuple(label.shape)}, expected {count} samples")
    ports = _signature(stage.outputs, count)
    activations = {name: tensor for name, tensor in tensors.items() if name not in labels}
    _compare(activations, ports, required=ports, what=value)
    if value.stage + 1 in topology.shared | topology.stored:
        _require_numbers(tensors, what=value)


def largest(value: Value, blueprint: Blueprint, topology: Topology, *, samples: Mapping[int, int] | None = None) -> int:
    """Elements of the largest tensor that `value` can hold; labels, which are never thinned, do not count."""
    stage = blueprint.stage(value.stage, value.client)
    if value.kind in (Kind.PARAMS, Kind.AVG):
        return max((tensor.numel() for tensor in stage.state.values()), default=0)
    if value.client is None or value.micro_batch is None or samples is None:
        return 0
    count = sizes(samples[value.client], len(topology.micro(value.client)))[value.micro_batch]
    return max((prod(shape) for _, shape in _signature(stage.outputs, count).values()), default=0)


def _require_numbers(tensors: Tensors, *, what: Value) -> None:
    """No NaN. Infinity may be meant: attention masks hold it."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and bool(tensor.isnan().any()):
            raise SplitflError(f"{what}: {name} holds NaN, expected numbers")


def _signature(ports: Iterable[Port], samples: int) -> Signature:
    return {port.name: (port.dtype, (samples, *port.shape) if port.batched else tuple(port.shape)) for port in ports}


def _compare(tensors: Tensors, wanted: Signature, *, required: Iterable[str], what: Value) -> None:
    missing = [name for name in required if name not in tensors]
    extra = [name for name in tensors if name not in wanted]
    if missing or extra:
        raise SplitflError(f"{what}: missing tensors {missing}, unexpected tensors {extra}")
    for name, tensor in tensors.items():
        got = (tensor.dtype, tuple(tensor.shape))
        if got != wanted[name]:
            raise SplitflError(f"{what}: {name} is {_show(got)}, expected {_show(wanted[name])}")


def _show(signature: tuple[torch.dtype, tuple[int, ...]]) -> str:
    return f"{str(signature[0]).removeprefix('torch.')}{list(signature[1])}"
