"""The virtual clock: what the turns of a job would take on named devices and links, from the simulator."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from splitfl.codecs import Codecs, Spec
from splitfl.codecs.frame import wire_size
from splitfl.errors import SplitflError
from splitfl.model import Partition, Port, Stage, StageProfile, Transform, profile, profile_stage
from splitfl.model.micro_batches import sizes
from splitfl.planning import Costs, Link, StageCost, Timeline, catalogue, simulate, stage_costs
from splitfl.run.blueprint import Blueprint
from splitfl.run.metrics import Tally
from splitfl.run.turn_plan import GroupPlan
from splitfl.schedule.instruction import Instruction, Op, Program
from splitfl.schedule.topology import Topology
from splitfl.transport import shaped

Predict = Callable[[Sequence[GroupPlan]], Timeline]

OVERHEAD = 2e-4
"""Seconds that an instruction takes beside its arithmetic (dispatch, framing): an estimate for small computers."""


class Fleet:
    """The clients' devices and links by name, dealt out to the client ids in turn, and the server's device."""

    def __init__(self, devices: str | Sequence[str], links: str | Sequence[str], *, server: str = "gpu-server") -> None:
        names = (devices,) if isinstance(devices, str) else tuple(devices)
        connections = (links,) if isinstance(links, str) else tuple(links)
        try:
            self.devices = [catalogue.device(name) for name in names]
            self.links = [catalogue.link(name) for name in connections]
            self.server = catalogue.device(server)
        except ValueError as error:
            raise SplitflError(str(error)) from error

    def pace(self, clients: Sequence[int]) -> dict[str, float]:
        """Seconds per FLOP of every actor."""
        paces = {f"c{client}": 1 / self.devices[client % len(self.devices)].flops for client in clients}
        return paces | {"server": 1 / self.server.flops}

    def wires(self, clients: Sequence[int]) -> dict[tuple[str, str], Link]:
        """The link of every pair of actors, in each direction."""
        found: dict[tuple[str, str], Link] = {}
        for client in clients:
            connection = self.links[client % len(self.links)]
            found[f"c{client}", "server"] = connection.up
            found["server", f"c{client}"] = connection.down
        return found


def emulated(name: str) -> shaped.Link:
    """The link `name` of the catalogue as one that a channel is sent through. SplitflError for an unknown name."""
    try:
        connection = catalogue.link(name)
    except ValueError as error:
        raise SplitflError(str(error)) from error
    up, down = connection.up, connection.down
    return shaped.Link(shaped.Way(up.bandwidth, up.latency), shaped.Way(down.bandwidth, down.latency))


def predictor(blueprint: Blueprint, fleet: Fleet, *, slots: int) -> Predict:
    """A function that costs the plans of one turn for `fleet`; the server computes for `slots` clients at a time."""
    shares = [shares_sent(blueprint.transform_after(stage), blueprint.codecs) for stage in range(blueprint.stages)]
    stages = stage_figures(blueprint.partition, blueprint.codecs, blueprint.topology((0,)).losses, shares)
    fronts = [_front(blueprint, stage, shares[0]) for stage in blueprint.holders]

    def predict(plans: Sequence[GroupPlan]) -> Timeline:
        turn, topology, samples = whole_turn(plans)

        together: dict[int, int] = {}
        for (_, micro), count in samples.items():
            together[micro] = together.get(micro, 0) + count

        def size(client: int | None, micro: int) -> int:
            if client is None:
                return together.get(micro, 0)
            return samples.get((client, micro), 0)  # a client without a mini-batch in a joint step

        clients = topology.clients
        costs: Costs = stage_costs(
            stages,
            pace=fleet.pace(clients),
            links=fleet.wires(clients),
            slots={"server": slots},
            size=size,
            overhead=OVERHEAD,
            fronts=fronts,
        )
        return simulate(turn, topology, costs)

    return predict


def server_alone(blueprint: Blueprint, fleet: Fleet) -> Callable[[Tally | None], float]:
    """A function that costs the tail's training by the server on its own: seconds for what was trained on."""
    first = blueprint.method.front_stages
    alone = blueprint.method.server_trains_alone or blueprint.method.generated
    tail = profile(blueprint.partition)[first:] if alone else []
    flops = sum(each.flops_forward + each.flops_backward_weight for each in tail)
    flops += sum(each.flops_backward_input for each in tail[1:])
    return lambda trained: trained.samples * flops / fleet.server.flops if trained else 0.0


