"""Fitting an auxiliary network to the gradients that the tail would send back, instead of to the labels.

    activation ──> tail ──────────────> loss ──> gradient of the activation: what is wanted
             └───> auxiliary network ─> loss ──> gradient of the activation: what is made equal to it

A front that learns from such a network learns about what end-to-end training would teach it. (FSL-SAGE, smashed
activation gradient estimation, arXiv 2505.23182.)
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from splitfl.model.loss import Loss
from splitfl.model.partition import AUXILIARY, Stage, one_or_all
from splitfl.model.probe import undisturbed
from splitfl.model.signature import Tensors
from splitfl.model.stage import OptimizerFactory


class Alignment:
    """The auxiliary network of stage `front`, with the weights in `state`, and an optimizer to fit it with."""

    def __init__(
        self, front: Stage, state: Mapping[str, torch.Tensor], loss: Loss, optimizer: OptimizerFactory
    ) -> None:
        self._prefix = f"{AUXILIARY}.{front.index}."
        self._head: nn.Module = copy.deepcopy(front.module.get_submodule(f"{AUXILIARY}.{front.index}"))
        self._head.load_state_dict({name: state[self._prefix + name] for name in self._head.state_dict()})
        self._head.requires_grad_(True)
        self._loss = loss
        self._optimizer = optimizer(self._head.parameters())

    def step(self, values: Tensors, target: Any, wanted: Mapping[str, torch.Tensor]) -> float:
        """One step towards the gradients `wanted` of the activations `values`, by port name.

        Returns the squared distance of the network's gradients from them before the step, as a share of the square of
        the wanted: 0 where they are equal, 1 for a network that gives none.
        """
        inputs = {name: value.detach().requires_grad_(name in wanted) for name, value in values.items()}
        objective = self._loss(self._head(one_or_all(inputs)), target)
        names = list(wanted)
        made = torch.autograd.grad(objective, [inputs[name] for name in names], create_graph=True, allow_unused=True)
        pairs = [(torch.zeros_like(wanted[n]) if g is None else g, wanted[n]) for n, g in zip(names, made, strict=True)]
        distance = torch.stack([(found - goal).square().sum() for found, goal in pairs]).sum()
        goals = sum(float(goal.square().sum()) for _, goal in pairs)
        both = goals + sum(float(found.detach().square().sum()) for found, _ in pairs)
        self._optimizer.zero_grad(set_to_none=True)
        if distance.requires_grad and both:
            # By both lengths: as the tail learns, what is wanted becomes small, and a share of it without bound.
            torch.autograd.backward(distance / both)
            torch.nn.utils.clip_grad_norm_(self._head.parameters(), 1.0)
            self._optimizer.step()
        return float(distance.detach()) / (goals or 1.0)

    def state(self) -> Tensors:
        """The network's weights under the names that they have in a front's state."""
        return {self._prefix + name: value.detach().clone() for name, value in self._head.state_dict().items()}


def gradients_of(
    stages: Sequence[tuple[Stage, nn.Module]], values: Mapping[str, torch.Tensor], target: Any, loss: Loss
) -> Tensors:
    """Gradients of `loss` with respect to the activations `values` that enter the first of `stages`, by port name.

    The modules are left as they were: no gradient stays, and no running statistics move.
    """
    ports = {port.name for port in stages[0][0].inputs if values[port.name].is_floating_point()}
    inputs = {name: value.detach().requires_grad_(name in ports) for name, value in values.items()}
    passed: Mapping[str, torch.Tensor] = inputs
    result: Any = None
    with undisturbed(*(module for _, module in stages)):
        for stage, module in stages:
            result = stage.apply(module, passed)
            passed = stage.name_outputs(result)
        asked = [inputs[name] for name in sorted(ports)]
        found = torch.autograd.grad(loss(result, target), asked, allow_unused=True)
    return {name: gradient for name, gradient in zip(sorted(ports), found, strict=True) if gradient is not None}
