"""Methods whose server computes once on the samples of all clients, put together in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from splitfl.methods.merging import Merging
from splitfl.methods.method import Method, ScheduleSource


def parallel_sl(*, average_front: bool = True, schedule: ScheduleSource = "sequential") -> Method:
    """Parallel split learning: the shared tail computes and steps once on the mini-batches of all clients together.

    The loss is the mean over the samples of all clients, and a front gets its part of that batch's gradient (arXiv
    2303.15991, section 3, with aggregation ratio 0). `average_front`: fronts are averaged when the round ends; else
    each client keeps its own.
    """
    return _merged("parallel-sl", "arXiv 2303.15991", schedule=schedule, average_front=average_front)


def epsl(
    *, aggregation_ratio: float = 0.5, average_front: bool = True, schedule: ScheduleSource = "sequential"
) -> Method:
    """Efficient parallel split learning: part of the last layer's gradients are averaged over the clients.

    The first `aggregation_ratio` of every client's samples (rounded up, of the smallest mini-batch) go back through the
    tail as one: at the mean of their activations, with the mean of their gradients, and each front gets the result
    (arXiv 2303.15991, section 3). At 0 it is parallel-sl. What the paper broadcasts is sent to each client here.
    """
    if not 0 <= aggregation_ratio <= 1:
        raise ValueError(f"epsl: aggregation_ratio = {aggregation_ratio!r}, expected a share from 0 to 1")
    merging = Merging(averaged=aggregation_ratio)
    return _merged("epsl", "arXiv 2303.15991", merging=merging, schedule=schedule, average_front=average_front)


def mergesfl(*, speeds: Sequence[float] = (1.0,), schedule: ScheduleSource = "sequential") -> Method:
    """MergeSFL: features of all clients are merged, and mini-batches are as large as each client's speed allows.

    `speeds` are relative, by client id, and dealt out again where there are more clients: the fastest takes the job's
    batch size, others in proportion, so that all activations arrive at the same time (arXiv 2311.13348, sections 3 and
    4.2; its choice of the clients of a round is the strategy's affair here).
    """
    return _merged("mergesfl", "arXiv 2311.13348", schedule=schedule, speeds=tuple(speeds))


def scala(
    *, global_sampling: bool = True, global_batch: int | None = None, schedule: ScheduleSource = "sequential"
) -> Method:
    """SCALA: activations are concatenated, and the loss is adjusted to how often each class is among the labels.

    The tail learns with the classes' shares in the merged batch, a front with those of its own client, so that neither
    forgets classes that are rare there (arXiv 2405.04875, sections 3 and 4). `global_sampling`: a mini-batch has of
    each client in proportion to its data, as published, drawn as in gpsl; else as many of each as the job says.
    """
    return _merged(
        "scala",
        "arXiv 2405.04875",
        merging=Merging(logit_adjustment=True),
        global_sampling=global_sampling,
        global_batch=global_batch,
        schedule=schedule,
    )


def vertical_sl(
    *, labels_at: int = 0, micro_batches: int | Literal["auto"] = 1, schedule: ScheduleSource = "pipar"
) -> Method:
    """Vertical split learning: every client holds other features of the same samples; one of them holds the labels.

    The model takes one input for each client, in the order of ids, and is cut before these are joined: client k trains
    the layers that see input k alone, the server all others. Samples are linked by a keyed hash of their ids (arXiv
    1812.00564, section 3, "vertically partitioned data"; linkage as in 1711.10677, section 3). `labels_at`: id of the
    client with the labels, which go to the server with its activations.
    """
    return Method(
        name="vertical-sl",
        schedule=schedule,
        micro_batches=micro_batches,
        shared_tail=True,
        joint_step=True,
        merging=Merging(aligned=True, labels_at=labels_at),
        source="arXiv 1812.00564",
    )


def gpsl(
    *, global_batch: int | None = None, average_front: bool = True, schedule: ScheduleSource = "sequential"
) -> Method:
    """Parallel split learning with global sampling: each mini-batch is a draw of the data of all clients together.

    The server draws how many of its `global_batch` samples (the job's batch size times the clients unless given) are
    of which client; which ones they are, each client draws itself. So a mini-batch is as even as the data of all, and
    its size does not grow with the clients (arXiv 2407.15738, section III).
    """
    return _merged(
        "gpsl",
        "arXiv 2407.15738",
        global_sampling=True,
        global_batch=global_batch,
        schedule=schedule,
        average_front=average_front,
    )


def _merged(
    name: str,
    source: str,
    *,
    schedule: ScheduleSource,
    merging: Merging | None = None,
    average_front: bool = True,
    global_sampling: bool = False,
    global_batch: int | None = None,
    speeds: tuple[float, ...] = (1.0,),
) -> Method:
    return Method(
        name=name,
        schedule=schedule,
        shared_tail=True,
        joint_step=True,
        merging=merging or Merging(),
        average_front=average_front,
        global_sampling=global_sampling,
        global_batch=global_batch,
        speeds=speeds,
        source=source,
    )