def whole_turn(plans: Sequence[GroupPlan]) -> tuple[dict[str, Program], Topology, Mapping[tuple[int, int], int]]:
    """The plans of a turn as one schedule, its topology, and the samples of each (client, micro-batch).

    Micro-batches are numbered on through the turn, so that those of different mini-batches keep their own sizes; merged
    ones alike for all clients.
    """
    programs: dict[str, list[Instruction]] = {}
    samples: dict[tuple[int, int], int] = {}
    for plan in plans:
        _extend(programs, plan.opening, {})
    for plan in plans:
        first: dict[int | None, int] = dict.fromkeys((None, *plan.topology.clients), 0)
        for step in plan.steps:
            _extend(programs, step.schedule, first)
            for client in step.topology.clients:
                for number, part in enumerate(sizes(step.samples[client], len(step.topology.micro(client)))):
                    samples[client, first[client] + number] = part
            for each in first if plan.topology.merged else step.topology.clients:
                first[each] += len(step.topology.micro(each if each in step.topology.clients else None))
    for plan in plans:
        _extend(programs, plan.closing, {})
    clients = tuple(sorted(client for plan in plans for client in plan.topology.clients))
    counts = tuple(1 + max((micro for owner, micro in samples if owner == client), default=0) for client in clients)
    if plans[0].topology.merged:
        counts = (max(counts),) * len(counts)
    topology = replace(plans[0].topology, clients=clients, micro_batches=counts)
    return {actor: tuple(program) for actor, program in programs.items()}, topology, samples


def _extend(
    programs: dict[str, list[Instruction]], part: Mapping[str, Program], first: Mapping[int | None, int]
) -> None:
    for actor, program in part.items():
        shifted = [
            at if at.micro_batch is None else at._replace(micro_batch=at.micro_batch + first[at.client])
            for at in program
            if at.op is not Op.AGGREGATE  # takes no time here, and would make one group wait for another
        ]
        programs.setdefault(actor, []).extend(shifted)


def shares_sent(transform: Transform | None, codecs: Codecs) -> tuple[float, float]:
    """About which shares of an activation's and of its gradient's bytes a codec leaves after a transform."""
    if transform is None:
        return 1.0, 1.0
    up, down = (chain is not None and chain.columns for chain in (codecs.activation, codecs.gradient))
    return transform.share if up else 1.0, transform.share if down else 1.0


def stage_figures(
    parts: Partition, codecs: Codecs, losses: Collection[int], shares: Sequence[tuple[float, float]]
) -> list[StageCost]:
    """The costs of a model's stages per sample, in FLOP and in bytes as `codecs` put them on the wire.

    A stage above one of `losses` computes no gradient of its inputs. `shares` are those of `shares_sent` for each.
    """
    figures = zip(parts.stages, profile(parts), shares, strict=True)
    return [_figures(stage, each, codecs, share, begins=stage.index - 1 in losses) for stage, each, share in figures]


def _front(blueprint: Blueprint, stage: Stage, share: tuple[float, float]) -> StageCost:
    """The costs of what one holder has of the first stage."""
    example = {port.name: blueprint.partition.example[port.name] for port in stage.inputs}
    return _figures(stage, profile_stage(stage, example)[0], blueprint.codecs, share, begins=True)


def _figures(
    stage: Stage, each: StageProfile, codecs: Codecs, share: tuple[float, float], *, begins: bool
) -> StageCost:
    """One stage's costs; `begins` where the stage below takes no gradient."""
    state = {name: Spec(value.dtype, tuple(value.shape)) for name, value in stage.state.items()}
    up, down = share
    return StageCost(
        forward=each.flops_forward,
        backward=each.flops_backward_input if stage.index and not begins else 0.0,
        weight=each.flops_backward_weight,
        activation=up * per_sample(stage.outputs, codecs, "act") if not stage.last else 0.0,
        gradient=down * per_sample([port for port in stage.outputs if port.requires_grad], codecs, "grad"),
        stash=each.stash_bytes,
        params=wire_size(state, codecs.update),
    )


def per_sample(ports: Sequence[Port], codecs: Codecs, kind: str) -> float:
    """Bytes on the wire that one more sample adds to a message of these ports."""
    codec = codecs.for_kind(kind)
    few, many = (
        wire_size(
            {port.name: Spec(port.dtype, (count, *port.shape) if port.batched else port.shape) for port in ports}, codec
        )
        for count in (16, 32)
    )
    return (many - few) / 16
