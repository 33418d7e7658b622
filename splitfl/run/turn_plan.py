"""The work of one turn, decided before it starts: who steps how often, on how many samples, by which schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from splitfl.data import global_plan
from splitfl.errors import SplitflError
from splitfl.methods import Phase
from splitfl.run.blueprint import Blueprint, Training
from splitfl.run.metrics import traced_step
from splitfl.schedule.aggregation import closing, opening
from splitfl.schedule.generators import build
from splitfl.schedule.instruction import Instruction, Kind, Op, Schedule, Value
from splitfl.schedule.topology import Topology
from splitfl.transport.messages import Address


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One mini-batch: the clients that still have data, their sizes, and the schedule."""

    topology: Topology
    schedule: Schedule
    samples: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Clients that move together: all of them where the tail is shared, each alone where it has a replica."""

    topology: Topology
    opening: Schedule
    steps: tuple[StepPlan, ...]
    closing: Schedule
    phase: Phase = Phase.TRAIN


def plan_group(
    blueprint: Blueprint, clients: Mapping[int, int], *, draw: int = 0, phase: Phase = Phase.TRAIN
) -> GroupPlan:
    """The plan for `clients` (id -> local samples) in one turn of a phase; `draw` decides what of it is random.

    A mini-batch smaller than the job's number of micro-batches is cut in as many as it can be. Raises ScheduleError
    where the method's schedule does not fit.
    """
    whole = blueprint.topology(tuple(sorted(clients)), phase=phase)
    generate = blueprint.method.generator(phase)
    built: dict[Topology, Schedule] = {}
    steps = []
    for step, samples in enumerate(_mini_batches(blueprint, clients, draw, phase)):
        topology = step_topology(blueprint, samples, step, phase)
        if topology not in built:
            built[topology] = build(generate, topology)
        steps.append(StepPlan(topology, built[topology], samples))
    handed_over = {} if phase is Phase.UPLOAD else closing(whole)  # a frozen front is as it came
    return GroupPlan(whole, opening(whole), tuple(steps), handed_over, phase)


def _mini_batches(
    blueprint: Blueprint, clients: Mapping[int, int], draw: int, phase: Phase
) -> Iterable[Mapping[int, int]]:
    """Samples of each client in every mini-batch: client c is in the t-th while it has a t-th, or as it is drawn.

    What is uploaded to be kept is every sample, once.
    """
    training, method = blueprint.training, blueprint.method
    if phase is Phase.UPLOAD:
        training = replace(training, epochs=1, steps=None, drop_last=False)
    if method.global_sampling:
        batch = method.global_batch or training.batch_size * len(clients)
        if training.drop_last and sum(clients.values()) < batch:
            raise SplitflError(
                f"global_batch = {batch} with drop_last: the clients have {sum(clients.values())} samples together, "
                "expected one full mini-batch or more"
            )
        return global_plan(
            clients,
            batch=batch,
            epochs=training.epochs or 1,
            steps=training.steps,
            drop_last=training.drop_last,
            seed=draw,
        )
    sizes = {c: own_batches(blueprint, c, samples, training) for c, samples in sorted(clients.items())}
    steps = range(max(map(len, sizes.values())))
    return [{c: counts[step] for c, counts in sizes.items() if step < len(counts)} for step in steps]


def own_batches(blueprint: Blueprint, client: int, samples: int, training: Training | None = None) -> tuple[int, ...]:
    """Sizes of the mini-batches of a client that draws them of its own data; as `training` says, the job's if None."""
    training = training or blueprint.training
    size = max(min(training.batch_size, blueprint.minimum), blueprint.method.batch_size(client, training.batch_size))
    return replace(training, batch_size=size).batches(samples, blueprint.minimum)


def client_steps(plan: GroupPlan, client: int) -> list[int]:
    """Samples of `client` in every mini-batch up to the last one that it is in; 0 where it sits one out."""
    counts = [step.samples.get(client, 0) for step in plan.steps]
    while counts and not counts[-1]:
        counts.pop()
    return counts


def step_topology(blueprint: Blueprint, samples: Mapping[int, int], step: int, phase: Phase = Phase.TRAIN) -> Topology:
    """The topology of mini-batch `step` of a turn, in which client c has `samples[c]` samples."""
    clients = tuple(sorted(samples))
    counts = tuple(min(blueprint.micro_batches, max(1, samples[c] // blueprint.minimum)) for c in clients)
    part = blueprint.method.step_phase(step, phase)
    return blueprint.topology(clients, micro_batches=counts, phase=part).without_aggregation()


def personal_stages(topology: Topology, client: int) -> list[int]:
    """The stages that stay on the device of `client`, in nobody's average."""
    actor = f"c{client}"
    return [s for s in range(topology.stages) if topology.actor(s, client) == actor and s not in topology.aggregated]


def wanted(plan: GroupPlan, client: int) -> Callable[[Address], bool]:
    """Whether `client` is to send the bundle at an address in this turn: by its programs, and nothing else."""
    actor = f"c{client}"
    fronts = {Value(Kind.PARAMS, stage, client) for stage in personal_stages(plan.topology, client)}
    outside = fronts | _sent(plan.closing.get(actor, ()))
    distinct = {step.topology: _sent(step.schedule.get(actor, ())) for step in plan.steps}
    steps = [distinct[step.topology] for step in plan.steps]

    def is_wanted(address: Address) -> bool:
        within = address.step < len(steps) and address.value in steps[address.step]
        return within or (address.step == 0 and address.value in outside)

    return is_wanted


def _sent(program: Iterable[Instruction]) -> set[Value]:
    return {at.value for at in program if at.op is Op.SEND}


def traced(plan: GroupPlan) -> GroupPlan:
    """Only the mini-batch of `plan` that is traced, without the beginning and the end of the turn."""
    return replace(plan, opening={}, closing={}, steps=plan.steps[traced_step(len(plan.steps)) :][:1])
