"""A round of federated learning around the schedule of one mini-batch.

    aggregator   avg[s,c] ->                                                  -> AGGREGATE s
    holder                 LOAD s c   mini-batch, mini-batch, ...  params[s,c]

Either as one schedule (`federate`, for checking and costing a whole round), or in three parts (`opening`, the lowered
mini-batch as often as needed, `closing`), as an executor runs it.
"""

from __future__ import annotations

from splitfl.schedule.instruction import Instruction, Op, Schedule, initial_values
from splitfl.schedule.lower import lower
from splitfl.schedule.topology import Topology


def federate(step_schedule: Schedule, topology: Topology) -> dict[str, tuple[Instruction, ...]]:
    """The round: LOAD every aggregated stage, `topology.steps` times `step_schedule`, AGGREGATE. To be lowered."""
    loads, averages = _loads(topology), _averages(topology)
    return {
        actor: (
            *loads.get(actor, ()),
            *tuple(step_schedule.get(actor, ())) * topology.steps,
            *averages.get(actor, ()),
        )
        for actor in dict.fromkeys([*topology.actors, *step_schedule])
    }


def opening(topology: Topology) -> dict[str, tuple[Instruction, ...]]:
    """The lowered beginning of a round: averages go out to where the stages live and are loaded there."""
    return lower(_complete(_loads(topology), topology), topology)


def closing(topology: Topology) -> dict[str, tuple[Instruction, ...]]:
    """The lowered end of a round: weights come in from where the stages live and are averaged."""
    loaded = initial_values(topology.without_aggregation())
    return lower(_complete(_averages(topology), topology), topology, initial=loaded)


def _loads(topology: Topology) -> dict[str, list[Instruction]]:
    programs: dict[str, list[Instruction]] = {}
    for stage in sorted(topology.aggregated):
        for client in topology.clients:
            programs.setdefault(topology.actor(stage, client), []).append(Instruction(Op.LOAD, stage, client))
    return programs


def _averages(topology: Topology) -> dict[str, list[Instruction]]:
    return {topology.aggregator: [Instruction(Op.AGGREGATE, stage) for stage in sorted(topology.aggregated)]}


def _complete(programs: dict[str, list[Instruction]], topology: Topology) -> dict[str, list[Instruction]]:
    return {actor: programs.get(actor, []) for actor in topology.actors}
