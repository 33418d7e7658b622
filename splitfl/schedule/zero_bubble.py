"""Zero bubble: the backward is taken apart, and the gradients of the weights fill the gaps (arXiv 2401.10241).

I is the backward for the inputs, for which the stage below waits; W, for the weights, can wait. p stages, m >= p (H2:
2p - 1) micro-batches, and no W longer than an F or an I. p = 3, m = 5:

ZB-H1: as 1F1B, but stage s puts its W off by s micro-batches. No stage holds more than p activations, as 1F1B's first
one does; the bubble is (p-1)(T_F + T_I - T_W), where 1F1B has (p-1)(T_F + T_I + T_W).

    clock    0  1  2  3  4  5  6  7  8  9  10 11 12 13 14 15 16
    stage 0  F0 F1 F2 .  .  I0 W0 F3 I1 W1 F4 I2 W2 I3 W3 I4 W4
    stage 1  .  F0 F1 .  I0 F2 I1 W0 F3 I2 W1 F4 I3 W2 I4 W3 W4
    stage 2  .  .  F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 F4 I4 W2 W3 W4

ZB-H2: twice as many forwards ahead, so that the first stage never waits. Up to 2p - 1 activations; the bubble, from a
stage's first instruction to its last, is (p-1)(T_F + T_I - 2 T_W), or none where that is negative.

    clock    0  1  2  3  4  5  6  7  8  9  10 11 12 13 14 15 16
    stage 0  F0 F1 F2 F3 F4 I0 W0 I1 W1 I2 W2 I3 W3 I4 W4
    stage 1  .  F0 F1 F2 I0 F3 I1 F4 I2 W0 I3 W1 I4 W2 W3 W4
    stage 2  .  .  F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 W1 W2 W3 W4
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from splitfl.schedule.instruction import Instruction, Op
from splitfl.schedule.order import arrange, weave
from splitfl.schedule.topology import Topology

Count = Callable[[int], int]
"""A number of stages in, a number of micro-batches out."""


def zb_h1(topology: Topology) -> dict[str, tuple[Instruction, ...]]:
    """The memory of 1F1B, a third of its bubble where F, I and W take the same time."""
    return arrange(topology, partial(_apart, ahead=lambda left: left, put_off=lambda below: below))


def zb_h2(topology: Topology) -> dict[str, tuple[Instruction, ...]]:
    """No bubble where F, I and W take the same time, at nearly twice the activations."""
    return arrange(topology, partial(_apart, ahead=lambda left: 2 * left - 1, put_off=lambda below: 2 * below))


def _apart(topology: Topology, client: int, *, ahead: Count, put_off: Count) -> list[Instruction]:
    """One client's work. `ahead`: of the stages from this one on; `put_off`: of those below it."""
    orders = [
        _stage(topology, client, stage, ahead=ahead(topology.stages - stage), put_off=put_off(stage))
        for stage in range(topology.stages)
    ]
    return weave(orders, topology)


def _stage(topology: Topology, client: int, stage: int, *, ahead: int, put_off: int) -> list[Instruction]:
    """`ahead` forwards, then by turns a backward for inputs, the W of `put_off` micro-batches ago, and a forward."""
    forwards, inputs, weights = (
        [[Instruction(op, stage, client, micro, chunk) for chunk in chunks] for micro in topology.micro(client)]
        for op, chunks in (
            (Op.FORWARD, range(topology.chunks)),
            (Op.BACKWARD_INPUT, range(topology.chunks)[::-1]),
            (Op.BACKWARD_WEIGHT, range(topology.chunks)[::-1]),
        )
    )
    work = [at for cell in forwards[:ahead] for at in cell]
    for micro, cell in enumerate(inputs):
        work += cell
        if micro >= put_off:
            work += weights[micro - put_off]
        if micro + ahead < len(forwards):
            work += forwards[micro + ahead]
    return work + [at for cell in weights[max(0, len(weights) - put_off) :] for at in cell]
