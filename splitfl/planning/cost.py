"""What things cost: seconds of an instruction, bytes of a value, the link between two actors.

`Costs` is what the simulator asks. `stage_costs` makes one from figures per stage, which is what a profile of a model
yields; anything else (a recorded trace, say) can make one too, since its parts are plain functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from splitfl.schedule import Instruction, Kind, Op, Value


class Link(NamedTuple):
    """One direction of a connection: bytes per second, and seconds from the last byte sent to the last byte there."""

    bandwidth: float = inf
    latency: float = 0.0

    def transfer(self, nbytes: float) -> float:
        """Seconds for which `nbytes` occupy the link (without the latency)."""
        return nbytes / self.bandwidth


FREE = Link()
"""A link that takes no time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The prices that `simulate` asks for.

    seconds  actor, instruction -> seconds on one of that actor's compute slots (for SEND and RECV: the codec's)
    message  value -> bytes on the wire
    held     value -> bytes of memory while it is alive
    link     sender, receiver -> the link in that direction
    slots    actor -> how many instructions it computes at the same time
    """

    seconds: Callable[[str, Instruction], float]
    message: Callable[[Value], int]
    held: Callable[[Value], int]
    link: Callable[[str, str], Link]
    slots: Callable[[str], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """One stage, per unit of micro-batch size (a micro-batch, or a sample: see `size` of `stage_costs`).

    forward, backward, weight  T_F, T_B (for the inputs) and T_W (for the weights), in seconds times pace; a full
                               backward costs T_B + T_W
    step                       the optimizer step, in seconds times pace; does not grow with the micro-batch
    activation, gradient       bytes of the output and of its gradient, on the wire and held; gradient None: as large
    stash                      bytes held from a forward to its backward
    params                     bytes of the weights, on the wire
    resident                   bytes held for the weights, their gradients and the optimizer's state; None: as `params`
    """

    forward: float = 0.0
    backward: float = 0.0
    weight: float = 0.0
    step: float = 0.0
    activation: float = 0.0
    gradient: float | None = None
    stash: float = 0.0
    params: int = 0
    resident: int | None = None


def stage_costs(
    stages: Sequence[StageCost],
    *,
    pace: Mapping[str, float] | None = None,
    links: Mapping[tuple[str, str], Link] | None = None,
    slots: Mapping[str, int] | None = None,
    size: Callable[[int | None, int], float] | None = None,
    overhead: float = 0.0,
    fronts: Sequence[StageCost] = (),
) -> Costs:
    """Costs from figures per stage.

    pace      factor on a stage's seconds per actor (1 unless given); with figures in FLOP it is 1 / (FLOP per second)
    links     (sender, receiver) -> link, `FREE` unless given
    slots     compute slots per actor, 1 unless given
    size      client (None: all together), micro-batch -> its size in the unit of the figures; 1 unless given
    overhead  seconds that every F, B, I and W takes in addition
    fronts    the first stage's figures by client id, where they are not the same for all
    """
    paces, wires, places = pace or {}, links or {}, slots or {}

    def figures(stage: int, client: int | None) -> StageCost:
        return fronts[client] if fronts and stage == 0 and client is not None else stages[stage]

    def measure(client: int | None, micro: int | None) -> float:
        return 1.0 if size is None or micro is None else size(client, micro)

    def seconds(actor: str, instruction: Instruction) -> float:
        work = _work(figures(instruction.stage, instruction.client), instruction.op)
        if instruction.micro_batch is None or instruction.kind is not None:
            return work * paces.get(actor, 1.0)
        return work * measure(instruction.client, instruction.micro_batch) * paces.get(actor, 1.0) + overhead

    def held(value: Value) -> int:
        return round(_held(figures(value.stage, value.client), value.kind) * measure(value.client, value.micro_batch))

    return Costs(
        seconds=seconds,
        message=lambda value: figures(value.stage, value.client).params if value.kind is Kind.PARAMS else held(value),
        held=held,
        link=lambda sender, receiver: wires.get((sender, receiver), FREE),
        slots=lambda actor: places.get(actor, 1),
    )


def _work(stage: StageCost, op: Op) -> float:
    if op is Op.FORWARD:
        return stage.forward
    if op is Op.BACKWARD:
        return stage.backward + stage.weight
    if op is Op.BACKWARD_INPUT:
        return stage.backward
    if op is Op.BACKWARD_WEIGHT:
        return stage.weight
    return stage.step if op is Op.STEP else 0.0


def _held(stage: StageCost, kind: Kind) -> float:
    if kind is Kind.ACT:
        return stage.activation
    if kind is Kind.GRAD:
        return stage.activation if stage.gradient is None else stage.gradient
    if kind is Kind.STASH or kind is Kind.WSTASH:
        return stage.stash
    if kind is Kind.PARAMS:
        return stage.params if stage.resident is None else stage.resident
    return stage.params if kind is Kind.AVG else 0.0  # weight gradients are part of what is resident
