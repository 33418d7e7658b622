"""The largest bundle of tensors that a job can send: what is larger is refused before it takes memory."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from splitfl.run.blueprint import Blueprint
from splitfl.transport.base import ChannelLimits

ROOM = 4
"""Labels travel with activations, and only the client knows their size: how many times the largest known bundle."""

LEAST = 16 << 20
"""Bytes that are always let in."""


def channel_limits(blueprint: Blueprint, message: int | None = None, *, clients: int = 1) -> ChannelLimits:
    """Limits for the channels of a job of `clients`; `message` bytes for a bundle where the user says so."""
    largest = message or max(LEAST, ROOM * max(_bundles(blueprint, clients)))
    return ChannelLimits(message=largest, waiting=2 * largest)


def _bundles(blueprint: Blueprint, clients: int) -> list[int]:
    """Bytes of every kind of bundle, unencoded: a stage's weights, and what a whole mini-batch sends across a cut.

    Where mini-batches are drawn of the data of all, one client's may be all of it.
    """
    method, batch = blueprint.method, blueprint.training.batch_size
    if method.global_sampling:
        batch = method.global_batch or batch * clients
    sizes = []
    for stage in blueprint.partition.stages:
        sample = sum(math.prod(port.shape) * port.dtype.itemsize for port in stage.outputs)
        sizes += [_weights(stage.state), batch * sample]
    return sizes


def _weights(state: Mapping[str, torch.Tensor]) -> int:
    return sum(value.numel() * value.element_size() for value in state.values())
