"""Choosing a cut and a number of micro-batches by simulating all of them.

A candidate is plain numbers per stage and per sample, so that nothing here needs the model itself. PiPar estimates the
time of every pair by recursion over its own pipeline (arXiv 2302.12803, section 3.3); here the simulator does that for
any schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from splitfl.planning.cost import Costs, Link, StageCost, stage_costs
from splitfl.planning.simulate import simulate
from splitfl.planning.timeline import Timeline
from splitfl.schedule import Generator, Topology, check, closing, lower, opening


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFigures:
    """One stage of a candidate, per sample where nothing else is said.

    flops       of the forward; the backward for the inputs and that for the weights count as much each
    activation  bytes of the output
    gradient    bytes of its gradient; None: as large
    stash       bytes held from forward to backward
    params      bytes of the weights
    """

    flops: float
    activation: float = 0.0
    gradient: float | None = None
    stash: float = 0.0
    params: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A candidate: its name and the stages that it makes."""

    name: str
    stages: tuple[StageFigures, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What stays the same while cut and micro-batches vary.

    topology  cut, micro-batches -> the topology of a round
    generate  the generator of the mini-batch
    batch     samples per mini-batch and client
    flops     FLOP per second of each actor
    memory    bytes that an actor may hold, where there is a limit
    links     (sender, receiver) -> link
    slots     compute slots per actor, 1 unless given
    copies    bytes resident per byte of weights: weights, gradients, and the optimizer's state
    overhead  seconds per instruction, so that ever smaller micro-batches do not look free
    """

    topology: Callable[[Cut, int], Topology]
    generate: Generator
    batch: int
    flops: Mapping[str, float]
    memory: Mapping[str, int] = field(default_factory=dict)
    links: Mapping[tuple[str, str], Link] = field(default_factory=dict)
    slots: Mapping[str, int] = field(default_factory=dict)
    copies: float = 3.0
    overhead: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A candidate with its prediction.

    seconds  of a round: averages out, all mini-batches, weights back
    nbytes   on all links in a round
    memory   peak bytes per actor
    fits     within every actor's memory
    step     the timeline of one mini-batch
    """

    cut: Cut
    micro_batches: int
    seconds: float
    nbytes: int
    memory: Mapping[str, int]
    fits: bool
    step: Timeline


def choose(cuts: Sequence[Cut], micro_batches: Iterable[int], setting: Setting) -> tuple[Choice, ...]:
    """Every pair of cut and micro-batch count, the best first: what fits before what does not, then by time.

    Of equally fast pairs the one with fewer bytes, then fewer micro-batches comes first. A count larger than the batch
    is left out; raises ValueError when nothing is left.
    """
    counts = sorted({count for count in micro_batches if 1 <= count <= setting.batch})
    if not cuts or not counts:
        raise ValueError(f"nothing to choose from: {len(cuts)} cuts, micro-batches {counts} of a batch {setting.batch}")
    choices = [evaluate(cut, count, setting) for cut in cuts for count in counts]
    return tuple(sorted(choices, key=lambda c: (not c.fits, c.seconds, c.nbytes, c.micro_batches)))


def evaluate(cut: Cut, micro_batches: int, setting: Setting) -> Choice:
    """The prediction for one pair. Raises ScheduleError if the generator is wrong for it."""
    topology = setting.topology(cut, micro_batches)
    within = topology.without_aggregation()
    step_schedule = lower(setting.generate(within), within)
    check(step_schedule, within)
    costs = _costs(cut, micro_batches, setting, len(topology.clients))
    start = simulate(opening(topology), topology, costs)
    step = simulate(step_schedule, within, costs)
    end = simulate(closing(topology), within, costs)
    parts = (start, step, end)
    memory = {actor: max(part.peak_memory.get(actor, 0) for part in parts) for actor in topology.actors}
    return Choice(
        cut=cut,
        micro_batches=micro_batches,
        seconds=start.makespan + topology.steps * step.makespan + end.makespan,
        nbytes=_bytes(start) + topology.steps * _bytes(step) + _bytes(end),
        memory=memory,
        fits=all(memory[actor] <= limit for actor, limit in setting.memory.items() if actor in memory),
        step=step,
    )


def _costs(cut: Cut, micro_batches: int, setting: Setting, clients: int) -> Costs:
    whole, larger = divmod(setting.batch, micro_batches)

    def size(client: int | None, micro: int) -> int:
        return (whole + (micro < larger)) * (clients if client is None else 1)

    stages = [
        StageCost(
            forward=figures.flops,
            backward=figures.flops if number else 0.0,  # nothing lies below the first stage
            weight=figures.flops,
            activation=figures.activation,
            gradient=figures.gradient,
            stash=figures.stash,
            params=figures.params,
            resident=round(figures.params * setting.copies),
        )
        for number, figures in enumerate(cut.stages)
    ]
    return stage_costs(
        stages,
        pace={actor: 1 / flops for actor, flops in setting.flops.items()},
        links=setting.links,
        slots=setting.slots,
        size=size,
        overhead=setting.overhead,
    )


def _bytes(timeline: Timeline) -> int:
    return sum(timeline.traffic.values())
