"""A job made ready to run: every choice resolved, every shape probed. Both ends of a session build the same one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from splitfl.codecs import Codecs
from splitfl.data.batches import plan
from splitfl.errors import SplitflError
from splitfl.methods import Method
from splitfl.model import Partition, Replica, Stage, Transform, is_auxiliary, transform_after
from splitfl.schedule.instruction import Value
from splitfl.schedule.topology import CLIENT, Topology

Loss = Callable[[Any, Any], torch.Tensor]
OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How a client trains in a round.

    batch_size        samples in a mini-batch
    epochs, steps     passes over the local data, or mini-batches (exactly one of the two is set)
    optimizer_state   "reset": every replica starts each round with a fresh optimizer; "keep": it goes on with its own.
                      One rule for all methods and for fronts and tails alike, so that methods stay comparable
    """

    batch_size: int
    epochs: int | None = 1
    steps: int | None = None
    shuffle: bool = True
    drop_last: bool = False
    optimizer_state: Literal["reset", "keep"] = "reset"

    def batches(self, samples: int, minimum: int) -> tuple[int, ...]:
        """Sizes of the mini-batches that a client with `samples` samples trains on in one round."""
        return plan(
            samples,
            batch_size=self.batch_size,
            epochs=self.epochs or 1,
            steps=self.steps,
            drop_last=self.drop_last,
            minimum=minimum,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds that a wait may last.

    enrollment  for all clients to enroll
    step        for one message of a mini-batch
    round       for a whole round
    rejoin      for a client that lost its connection to come back; 0 goes on without it at once
    """

    enrollment: float = 300.0
    step: float = 120.0
    round: float = 3600.0
    rejoin: float = 30.0

    @property
    def silence(self) -> float:
        """Seconds without a sign of life after which a connection is lost: shortly before a step waits in vain for it.

        Not much sooner: on a slow line a sign of life queues behind tensors, and those may take as long as a step.
        """
        return 0.85 * self.step


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """What an end of a session needs to know of the job.

    `minimum` is the smallest micro-batch that the model takes (2 with BatchNorm). `model` is the unsplit module, for
    evaluation and for the initial weights. `distillation`: the loss of (student's, teacher's) output at every stage, in
    place of `loss`. `holders`: in place of the first stage, what of it is each client's, where clients hold features of
    the same samples. `transform`: of the activations that cross from a client to the server, in training.
    """

    model: nn.Module
    partition: Partition
    method: Method
    micro_batches: int
    minimum: int
    loss: Loss
    reduction: Literal["mean", "sum"]
    optimizer: OptimizerFactory
    training: Training
    codecs: Codecs
    deadlines: Deadlines
    seed: int
    device: str = "cpu"
    contract: str = "{}"
    distillation: Loss | None = None
    holders: tuple[Stage, ...] = ()
    transform: Transform | None = None

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.partition.stages)

    @property
    def initial(self) -> dict[str, torch.Tensor]:
        """Copies of the weights that training begins with: the model's, and those of auxiliary networks."""
        held = {name: value for stage in self.partition.stages for name, value in stage.state.items()}
        extra = {name: value for name, value in held.items() if is_auxiliary(name)}
        return {name: value.detach().clone() for name, value in (self.model.state_dict() | extra).items()}

    @property
    def buffers(self) -> set[str]:
        """Names of what a strategy must not average as weights: the model's buffers and those of its stages."""
        of_stages = {name for stage in self.partition.stages for name in stage.buffers}
        return of_stages | {name for name, _ in self.model.named_buffers(remove_duplicate=False)}

    def topology(self, clients: tuple[int, ...], **options: Any) -> Topology:
        """The topology of a round in which `clients` take part."""
        return self.method.topology(clients, stages=self.stages, **options)

    def stage(self, index: int, client: int | None = None) -> Stage:
        """The stage as `client` has it. Raises SplitflError for a client beyond the holders."""
        if index or client is None or not self.holders:
            return self.partition.stages[index]
        if client >= len(self.holders):
            raise SplitflError(f"c{client} holds no input of the model: expected {len(self.holders)} clients")
        return self.holders[client]

    def bind(self, inputs: Any, client: int) -> dict[str, torch.Tensor]:
        """The inputs of stage 0 by name, from a batch of `client`'s data set."""
        if not self.holders:
            return self.partition.bind(inputs)
        return {self.stage(0, client).inputs[0].name: inputs}

    def replica(self, params: Value, topology: Topology) -> Replica:
        """A fresh replica of what `params` names, with the initial weights."""
        stage = params.stage
        return Replica(
            self.stage(stage, params.client),
            self.optimizer,
            loss=(self.distillation or self.loss) if stage in topology.losses else None,
            device=self.device,
            passes_gradients=stage - 1 not in topology.losses,
            receives=self.transform_after(stage - 1),
            sends=self.transform_after(stage),
        )

    def transform_after(self, stage: int) -> Transform | None:
        """The transform of what leaves `stage` for another place; None where there is none."""
        # Of the method, not of a topology: a phase without a server makes no other replicas.
        return transform_after(self.transform, self.method.placement(self.stages), stage)

    def carries_target(self, stage: int, topology: Topology, client: int | None = None) -> bool:
        """Whether the labels travel with the output of `stage` for `client`: a loss further on has no data of its own.


        Where clients hold features of the same samples, only one has labels.
        """
        away = any(loss > stage and topology.placement[loss] != CLIENT for loss in topology.losses)
        merging = self.method.merging
        elsewhere = merging is not None and merging.aligned and client not in (None, merging.labels_at)
        return away and self.distillation is None and not elsewhere

    def stage_state(
        self, state: dict[str, torch.Tensor], stage: int, client: int | None = None
    ) -> dict[str, torch.Tensor]:
        """The part of a whole model's state that belongs to `stage`, as `client` has it."""
        return {name: state[name] for name in self.stage(stage, client).state_names}

    def fingerprints(self) -> dict[str, str]:
        """A digest for each thing that both ends must agree on: a difference can be named without sending it."""
        ports = [
            [(port.name, str(port.dtype), port.shape) for port in (*stage.inputs, *stage.outputs)]
            for stage in self.partition.stages
        ]
        weights = [(name, str(value.dtype), tuple(value.shape)) for name, value in self.initial.items()]
        parts: dict[str, Any] = {"model": weights, "cut": ports, **json.loads(self.contract)}
        return {name: hashlib.sha256(json.dumps(part).encode()).hexdigest()[:16] for name, part in parts.items()}
