"""What an actor computes once for all clients: the stages where their micro-batches are merged."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from splitfl.errors import SplitflError
from splitfl.methods import Merging
from splitfl.model import Aligned, Apart, LossError, Merged, Replica, Stash, Tensors
from splitfl.run.failure import PeerError, in_words
from splitfl.run.metrics import Tally
from splitfl.run.seeds import derive
from splitfl.run.target import join_target, split_target
from splitfl.schedule.instruction import Instruction, Kind, Op, Value, effects

if TYPE_CHECKING:
    from splitfl.run.actor import Actor
    from splitfl.run.work import Work

ROUNDING = 1e-9
"""Of a share times a number of samples, before it is rounded up: 0.55 x 100 is a little more than 55."""

Written = Mapping[Kind | Value, Any]


class Together:
    """The handlers of an actor's merged stages, as `Actor` has them for the stages that compute for one client."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._blueprint = actor.blueprint
        self._rule = actor.blueprint.method.merging or Merging()
        self.handlers: dict[Op, Callable[[Instruction, list[Any], Work], Awaitable[Written]]] = {
            Op.FORWARD: self._forward,
            Op.BACKWARD: self._backward,
            Op.BACKWARD_INPUT: self._backward_input,
        }

    def _merged(self, at: Instruction, work: Work) -> Merged | Aligned:
        micro, clients = at.micro_batch or 0, work.topology.clients
        if self._rule.aligned:
            owner = self._rule.labels_at
            return Aligned(
                samples={owner: work.micro_samples(owner, micro)},
                whole=work.samples[owner],
                reduction=self._blueprint.reduction,
                sent={c: [port.name for port in self._blueprint.stage(0, c).outputs] for c in clients},
            )
        samples = {client: work.micro_samples(client, micro) for client in clients}
        return Merged(
            samples=samples,
            whole=sum(work.samples.values()),
            reduction=self._blueprint.reduction,
            averaged=math.ceil(self._rule.averaged * min(samples.values()) - ROUNDING),
            adjusted=self._rule.logit_adjustment,
        )

    def _enters(self, at: Instruction, work: Work) -> bool:
        """Whether the clients' samples are put together here, and not at a stage below."""
        return at.stage - 1 not in work.topology.merged

    async def _forward(self, at: Instruction, taken: list[Any], work: Work) -> Written:
        merged = self._merged(at, work)
        parts = [split_target(bundle) for bundle in taken]
        received, target = parts[0]
        if self._enters(at, work):
            for client, (tensors, _) in zip(work.topology.clients, parts, strict=True):
                self._actor.examine(at, client, tensors, work)
            target = self._labels(at, merged, [target for _, target in parts], work)
            received = merged.joined([tensors for tensors, _ in parts])
        replica: Replica = self._actor.slots.peek(effects(at, work.topology).reads[0])
        seed = derive(work.seed, work.step, "merged", at.stage, at.micro_batch or 0)

        parts_of = merged.parts() if self._enters(at, work) else ()

        def forward() -> tuple[Tensors, Stash]:
            return replica.forward(received, seed=seed, target=target, scoring=merged.score, parts=parts_of)

        try:
            outputs, stash = await self._actor.compute(at, work, forward)
        except LossError:
            raise
        except Exception as error:
            if isinstance(merged, Merged) and self._enters(at, work):
                _blame(at, replica, merged, parts, error)
            if isinstance(merged, Aligned) and at.stage == work.topology.last:
                raise PeerError(f"c{self._rule.labels_at}", f"{at} with its labels: {in_words(error)}") from error
            raise
        if stash.loss is not None:
            self._note_losses(at, merged, work)
        if self._blueprint.carries_target(at.stage, work.topology):
            outputs = join_target(outputs, target)
        return {Kind.ACT: outputs, Kind.STASH: stash}

    def _labels(self, at: Instruction, merged: Merged | Aligned, targets: list[Any], work: Work) -> Any:
        """The labels of all. Raises PeerError for a client whose labels have another form than those of most."""
        if isinstance(merged, Merged):
            forms = [_form(target) for target in targets]
            usual = max(forms, key=forms.count)
            for client, form in zip(work.topology.clients, forms, strict=True):
                if form != usual:
                    raise PeerError(f"c{client}", f"{at}: its labels are {form}, those of the others {usual}")
        return merged.labels(targets)

    def _note_losses(self, at: Instruction, merged: Merged | Aligned, work: Work) -> None:
        for client, loss in merged.losses.items():
            mean = loss if merged.reduction == "mean" else loss / merged.samples[client]
            if not math.isfinite(mean):
                raise self._actor.spoiled(at, client, mean)
            if at.stage == work.topology.last:
                self._actor.tally.setdefault(client, Tally()).add(mean, merged.samples[client])

    async def _backward(self, at: Instruction, taken: list[Any], work: Work) -> Written:
        replica: Replica = self._actor.slots.peek(effects(at, work.topology).reads[0])
        stash, gradients = taken[0], taken[1] if len(taken) > 1 else None
        if self._rule.logit_adjustment:
            both: Apart = await self._actor.compute(at, work, lambda: replica.backward_apart(stash, gradients))
            below: Any = both.below if self._enters(at, work) else both
        else:
            below = await self._actor.compute(at, work, lambda: replica.backward(stash, gradients))
        return {**self._gradients(at, below, work), Kind.PGRAD: None}

    async def _backward_input(self, at: Instruction, taken: list[Any], work: Work) -> Written:
        if self._rule.logit_adjustment:
            raise SplitflError(f"{at}: logit adjustment gives weights and inputs gradients of their own: expected B")
        replica: Replica = self._actor.slots.peek(effects(at, work.topology).reads[0])
        stash, gradients = taken[0], taken[1] if len(taken) > 1 else None
        below, rest = await self._actor.compute(at, work, lambda: replica.backward_input(stash, gradients))
        return {**self._gradients(at, below, work), Kind.WSTASH: (replica, rest)}

    def _gradients(self, at: Instruction, below: Any, work: Work) -> dict[Kind | Value, Any]:
        """What the stage below is given: each client its part, or all of it where that stage is merged too."""
        if not self._enters(at, work):
            return {Kind.GRAD: below}
        return {
            Value(Kind.GRAD, at.stage - 1, client, at.micro_batch, at.chunk): part
            for client, part in self._merged(at, work).apart(below).items()
        }


def _form(target: Any) -> str:
    """Structure, dtypes and shapes of labels, without the number of samples."""
    if isinstance(target, torch.Tensor):
        return f"{str(target.dtype).removeprefix('torch.')}{list(target.shape[1:])}"
    if isinstance(target, Mapping):
        return "{" + ", ".join(f"{name}: {_form(part)}" for name, part in sorted(target.items())) + "}"
    if isinstance(target, tuple | list):
        return f"({', '.join(map(_form, target))})"
    return type(target).__name__


def _blame(
    at: Instruction, replica: Replica, merged: Merged, parts: list[tuple[Tensors, Any]], error: Exception
) -> None:
    """Raise PeerError for the client on whose samples alone this stage fails too: the others can go on."""
    for client, (tensors, target) in zip(merged.samples, parts, strict=True):
        try:
            replica.score(tensors, target)
        except Exception as alone:
            raise PeerError(f"c{client}", f"{at} on its data: {in_words(alone)}") from error
