"""The server on its own: it trains the tail, or fits auxiliary networks, on the activations that it keeps.

No client waits for it or is asked for anything. All clients' samples are shuffled together, so that a mini-batch is as
even as the data of all (activation consolidation, arXiv 2507.07130, section 3.3).
"""

from __future__ import annotations

import math
import time

import torch

from splitfl.data.batches import order, plan
from splitfl.errors import SplitflError
from splitfl.model import Alignment, Replica, gradients_of
from splitfl.model.micro_batches import weight
from splitfl.run.actor import Actor
from splitfl.run.blueprint import Blueprint
from splitfl.run.metrics import Tally
from splitfl.run.seeds import derive
from splitfl.run.target import split_target
from splitfl.schedule.instruction import Op, weights
from splitfl.schedule.topology import Topology

Tensors = dict[str, torch.Tensor]


class ServerTraining:
    """Trains on what the actor's store holds, with its replicas; `topology` is that of a whole round.

    `seconds`: how long the last work took.
    """

    def __init__(self, blueprint: Blueprint, actor: Actor, topology: Topology) -> None:
        self._blueprint = blueprint
        self._actor = actor
        self._stages = range(blueprint.method.front_stages, topology.stages)
        self._topology = topology
        self.seconds = 0.0

    def _tail(self) -> list[Replica]:
        keys = [weights(self._topology, stage, None) for stage in self._stages]
        return [self._actor.replica(key, self._topology) for key in keys]

    async def train_tail(self, number: int) -> Tally:
        """Train the tail in round `number`, as often as the method says. Raises SplitflError where the loss is lost."""
        tail = self._tail()
        if self._blueprint.training.optimizer_state == "reset":
            for replica in tail:
                replica.reset_optimizer()
        return await self.train(tail, self._actor.store.joined(), number)

    async def train(self, tail: list[Replica], kept: Tensors, number: int) -> Tally:
        """Train `tail`, the stages behind the cut, on `kept`, (samples, *shape) by port name and the labels with them.

        As often as the method says, in round `number`. Raises SplitflError where the loss is lost.
        """
        blueprint = self._blueprint
        start = time.monotonic()
        tally = Tally()
        for epoch in range(blueprint.method.server_epochs):
            seed = derive(blueprint.seed, "server", number, epoch)
            for index, batch in enumerate(self._batches(kept, seed)):
                loss, samples = await self._actor.pool.run(
                    Op.FORWARD, self._step, tail, batch, derive(seed, "step", index)
                )
                tally.add(loss, samples)
        if not math.isfinite(tally.loss):
            raise SplitflError(f"round {number}: the tail diverged when the server trained it: lower the learning rate")
        self.seconds = time.monotonic() - start
        return tally

    def _batches(self, kept: Tensors, seed: int) -> list[Tensors]:
        samples = len(next(iter(kept.values())))
        sizes = plan(samples, batch_size=self._blueprint.training.batch_size, minimum=self._blueprint.minimum)
        parts = torch.split(order(samples, seed=seed, shuffle=self._blueprint.training.shuffle), list(sizes))
        return [{name: value[rows] for name, value in kept.items()} for rows in parts]

    def _step(self, tail: list[Replica], batch: Tensors, seed: int) -> tuple[float, int]:
        """One mini-batch through all stages of the tail and back, and a step of each; its mean loss, and its size."""
        values, target = split_target(batch)
        samples = len(next(iter(batch.values())))
        share = weight(samples, samples, self._blueprint.reduction)
        stashes = []
        for stage, replica in zip(self._stages, tail, strict=True):
            values, stash = replica.forward(values, seed=derive(seed, stage), target=target, weight=share)
            stashes.append(stash)
        loss = stashes[-1].loss or 0.0
        gradients: Tensors | None = None
        for replica, stash in zip(reversed(tail), reversed(stashes), strict=True):
            gradients = replica.backward(stash, gradients)
        for replica in tail:
            replica.step()
        return (loss if self._blueprint.reduction == "mean" else loss / samples), samples

    async def align(self, number: int, state: Tensors) -> Tensors:
        """The auxiliary networks of `state`, fitted in round `number` to the tail's gradients of what is kept.

        The tail only looks: it is not trained here. (FSL-SAGE, arXiv 2505.23182.)
        """
        blueprint, tail, kept = self._blueprint, self._tail(), self._actor.store.joined()
        front = blueprint.partition.stages[blueprint.method.front_stages - 1]
        fitted = Alignment(front, state, blueprint.loss, blueprint.optimizer)
        for epoch in range(blueprint.method.server_epochs):
            seed = derive(blueprint.seed, "align", number, epoch)
            for batch in self._batches(kept, seed):
                await self._actor.pool.run(Op.FORWARD, self._fit, fitted, tail, batch)
        return fitted.state()

    def _fit(self, fitted: Alignment, tail: list[Replica], batch: Tensors) -> None:
        values, target = split_target(batch)
        wanted = gradients_of([(each.stage, each.module) for each in tail], values, target, self._blueprint.loss)
        fitted.step(values, target, wanted)
