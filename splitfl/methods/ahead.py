"""Methods whose clients do not wait for one another, or for the average: what they send is of older weights."""

from __future__ import annotations

from typing import Literal

from splitfl.methods.method import Method, ScheduleSource


def asynchronous(
    *,
    buffer: int = 2,
    staleness: float = 0.5,
    split: bool = True,
    micro_batches: int | Literal["auto"] = 1,
    schedule: ScheduleSource = "sequential",
) -> Method:
    """Buffered asynchronous rounds: the server averages as soon as `buffer` clients have delivered, whoever they are.

    What a client has learned since the weights that it began with counts (1 + rounds since then) ** -`staleness`. It
    begins again with the average that its work is in; with `buffer` = 1 it never waits. `split` = False: the whole
    model is on the client (FedBuff, arXiv 2106.06639, algorithm 1; the weights of 1903.03934, section 5.2).
    """
    return Method(
        name="async",
        schedule=schedule,
        micro_batches=micro_batches,
        split=split,
        rounds="buffered",
        buffer=buffer,
        staleness=staleness,
        front_trained_by="server's gradient" if split else "own loss",
        source="arXiv 2106.06639",
    )


def gas(
    *,
    buffer: int = 2,
    staleness: float = 0.5,
    generated: float = 1.0,
    server_epochs: int = 1,
    micro_batches: int | Literal["auto"] = 1,
    schedule: ScheduleSource = "sequential",
) -> Method:
    """GAS: `async`, and the server draws activations for labels that came less often than others.

    For each label it keeps the mean and the variance of its activations. When a buffer is full and averaged, it trains
    the tail, `server_epochs` times, on the activations that came and on at most `generated` times as many drawn ones,
    which make the labels even; with 0 it is `async`. What goes back to a client is the gradient of its own samples
    alone. (arXiv 2409.01251, algorithm 1, with a tail for each client, and no covariance between elements.)
    """
    return Method(
        name="gas",
        schedule=schedule,
        micro_batches=micro_batches,
        rounds="buffered",
        buffer=buffer,
        staleness=staleness,
        generated=generated,
        server_epochs=server_epochs,
        source="arXiv 2409.01251",
    )


def pipe_sgd(
    *, split: bool = True, micro_batches: int | Literal["auto"] = 1, schedule: ScheduleSource = "sequential"
) -> Method:
    """Pipe-SGD: round r + 1 begins while the average of round r is made, from that of round r - 1: staleness is one.

    What the clients have learned from the older weights is added to the newer. `split` = False: the whole model is on
    the client (arXiv 1811.03619, algorithm 1, with K = 2).
    """
    return Method(
        name="pipe-sgd",
        schedule=schedule,
        micro_batches=micro_batches,
        split=split,
        rounds="overlapped",
        front_trained_by="server's gradient" if split else "own loss",
        source="arXiv 1811.03619",
    )
