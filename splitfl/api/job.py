"""A job: everything that defines one training, checked when it is made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Literal

import torch
from torch import nn

from splitfl.aggregation import strategy_from
from splitfl.api.at_the_cut import require_transformed, transform_for
from splitfl.api.auto import AUTO, Question, choose_settings
from splitfl.api.balance import balanced
from splitfl.api.contract import contract, facts
from splitfl.api.demands import holders_of, require_fit
from splitfl.api.error import JobError
from splitfl.api.loss_probe import find_reduction
from splitfl.api.optimizers import OptimizerSpec
from splitfl.codecs import Codecs, codec
from splitfl.methods import METHODS, Method
from splitfl.model import (
    Partition,
    Transform,
    TransformError,
    distance,
    evaluated,
    minimum_micro_batch,
    partition,
    with_auxiliaries,
    with_teacher,
)
from splitfl.run.blueprint import Blueprint, Deadlines, Training
from splitfl.run.seeds import derive
from splitfl.run.virtual import Fleet

_BUILDING = threading.RLock()
"""Held while a model is built and traced: its weights come from torch's one generator, and tracing patches classes."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training, whatever it runs on.

    model          function of no arguments that makes the module (called once, under the job's seed), or a module
    example_input  a tensor with a batch dimension, or a tuple or dict of tensors for several inputs
    teacher        for methods that distil: what the model learns from, given as `model` is; it stays as it is
    teacher_cut    where the teacher is cut, as often as the model; as `cut` unless given
    method         a `Method`, or the name of one in `splitfl.methods.METHODS`
    loss           (output, labels) -> mean or sum over the samples of a batch
    optimizer      `splitfl.sgd(...)`, `splitfl.optimizer(name, ...)`
    batch_size     samples in a mini-batch of one client
    cut            place where the model is cut, as `splitfl cuts` lists them; a list cuts it in more stages;
                   "auto" takes the place that the simulator predicts to be fastest
    strategy       a message-based Flower strategy; None is federated averaging over all clients
    codec          how tensors are encoded on the wire, by role; None keeps every bit
    transform      what is done to activations at the cut, in training: "feature-dropout:0.25", or a
                   `splitfl.model.Transform`; both ends need the same
    local_epochs, local_steps  passes over the local data in a round, or mini-batches (at most one of the two)
    optimizer_state  "reset": replicas start every round with a fresh optimizer; "keep": they go on with theirs
    reduction      whether the loss is a mean or a sum over samples; "auto" finds out
    seed           decides initial weights, order of data, dropout and sampling of clients

    Raises JobError when made, or when compiled, for a setting that cannot work.
    """

    model: Callable[[], nn.Module] | nn.Module
    example_input: Any
    method: Method | str
    loss: Callable[[Any, Any], torch.Tensor]
    optimizer: OptimizerSpec | Callable[..., torch.optim.Optimizer]
    batch_size: int
    cut: str | Sequence[str] = "auto"
    teacher: Callable[[], nn.Module] | nn.Module | None = None
    teacher_cut: str | Sequence[str] | None = None
    strategy: Any = None
    codec: Codecs = field(default_factory=codec)
    transform: Transform | str | None = None
    shuffle: bool = True
    drop_last: bool = False
    local_epochs: int | None = None
    local_steps: int | None = None
    optimizer_state: Literal["reset", "keep"] = "reset"
    reduction: Literal["auto", "mean", "sum"] = "auto"
    deadlines: Deadlines = field(default_factory=Deadlines)
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.method, str):
            object.__setattr__(self, "method", method_named(self.method))
        self._require(self.batch_size >= 1, "batch_size", "1 or more")
        self._require(self.local_epochs is None or self.local_epochs >= 1, "local_epochs", "1 or more")
        self._require(self.local_steps is None or self.local_steps >= 1, "local_steps", "1 or more")
        both = self.local_epochs is not None and self.local_steps is not None
        self._require(not both, "local_steps", "none beside local_epochs: a round is measured in one of the two")
        self._require(self.optimizer_state in ("reset", "keep"), "optimizer_state", '"reset" or "keep"')
        if self._method.distils != (self.teacher is not None):
            wanted_teacher = "a model to learn from" if self._method.distils else "none"
            given = "None" if self.teacher is None else "a model"
            raise JobError(f"teacher = {given} with method {self._method.name}: expected {wanted_teacher}")
        wanted = self._method.micro_batches
        if wanted != "auto" and not 1 <= wanted <= self.batch_size:
            raise JobError(
                f"micro_batches = {wanted} with batch_size = {self.batch_size}: expected 1 to {self.batch_size}, "
                "at least one sample in each micro-batch"
            )
        if self._method.split:
            try:
                self._method.placement(len(self.cuts()) + 1)
            except ValueError as error:
                raise JobError(f"cut = {self.cut!r}: {error}") from None
        object.__setattr__(self, "transform", self._transform)
        if self.strategy is not None and (self._method.vertical or not self._method.takes_strategy):
            why = "clients hand their weights on, " if self._method.in_turn else ""
            why = "each layer has one holder, " if self._method.vertical else why
            raise JobError(
                f"strategy = {type(self.strategy).__name__} with method {self._method.name}: {why}nothing is averaged; "
                "leave the strategy out"
            )

    @property
    def _transform(self) -> Transform | None:
        try:
            return transform_for(self.transform, self._method)
        except TransformError as error:
            raise JobError(str(error)) from None

    def _require(self, holds: bool, name: str, wanted: str) -> None:
        if not holds:
            raise JobError(f"{name} = {getattr(self, name)!r}: expected {wanted}")

    def _require_device(self) -> None:
        try:
            torch.empty(1, device=self.device)
        except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
            reason = str(error).splitlines()[0]
            raise JobError(f"device = {self.device!r} cannot be used here: {reason}") from error

    @property
    def _method(self) -> Method:
        if not isinstance(self.method, Method):
            raise JobError(f"method = {self.method!r}: expected a Method or one of {', '.join(METHODS)}")
        return self.method

    def build_model(self) -> nn.Module:
        """The unsplit module with the initial weights that the seed decides."""
        return self._make(self.model, "model")

    def _make(self, source: Any, name: str) -> nn.Module:
        if isinstance(source, nn.Module):
            return source
        with torch.random.fork_rng():
            torch.manual_seed(derive(self.seed, name))
            made = source()
        if not isinstance(made, nn.Module):
            raise JobError(f"{name}: the function gives {type(made).__name__}, expected a torch.nn.Module")
        return made

    def cuts(self) -> tuple[str, ...]:
        """The places of `cut`; none where the whole model stays on the client."""
        if not self._method.split:
            return ()
        return (self.cut,) if isinstance(self.cut, str) else tuple(self.cut)

    def question(self, model: nn.Module, fleet: Fleet) -> Question:
        """What "auto" has to choose for this job."""
        return Question(
            model=model,
            example_input=self.example_input,
            cuts=self.cuts(),
            method=self._method,
            codecs=self.codec,
            transform=self._transform,
            batch_size=self.batch_size,
            minimum=minimum_micro_batch(model),
            fleet=fleet,
        )

    def blueprint(self, fleet: Fleet | None = None) -> Blueprint:
        """The job made ready to run; "auto" settings are chosen for `fleet` (laptops on wifi-50 unless given).

        Raises CutError, ShapeError, LossError, ScheduleError, TransformError or JobError, each naming what is wrong.
        """
        self._require_device()
        with _BUILDING:
            return self._blueprint(fleet or Fleet("laptop", "wifi-50"))

    def _blueprint(self, fleet: Fleet) -> Blueprint:
        if self._method.balance:
            method = balanced(self._method, lambda each: replace(self, method=each)._blueprint(fleet), fleet)
            return replace(self, method=method)._blueprint(fleet)
        model = self.build_model()
        cuts, micro_batches = self._choose(model, fleet)
        parts = partition(model, self.example_input, cuts)
        teacher = evaluated(self._make(self.teacher, "teacher")) if self._method.distils else None
        parts = self._with_auxiliaries(parts) if teacher is None else self._with_teacher(parts, teacher)
        minimum = minimum_micro_batch(model)
        transform = self._transform
        if transform is not None:
            require_transformed(transform, parts, self._method)
        require_fit(self._method, parts, minimum=minimum, optimizer_state=self.optimizer_state)
        kind = find_reduction(self.loss, model, parts) if self.reduction == "auto" else self.reduction
        return Blueprint(
            model=model,
            partition=parts,
            method=self._method,
            micro_batches=micro_batches,
            minimum=minimum,
            loss=self.loss,
            reduction=kind,
            optimizer=self.optimizer,
            training=Training(
                batch_size=self.batch_size,
                epochs=None if self.local_steps else self.local_epochs or 1,
                steps=self.local_steps,
                shuffle=self.shuffle,
                drop_last=self.drop_last,
                optimizer_state=self.optimizer_state,
            ),
            codecs=self.codec,
            deadlines=self.deadlines,
            seed=self.seed,
            device=self.device,
            contract=contract(self, self._method, micro_batches, teacher),
            distillation=distance if self._method.distils else None,
            holders=holders_of(self._method, parts),
            transform=transform,
        )

    def flower_strategy(self, clients: int) -> Any:
        """The strategy that averages for `clients` clients; None where nothing is averaged."""
        if not self._method.takes_strategy:
            return None
        return self.strategy if self.strategy is not None else strategy_from("FedAvg", clients=clients)

    def facts(self, blueprint: Blueprint) -> dict[str, Any]:
        """What a report says about the job, as plain values."""
        return facts(self, self._method, blueprint)

    def _choose(self, model: nn.Module, fleet: Fleet) -> tuple[tuple[str, ...], int]:
        """The cuts and the number of micro-batches, chosen where the job says "auto"."""
        micro_batches = self._method.micro_batches
        if micro_batches != "auto" and self.cuts() != (AUTO,):
            return self.cuts(), micro_batches
        return choose_settings(self.question(model, fleet))

    def _with_teacher(self, parts: Partition, teacher: nn.Module) -> Partition:
        """The partition with a block of the teacher at every stage."""
        cuts = parts.cuts if self.teacher_cut is None else self.teacher_cut
        names = (cuts,) if isinstance(cuts, str) else tuple(cuts)
        return with_teacher(parts, partition(teacher, self.example_input, names))

    def _with_auxiliaries(self, parts: Partition) -> Partition:
        """The partition with an auxiliary network at every stage whose loss the method wants there."""
        method, count = self._method, len(parts.stages)
        return with_auxiliaries(
            parts,
            method.topology((0,), stages=count).losses,
            build=method.auxiliary,
            share=method.auxiliary_share,
            seeds=lambda stage: derive(self.seed, "auxiliary", stage),
            frozen=method.align_every > 0,
        )


def method_named(name: str) -> Method:
    """The method called `name` with its usual options. Raises JobError listing the names."""
    if name not in METHODS:
        close = get_close_matches(name, METHODS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise JobError(f"method = {name!r}: expected one of {', '.join(METHODS)}{hint}")
    return METHODS[name]()
