"""Methods with one loss, at the end: the front is trained by the gradient that the tail sends back."""

from __future__ import annotations

from typing import Literal

from splitfl.methods.method import Method, ScheduleSource


def fedavg(*, schedule: ScheduleSource = "sequential") -> Method:
    """Federated averaging of whole models (McMahan et al. 2017, arXiv 1602.05629, algorithm 1)."""
    return Method(name="fedavg", schedule=schedule, split=False, front_trained_by="own loss", source="arXiv 1602.05629")


def sl(*, schedule: ScheduleSource = "sequential") -> Method:
    """Vanilla split learning: one tail, clients in turn, the front handed on (arXiv 1810.06060)."""
    return Method(name="sl", schedule=schedule, shared_tail=True, in_turn=True, source="arXiv 1810.06060")


def splitfed_v1(*, schedule: ScheduleSource = "sequential") -> Method:
    """SplitFed V1: a tail replica per client, fronts and tails averaged (arXiv 2004.12088, section 4)."""
    return Method(name="splitfed-v1", schedule=schedule, source="arXiv 2004.12088")


def splitfed_v2(*, schedule: ScheduleSource = "sequential") -> Method:
    """SplitFed V2: one tail that serves the clients one after the other, fronts averaged (arXiv 2004.12088)."""
    return Method(name="splitfed-v2", schedule=schedule, shared_tail=True, source="arXiv 2004.12088")


def splitfed_v3(*, schedule: ScheduleSource = "sequential") -> Method:
    """SplitFed V3: every client keeps its own front, the tails are averaged (arXiv 2012.12591)."""
    return Method(name="splitfed-v3", schedule=schedule, average_front=False, source="arXiv 2012.12591")


def pipar(
    *,
    micro_batches: int | Literal["auto"] = 4,
    order: Literal["forwards-first", "1f1b"] = "forwards-first",
    schedule: ScheduleSource | None = None,
) -> Method:
    """PiPar: micro-batches overlap the device, the link and the server (arXiv 2302.12803, section 3).

    `order` is the device's: all forwards first, as published, or one forward, one backward once the pipe is full,
    which holds fewer activations. Raises ValueError for another order.
    """
    generators = {"forwards-first": "pipar", "1f1b": "pipar-1f1b"}
    if order not in generators:
        raise ValueError(f"pipar: order = {order!r}, expected one of {', '.join(generators)}")
    return Method(
        name="pipar",
        schedule=schedule or generators[order],
        micro_batches=micro_batches,
        source="arXiv 2302.12803",
    )


def u_shaped(
    *, micro_batches: int | Literal["auto"] = 1, shared_body: bool = False, schedule: ScheduleSource = "pipar"
) -> Method:
    """U-shaped split learning: front and head on the client, the body between them on the server; labels never leave.

    Needs two cuts or more; the last stage is the head. `shared_body`: one body that serves the clients one after the
    other, else one per client, averaged (arXiv 1812.00564, section 3, "without label sharing").
    """
    return Method(
        name="u-shaped",
        schedule=schedule,
        micro_batches=micro_batches,
        head_on_client=True,
        shared_tail=shared_body,
        source="arXiv 1812.00564",
    )
