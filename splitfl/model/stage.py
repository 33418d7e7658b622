"""A replica: the weights of one stage for one client, or for all, with their optimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from splitfl.model.errors import StateError
from splitfl.model.loss import Loss, nested
from splitfl.model.partition import Stage
from splitfl.model.random_state import seeded
from splitfl.model.scoring import Scoring, weighted
from splitfl.model.signature import Tensors
from splitfl.model.split_backward import Roots, WeightStash, backward_input, backward_weight
from splitfl.model.transform import Transform, as_received, as_sent

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class Apart(NamedTuple):
    """Gradients by port name: those that train the weights of the stages here, and those that are sent on below."""

    weights: Tensors
    below: Tensors


@dataclass(slots=True)
class Stash:
    """What the backward of one forward needs; used once.

    inputs     received tensors that need a gradient
    outputs    sent tensors that have one, with their graph
    objective  weight x loss, at a stage with a loss
    below      what the gradients of the stages below start from, where that is not the objective
    loss       value of the loss, not weighted; None without a loss
    metrics    counts for this micro-batch, see `loss.metrics`
    """

    inputs: Tensors = field(default_factory=dict)
    outputs: Tensors = field(default_factory=dict)
    objective: torch.Tensor | None = None
    below: torch.Tensor | None = None
    loss: float | None = None
    metrics: dict[str, int] = field(default_factory=dict)
    _used: bool = False

    def take(self, gradients: Mapping[str, torch.Tensor] | None) -> tuple[Roots, Tensors]:
        """Where gradients start and which inputs they are for; afterwards the stash holds no graph.

        Raises StateError when it was used before, or for a gradient of another shape than its output.
        """
        if self._used:
            raise StateError("the backward of this forward was already run")
        roots, inputs = self._roots(self.objective, gradients), self.inputs
        self.inputs, self.outputs, self.objective, self.below, self._used = {}, {}, None, None, True
        return roots, inputs

    def take_apart(self, gradients: Apart | None) -> tuple[Roots, Roots, Tensors]:
        """As `take`, with the roots of the weights' gradients and those of the gradients below. Raises as `take`."""
        below = self._roots(self.below, gradients.below if gradients else None)
        roots, inputs = self.take(gradients.weights if gradients else None)
        return roots, below, inputs

    def _roots(self, objective: torch.Tensor | None, gradients: Mapping[str, torch.Tensor] | None) -> Roots:
        roots: Roots = [] if objective is None else [(objective, None)]
        for name, gradient in (gradients or {}).items():
            if name in self.outputs:
                roots.append((self.outputs[name], _fitting(name, gradient, self.outputs[name])))
        return roots


