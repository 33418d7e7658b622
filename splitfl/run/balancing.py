"""The tail balanced after a buffered round: trained on what came in it, and on activations that are drawn.

Clients in a hurry come more often, so the tail sees more of their labels. Where a label came less often than others in
a round, the server draws activations for it from the Gaussian of all that came of it so far. (GAS, arXiv 2409.01251:
its server, too, trains when the buffer is full; an activation counts there by its client's progress.)
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

import torch

from splitfl.aggregation.guards import is_finite
from splitfl.errors import SplitflError
from splitfl.model import Replica
from splitfl.run.actor import Actor
from splitfl.run.blueprint import Blueprint
from splitfl.run.gaussians import Gaussians, missing
from splitfl.run.metrics import Tally
from splitfl.run.seeds import derive
from splitfl.run.server_training import ServerTraining
from splitfl.run.target import join_target, split_target
from splitfl.run.under_way import Arrived
from splitfl.schedule.instruction import Kind, Value
from splitfl.schedule.topology import Topology

Tensors = dict[str, torch.Tensor]

_LOGGER = logging.getLogger(__name__)


class Balancing:
    """Trains a tail of its own, beside the clients' replicas, on what the actor's store holds.

    gaussians  what is known of the activations of each label
    """

    def __init__(self, blueprint: Blueprint, actor: Actor, training: ServerTraining, topology: Topology) -> None:
        self.gaussians = Gaussians()
        self._blueprint = blueprint
        self._store = actor.store
        self._scales = actor.scales
        self._training = training
        self._topology = topology
        self._replicas: list[Replica] = []

    async def train(
        self, number: int, arrived: Sequence[Arrived], refused: Collection[int], state: Tensors
    ) -> tuple[Tally, Tensors]:
        """The tail of `state`, the whole model's weights after round `number`, trained; its loss and its weights.

        `arrived`: the round's turns, of which the work of the clients `refused` does not count, nor do their
        activations. What the store holds of any of these clients is forgotten.

        Raises SplitflError for labels that are not one whole number for each sample, and where the loss is lost.
        """
        for client in refused:
            self._store.forget(client)
        received = self._received({c: turn.version for turn, outcome in arrived for c in outcome.states})
        if not received:
            return Tally(), {}
        drawn = self._drawn(number, received)
        kept = {name: torch.cat([value, drawn[name].to(value)]) for name, value in received.items()}
        tail = self._tail(state)
        tally = await self._training.train(tail, kept, number)
        found = {name: value for replica in tail for name, value in replica.state().items()}
        if broken := [name for name, value in found.items() if not is_finite(value)]:
            raise SplitflError(f"round {number}: {broken[0]!r} is not finite: lower the learning rate")
        return tally, found

    def _received(self, versions: Mapping[int, int]) -> Tensors:
        """What came of these clients, in the order of their ids, whoever came first; the Gaussians learn of it.

        `versions`: the round whose weights each began with. The later, the more its activations count for the
        Gaussians: an older front made others.
        """
        outlier = self._scales.outlier()
        bundles = []
        for client, version in sorted(versions.items()):
            bundle = self._store.joined(client)
            if not bundle:
                continue
            if outlier is not None and outlier[0] == client:
                _LOGGER.warning("activations of c%d are not learned from: %s", *outlier)
                self._store.forget(client)
                continue
            activations, labels = split_target(bundle)
            self.gaussians.observe(activations, self._whole_numbers(labels), weight=version + 1)
            bundles.append(bundle)
            self._store.forget(client)
        return {name: torch.cat([bundle[name] for bundle in bundles]) for name in bundles[0]} if bundles else {}

    def _drawn(self, number: int, received: Tensors) -> Tensors:
        _, labels = split_target(received)
        values, found = torch.unique(labels, return_counts=True)
        counts = dict.fromkeys(self.gaussians.labels, 0) | dict(zip(values.tolist(), found.tolist(), strict=True))
        counts = {label: count for label, count in counts.items() if label >= 0}  # those below are ignored by losses
        wanted = missing(counts, most=int(self._blueprint.method.generated * len(labels)))
        if not wanted:
            return {name: value[:0] for name, value in received.items()}
        return join_target(*self.gaussians.draw(wanted, seed=derive(self._blueprint.seed, "generated", number)))

    def _whole_numbers(self, labels: object) -> torch.Tensor:
        if isinstance(labels, torch.Tensor):
            whole = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
            if whole and labels.dim() == 1:
                return labels
            found = f"{labels.dtype} of shape {tuple(labels.shape)}"
        else:
            found = type(labels).__name__
        name = self._blueprint.method.name
        raise SplitflError(f"method {name}: labels are {found}, expected one whole number for each sample, (samples,)")

    def _tail(self, state: Tensors) -> list[Replica]:
        stages = range(self._blueprint.method.front_stages, self._topology.stages)
        own = [Value(Kind.PARAMS, stage) for stage in stages]
        self._replicas = self._replicas or [self._blueprint.replica(each, self._topology) for each in own]
        for stage, replica in zip(stages, self._replicas, strict=True):
            replica.load(self._blueprint.stage_state(state, stage), reset_optimizer=True)
        return self._replicas
