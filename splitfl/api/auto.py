"""What "auto" means: the cut and the number of micro-batches that the simulator predicts to be fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from splitfl.codecs import Codecs
from splitfl.errors import SplitflError
from splitfl.methods import Method
from splitfl.model import CutError, Partition, Transform, holders, partition, possible_cuts, transform_after
from splitfl.model.signature import Batch
from splitfl.planning import Choice, Cut, Setting, StageFigures, choose
from splitfl.run.virtual import OVERHEAD, Fleet, shares_sent, stage_figures
from splitfl.schedule.topology import Topology

AUTO = "auto"
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16)
CLIENTS = (0, 1, 2, 3)
"""Candidates are compared for four clients: enough for the server's queue to show."""
STEPS = 10
"""Mini-batches in the round that is compared, so that the weights' own transfer counts for what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be chosen, and for what: see `Job` for the fields."""

    model: nn.Module
    example_input: Batch
    cuts: tuple[str, ...]
    method: Method
    codecs: Codecs
    transform: Transform | None
    batch_size: int
    minimum: int
    fleet: Fleet


def choose_settings(question: Question) -> tuple[tuple[str, ...], int]:
    """The cuts and the number of micro-batches of the best choice. Raises SplitflError where the model has no cut."""
    best = ranking(question)[0]
    return (tuple(best.cut.name.split(",")) if best.cut.name else ()), best.micro_batches


def ranking(question: Question) -> tuple[Choice, ...]:
    """Every candidate with its prediction, the best first."""
    method = question.method

    def topology(cut: Cut, micro_batches: int) -> Topology:
        return method.topology(CLIENTS, stages=len(cut.stages), micro_batches=micro_batches, steps=STEPS)

    most = max(1, question.batch_size // question.minimum)
    wanted = method.micro_batches
    counts = [count for count in COUNTS if count <= most] if wanted == "auto" else [wanted]
    setting = Setting(
        topology=topology,
        generate=method.generator(),
        batch=question.batch_size,
        flops={actor: 1 / pace for actor, pace in question.fleet.pace(CLIENTS).items()},
        memory={
            f"c{client}": question.fleet.devices[client % len(question.fleet.devices)].memory for client in CLIENTS
        },
        links=question.fleet.wires(CLIENTS),
        overhead=OVERHEAD,
    )
    return choose(candidates(question), counts, setting)


def candidates(question: Question) -> list[Cut]:
    """The cuts to compare: the one that the job names, or every lawful one that leaves weights on both sides."""
    if not question.method.split:
        return [_cut(question, ())]
    if question.cuts != (AUTO,):
        return [_cut(question, question.cuts)]
    places = [cut.place for cut in possible_cuts(question.model, question.example_input) if all(cut.parameters)]
    if question.method.vertical:
        places = [place for place in places if _divides_holders(question, place)]
    if not places:
        raise SplitflError('cut = "auto": the model has no place with weights on both sides; name one, or use fedavg')
    return [_cut(question, (place,)) for place in places]


def _divides_holders(question: Question, place: str) -> bool:
    """Whether a cut at `place` leaves each input of the model with layers of its own."""
    try:
        holders(partition(question.model, question.example_input, (place,)).stages[0])
    except CutError:
        return False
    return True


def _cut(question: Question, places: Sequence[str]) -> Cut:
    parts: Partition = partition(question.model, question.example_input, places)
    losses = question.method.topology((0,), stages=len(parts.stages)).losses
    placement = question.method.placement(len(parts.stages))
    transforms = [transform_after(question.transform, placement, stage) for stage in range(len(placement))]
    shares = [shares_sent(each, question.codecs) for each in transforms]
    figures = tuple(
        StageFigures(
            flops=stage.forward,
            activation=stage.activation,
            gradient=stage.gradient,
            stash=stage.stash,
            params=stage.params,
        )
        for stage in stage_figures(parts, question.codecs, losses, shares)
    )
    return Cut(name=",".join(places), stages=figures)