def _fitting(name: str, gradient: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    if gradient.shape != output.shape:
        raise StateError(f"gradient of {name!r} has shape {tuple(gradient.shape)}, expected {tuple(output.shape)}")
    return gradient.detach().to(output)


class Replica:
    """Weights, gradients and optimizer of one stage; copies the stage, so replicas share nothing.

    `passes_gradients`: False where the stage below has a loss of its own, so that no gradient of the inputs is needed.
    `receives`, `sends`: the transform at the cut before this stage, and at the one after it.
    """

    def __init__(
        self,
        stage: Stage,
        optimizer: OptimizerFactory,
        *,
        loss: Loss | None = None,
        device: torch.device | str = "cpu",
        passes_gradients: bool = True,
        receives: Transform | None = None,
        sends: Transform | None = None,
    ) -> None:
        self.stage = stage
        self.device = torch.device(device)
        self.module = copy.deepcopy(stage.module).to(self.device)
        self._loss = loss
        self._passes = passes_gradients
        self._receives, self._sends = receives, sends
        self._trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        self._factory = optimizer
        self._optimizer = self._fresh_optimizer()

    def _fresh_optimizer(self) -> torch.optim.Optimizer | None:
        return self._factory(self._trained) if self._trained else None

    def forward(
        self,
        values: Mapping[str, torch.Tensor],
        *,
        seed: int,
        target: Any = None,
        weight: float = 1.0,
        scoring: Scoring | None = None,
        parts: Sequence[int] = (),
    ) -> tuple[Tensors, Stash]:
        """Run one micro-batch: its outputs by port name, detached, and what the backward will need.

        `values` hold the inputs by port name, (samples, *shape) each. The same `seed` gives the same dropout masks,
        whatever else runs; the global generators do not move. With a loss, `target` are the labels and `weight` the
        share of this micro-batch in the mini-batch's loss, which is computed of what `Stage.scored` says, by `scoring`
        where that is given. `parts`: rows of `values` that were sent by one client each, where there are several.

        Raises StateError where an input is missing, and TransformError for a transform that changes a shape.
        """
        wanted = {port.name: port.requires_grad and self._passes for port in self.stage.inputs}
        inputs = {name: self._receive(name, values, requires_grad) for name, requires_grad in wanted.items()}
        result = self._run(self._as_received(inputs, seed, parts), seed)
        outputs = self.stage.name_outputs(result)
        if self._sends is not None:
            outputs = as_sent(self._sends, outputs, self.stage.outputs, seed=seed, device=self.device)
        stash = Stash(
            {name: tensor for name, tensor in inputs.items() if tensor.requires_grad},
            {name: tensor for name, tensor in outputs.items() if tensor.requires_grad},
        )
        if self._loss is not None:
            score = scoring or weighted(weight)
            target = nested(target, lambda value: value.to(self.device))
            stash.objective, stash.loss, stash.metrics, stash.below = score(
                self._loss, self.stage.scored(result), target
            )
        return {name: tensor.detach() for name, tensor in outputs.items()}, stash

    def _as_received(self, inputs: Tensors, seed: int, parts: Sequence[int]) -> Tensors:
        """`inputs` after the transform at the cut, which looks at what one client sent at a time."""
        if self._receives is None:
            return inputs
        split = {name: torch.split(value, [*parts]) if parts else (value,) for name, value in inputs.items()}
        pieces = [dict(zip(split, each, strict=True)) for each in zip(*split.values(), strict=True)]
        made = [
            as_received(self._receives, piece, self.stage.inputs, seed=seed ^ number, device=self.device)
            for number, piece in enumerate(pieces)
        ]
        return {name: torch.cat([each[name] for each in made]) for name in inputs} if parts else made[0]

    def _run(self, inputs: Tensors, seed: int) -> Any:
        """What the stage makes of `inputs` in training."""
        with seeded(seed, self.device) if self.stage.random else nullcontext():
            return self.stage.apply(self.module, inputs)

    @torch.no_grad()
    def infer(self, values: Mapping[str, torch.Tensor]) -> Tensors:
        """The outputs by port name, in evaluation mode and without transforms; nothing is kept for a backward."""
        inputs = {port.name: self._receive(port.name, values, False) for port in self.stage.inputs}
        with self._evaluating():
            return self.stage.name_outputs(self.stage.apply(self.module, inputs))

    @torch.no_grad()
    def score(self, values: Mapping[str, torch.Tensor], target: Any) -> float | None:
        """The loss of these inputs in evaluation mode, None at a stage without one; nothing is kept."""
        inputs = {port.name: self._receive(port.name, values, False) for port in self.stage.inputs}
        with self._evaluating():
            result = self.stage.apply(self.module, inputs)
        if self._loss is None:
            return None
        return float(self._loss(self.stage.scored(result), nested(target, lambda value: value.to(self.device))))

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        was_training = self.module.training
        self.module.eval()
        try:
            yield
        finally:
            self.module.train(was_training)

    def _receive(self, name: str, values: Mapping[str, torch.Tensor], requires_grad: bool) -> torch.Tensor:
        if name not in values:
            raise StateError(f"stage {self.stage.index} is not given {name!r}, only {sorted(values)}")
        return values[name].detach().to(self.device).requires_grad_(requires_grad)

    def backward(self, stash: Stash, gradients: Mapping[str, torch.Tensor] | None = None) -> Tensors:
        """Gradients of the inputs by port name, from those of the outputs; the weights' are added to `.grad`.

        An output without a gradient counts as unused, and an input that nothing depends on is left out.
        """
        roots, inputs = stash.take(gradients)
        _run_backward(roots)
        return _taken(inputs)

    def backward_apart(self, stash: Stash, gradients: Apart | None = None) -> Apart:
        """As `backward`, where the gradients below come from another objective than those of the weights."""
        roots, below, inputs = stash.take_apart(gradients)
        _run_backward(roots, retain_graph=bool(inputs))
        weights = _taken(inputs)
        if inputs:
            _run_backward(below, inputs=list(inputs.values()))
        return Apart(weights, _taken(inputs))

    def backward_input(
        self, stash: Stash, gradients: Mapping[str, torch.Tensor] | None = None
    ) -> tuple[Tensors, WeightStash]:
        """The first half of `backward`: gradients of the inputs, and what `backward_weight` needs for the rest."""
        roots, inputs = stash.take(gradients)
        found = backward_input(roots, list(inputs.values()))
        given = {name: gradient for name, gradient in zip(inputs, found, strict=True) if gradient is not None}
        return given, WeightStash(roots if self._trained else [])

    def backward_weight(self, stash: WeightStash) -> None:
        """The second half of `backward`: the gradients of the weights are added to `.grad`."""
        backward_weight(stash.take(), self._trained)

    def step(self) -> None:
        """One optimizer step on the accumulated gradients, which are then freed; nothing without weights."""
        if self._optimizer is not None:
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)

    def state(self) -> Tensors:
        """Copies of the parameters and persistent buffers, by the whole model's names."""
        return {name: value.detach().clone() for name, value in self.module.state_dict().items()}

    def load(self, state: Mapping[str, torch.Tensor], *, reset_optimizer: bool) -> None:
        """Take over weights; `reset_optimizer` starts a fresh optimizer, else it goes on. Gradients are dropped.

        Raises StateError, naming the tensor, for a missing or unknown name or another shape.
        """
        held = self.module.state_dict()
        missing, unknown = held.keys() - state.keys(), state.keys() - held.keys()
        if missing or unknown:
            raise StateError(f"stage {self.stage.index}: missing {sorted(missing)}, unknown {sorted(unknown)}")
        for name, value in held.items():
            if state[name].shape != value.shape:
                shapes = f"{tuple(state[name].shape)}, expected {tuple(value.shape)}"
                raise StateError(f"stage {self.stage.index}: {name!r} has shape {shapes}")
        self.module.load_state_dict(dict(state))
        for parameter in self._trained:
            parameter.grad = None
        if reset_optimizer:
            self._optimizer = self._fresh_optimizer()

    def reset_optimizer(self) -> None:
        """Start a fresh optimizer; the weights stay."""
        self._optimizer = self._fresh_optimizer()

    def optimizer_state(self) -> dict[str, Any]:
        """A copy of the optimizer's `state_dict`; empty for a stage without weights."""
        return {} if self._optimizer is None else copy.deepcopy(self._optimizer.state_dict())

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """Go on with the state that `optimizer_state` gave."""
        if self._optimizer is not None:
            self._optimizer.load_state_dict(copy.deepcopy(state))


def _run_backward(roots: Roots, **options: Any) -> None:
    if roots:
        tensors, starts = zip(*roots, strict=True)
        torch.autograd.backward(tensors, starts, **options)


def _taken(inputs: Tensors) -> Tensors:
    """The gradients of `inputs` by name, which keep none."""
    found = {name: tensor.grad for name, tensor in inputs.items() if tensor.grad is not None}
    for tensor in inputs.values():
        tensor.grad = None
    return found
