"""The virtual clock: what the turns of a job would take on named devices and links, from the simulator."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from splitfl.codecs import Codecs, Spec
from splitfl.codecs.frame import wire_size
from splitfl.errors import SplitflError
from splitfl.model import Partition, Port, profile
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
    stages = stage_figures(blueprint.partition, blueprint.codecs, blueprint.topology((0,)).losses)

    def predict(plans: Sequence[GroupPlan]) -> Timeline:
        turn, topology, samples = whole_turn(plans)

        def size(client: int, micro: int) -> int:
            return samples.get((client, micro), 0)  # a client without a mini-batch in a joint step

        clients = topology.clients
        costs: Costs = stage_costs(
            stages,
            pace=fleet.pace(clients),
            links=fleet.wires(clients),
            slots={"server": slots},
            size=size,
            overhead=OVERHEAD,
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

    Micro-batches are numbered on through the turn, so that those of different mini-batches keep their own sizes.
    """
    programs: dict[str, list[Instruction]] = {}
    samples: dict[tuple[int, int], int] = {}
    for plan in plans:
        _extend(programs, plan.opening, {})
    for plan in plans:
        first = dict.fromkeys(plan.topology.clients, 0)
        for step in plan.steps:
            _extend(programs, step.schedule, first)
            for client in step.topology.clients:
                for part in sizes(step.samples[client], len(step.topology.micro(client))):
                    samples[client, first[client]] = part
                    first[client] += 1
    for plan in plans:
        _extend(programs, plan.closing, {})
    clients = tuple(sorted(client for plan in plans for client in plan.topology.clients))
    counts = tuple(max(1, sum(owner == client for owner, _ in samples)) for client in clients)
    topology = replace(plans[0].topology, clients=clients, micro_batches=counts)
    return {actor: tuple(program) for actor, program in programs.items()}, topology, samples


def _extend(programs: dict[str, list[Instruction]], part: Mapping[str, Program], first: Mapping[int, int]) -> None:
    for actor, program in part.items():
        shifted = [
            at if at.micro_batch is None else at._replace(micro_batch=at.micro_batch + first[at.client or 0])
            for at in program
            if at.op is not Op.AGGREGATE  # takes no time here, and would make one group wait for another
        ]
        programs.setdefault(actor, []).extend(shifted)


def stage_figures(parts: Partition, codecs: Codecs, losses: Collection[int] = ()) -> list[StageCost]:
    """The costs of a model's stages per sample, in FLOP and in bytes as `codecs` put them on the wire.

    A stage above one of `losses` computes no gradient of its inputs.
    """
    found = []
    for stage, each in zip(parts.stages, profile(parts), strict=True):
        state = {name: Spec(value.dtype, tuple(value.shape)) for name, value in stage.state.items()}
        found.append(
            StageCost(
                forward=each.flops_forward,
                backward=each.flops_backward_input if stage.index and stage.index - 1 not in losses else 0.0,
                weight=each.flops_backward_weight,
                activation=per_sample(stage.outputs, codecs, "act") if not stage.last else 0.0,
                gradient=per_sample([port for port in stage.outputs if port.requires_grad], codecs, "grad"),
                stash=each.stash_bytes,
                params=wire_size(state, codecs.update),
            )
        )
    return found


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
