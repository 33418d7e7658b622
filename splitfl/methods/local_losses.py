"""Methods whose front has a loss of its own: no gradient comes back, so no client ever waits for one."""

from __future__ import annotations

from typing import Literal

from splitfl.methods.method import AuxiliarySource, Method, ScheduleSource


def local_loss(
    *,
    auxiliary: AuxiliarySource = "mlp",
    auxiliary_share: float = 0.1,
    shared_tail: bool = True,
    micro_batches: int | Literal["auto"] = 1,
    schedule: ScheduleSource = "decoupled",
) -> Method:
    """Local-loss split learning: an auxiliary network trains the front, the tail trains on what the front sends.

    Fronts and auxiliary networks are averaged. `shared_tail`: one tail that takes a step after each client's
    mini-batch; else one per client, averaged (arXiv 2101.09751, section 3).
    """
    return Method(
        name="local-loss",
        schedule=schedule,
        micro_batches=micro_batches,
        shared_tail=shared_tail,
        local_losses="cut",
        auxiliary=auxiliary,
        auxiliary_share=auxiliary_share,
        front_trained_by="auxiliary loss",
        source="arXiv 2101.09751",
    )


def cse_fsl(
    *,
    every: int = 5,
    auxiliary: AuxiliarySource = "mlp",
    auxiliary_share: float = 0.1,
    schedule: ScheduleSource = "decoupled",
) -> Method:
    """CSE-FSL: local losses, one shared tail, activations sent in every `every`-th mini-batch only.

    In the others only the front trains, and nothing crosses the cut. A round with fewer than `every` mini-batches
    leaves the tail as it was (arXiv 2507.15816, algorithm 1).
    """
    return Method(
        name="cse-fsl",
        schedule=schedule,
        shared_tail=True,
        local_losses="cut",
        auxiliary=auxiliary,
        auxiliary_share=auxiliary_share,
        upload_every=every,
        front_trained_by="auxiliary loss",
        source="arXiv 2507.15816",
    )


def fsl_sage(
    *,
    every: int = 5,
    align_every: int = 1,
    align_epochs: int = 1,
    auxiliary: AuxiliarySource = "mlp",
    auxiliary_share: float = 0.1,
    schedule: ScheduleSource = "decoupled",
) -> Method:
    """FSL-SAGE: the auxiliary network stands for the tail, whose gradients the server fits it to.

    As in CSE-FSL activations go up in every `every`-th mini-batch, and no gradient comes down. Clients train the front
    alone; after every `align_every`-th round the server takes `align_epochs` passes over the round's activations to
    fit the network to the tail's gradients of them (arXiv 2505.23182, algorithm 1).
    """
    return Method(
        name="fsl-sage",
        schedule=schedule,
        shared_tail=True,
        local_losses="cut",
        auxiliary=auxiliary,
        auxiliary_share=auxiliary_share,
        upload_every=every,
        align_every=align_every,
        server_epochs=align_epochs,
        front_trained_by="auxiliary gradient",
        source="arXiv 2505.23182",
    )


def ampere(
    *,
    server_epochs: int = 10,
    auxiliary: AuxiliarySource = "mlp",
    auxiliary_share: float = 0.1,
    schedule: ScheduleSource = "decoupled",
) -> Method:
    """Ampere: fronts are trained first, on auxiliary losses; then activations go up once, and the server trains alone.

    In all rounds but the last only fronts and auxiliary networks move. In the last each client sends the activations of
    all its samples, and the tail takes `server_epochs` passes over those of all clients (arXiv 2507.07130, section 3).
    """
    return Method(
        name="ampere",
        schedule=schedule,
        shared_tail=True,
        local_losses="cut",
        auxiliary=auxiliary,
        auxiliary_share=auxiliary_share,
        transfer="at the end",
        server_epochs=server_epochs,
        front_trained_by="auxiliary loss",
        source="arXiv 2507.07130",
    )


def ecofed(*, transfer_every: int = 5, server_epochs: int = 1) -> Method:
    """EcoFed: a frozen front that is trained already; its activations go up now and then and are replayed in between.

    The model comes with the front's weights. In every `transfer_every`-th round, from the first, each client sends the
    activations of all its samples; in the others no client is asked. In each the tail takes `server_epochs` passes over
    what the server keeps (arXiv 2304.05495, section 4; with the codec `activation = "int8"` as there).
    """
    return Method(
        name="ecofed",
        schedule="sequential",
        shared_tail=True,
        transfer="replayed",
        transfer_every=transfer_every,
        server_epochs=server_epochs,
        front_trained_by="nobody",
        source="arXiv 2304.05495",
    )


def pipe_bd(
    *,
    front_blocks: int | Literal["auto"] = 1,
    shared_tail: bool = True,
    micro_batches: int | Literal["auto"] = 1,
    schedule: ScheduleSource = "decoupled",
) -> Method:
    """Pipe-BD: blockwise distillation of the job's teacher; the teacher's activations are relayed (arXiv 2301.12443).

    A block is a stage; `front_blocks` of them are on the client, or, with "auto", as many as make a round shortest on
    the job's devices and link, by prediction. Each teacher block runs once for a mini-batch, each student block is
    trained on its own distance from it as soon as that is known.
    """
    return Method(
        name="pipe-bd",
        schedule=schedule,
        micro_batches=micro_batches,
        front_stages=1 if front_blocks == "auto" else front_blocks,
        balance=front_blocks == "auto",
        shared_tail=shared_tail,
        local_losses="every stage",
        distils=True,
        front_trained_by="distillation",
        source="arXiv 2301.12443",
    )


def block_local(
    *,
    auxiliary: AuxiliarySource = "mlp",
    auxiliary_share: float = 0.1,
    front_blocks: int | Literal["auto"] = 1,
    shared_tail: bool = True,
    micro_batches: int | Literal["auto"] = 1,
    schedule: ScheduleSource = "decoupled",
) -> Method:
    """Block-wise local losses: every block, of the front and of the tail, learns from a head of its own.

    A block is a stage; `front_blocks` of them are on the client ("auto": as in pipe-bd), and gradients stop at every
    border (decoupled greedy learning, arXiv 1901.08164, over client and server).
    """
    return Method(
        name="block-local",
        schedule=schedule,
        micro_batches=micro_batches,
        front_stages=1 if front_blocks == "auto" else front_blocks,
        balance=front_blocks == "auto",
        shared_tail=shared_tail,
        local_losses="every stage",
        auxiliary=auxiliary,
        auxiliary_share=auxiliary_share,
        front_trained_by="auxiliary losses",
        source="arXiv 1901.08164",
    )
