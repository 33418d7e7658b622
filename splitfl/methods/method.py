"""What a method is: where the parts live, who is averaged, and the generator that orders the work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import Any, Literal

from splitfl.methods.merging import Merging
from splitfl.schedule.file import from_file
from splitfl.schedule.generators import Generator, generator
from splitfl.schedule.topology import CLIENT, Topology
from splitfl.schedule.transfer import transfer

ScheduleSource = str | Path | Generator
"""A built-in generator's name, the path of a `.sched` file, or a function of the user's."""

AuxiliarySource = str | Callable[[Any, Any], Any]
"""`linear`, `mlp` or `cnn`, or a function (activation, output) -> module from such an activation to such an output.

The function is given two samples of each. Where several tensors leave the stage, the activation is a dict by name.
"""


class Phase(StrEnum):
    """What a round, or a mini-batch of it, is for."""

    TRAIN = "train"  # the method's schedule, on all stages
    FRONT = "front"  # only the front trains, and nothing crosses the cut
    UPLOAD = "upload"  # the front runs forward, and the server keeps what it gives
    SERVER = "server"  # no client is asked: the server trains the tail on what it keeps


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way of training a split model federatedly, as data.

    name           as `splitfl methods` prints it
    schedule       generator of the mini-batch's instructions, the name of a built-in one, or a `.sched` file
    micro_batches  parts of a mini-batch that are in flight together; "auto" lets the planner choose
    split          False: the whole model lives on the client and nothing crosses a cut
    front_stages   leading stages that live on the client
    balance        leading stages beyond those live on the client too where a round is predicted to be shorter then
    head_on_client the last stage returns to the client, where the labels are (U-shaped)
    shared_tail    one server-side replica for all clients (False: one per client)
    joint_step     the shared tail takes one step for the mini-batches of all clients, not one after each client
    merging        the joint tail computes once, on one batch of what all clients sent, scored in a way of its own
    global_sampling  mini-batches are drawn from the data of all clients together, however many of each there are
    global_batch   samples in such a mini-batch; None: the job's batch size times the number of clients
    speeds         relative, by client id, again from the first where there are more clients: a slower one than the
                   fastest takes smaller mini-batches, in proportion
    average_front  the client-side partitions are averaged when the round ends
    average_tail   the server-side replicas are averaged when the round ends
    in_turn        clients train one after the other and hand the client-side weights on
    local_losses   "none": one loss at the end; "cut": the front has a loss of its own; "every stage": each stage has
    auxiliary      the auxiliary networks that those losses need
    auxiliary_share  parameters of an automatic auxiliary network, as a share of those of the stages that it trains
    transfer       when activations go to the server: "training", with every mini-batch; "at the end", in the last round
                   only, once the fronts are trained; "replayed", every `transfer_every` rounds, and the front is
                   frozen. In the last two the server trains the tail alone, on what it keeps
    server_epochs  passes over what it keeps, in a round in which it trains alone
    align_every    every so many rounds the server fits the auxiliary networks to the tail's gradients of the round's
                   activations; 0: fronts train them themselves, on the labels
    upload_every   activations go to the tail in every so manieth mini-batch; in the others only the front trains
    rounds         "in step": a round ends when its clients are done; "overlapped": the next turn begins before the
                   round's average is known, from the one before; "buffered": an average of every `buffer` updates,
                   whoever they are of
    buffer         updates that make a buffered round
    staleness      weight of an update in a buffered round: (1 + rounds that went by while it was made) ** -staleness
    generated      activations that the server may draw, after a buffered round, for each that came in it: the tail then
                   trains on both, `server_epochs` times, with labels as even as that makes them; 0: it does not
    distils        each stage has a block of a teacher too, and its loss is the distance from it; there are no labels
    front_trained_by, source  for the table: whose gradient trains the front, and the paper

    Raises ValueError, naming the field, where the parts contradict each other.
    """

    name: str
    schedule: ScheduleSource
    micro_batches: int | Literal["auto"] = 1
    split: bool = True
    front_stages: int = 1
    balance: bool = False
    head_on_client: bool = False
    shared_tail: bool = False
    joint_step: bool = False
    merging: Merging | None = None
    global_sampling: bool = False
    global_batch: int | None = None
    speeds: tuple[float, ...] = (1.0,)
    average_front: bool = True
    average_tail: bool = True
    in_turn: bool = False
    local_losses: Literal["none", "cut", "every stage"] = "none"
    auxiliary: AuxiliarySource = "mlp"
    auxiliary_share: float = 0.1
    transfer: Literal["training", "at the end", "replayed"] = "training"
    transfer_every: int = 1
    server_epochs: int = 1
    align_every: int = 0
    upload_every: int = 1
    rounds: Literal["in step", "overlapped", "buffered"] = "in step"
    buffer: int = 1
    staleness: float = 0.0
    generated: float = 0.0
    distils: bool = False
    front_trained_by: str = "server's gradient"
    source: str = ""

    def __post_init__(self) -> None:
        self._require(self.front_stages >= 1, "front_stages", "1 or more")
        self._require(self.auxiliary_share > 0, "auxiliary_share", "a share above 0, such as 0.1")
        for name in ("upload_every", "transfer_every", "server_epochs", "buffer"):
            self._require(getattr(self, name) >= 1, name, "1 or more")
        self._require(self.align_every >= 0, "align_every", "0 or more")
        self._require(self.staleness >= 0, "staleness", "0 or more")
        apart = self.takes_strategy and not (self.shared_tail or self.personal_front or self.server_trains_alone)
        wanted = '"in step" unless client and server partitions are averaged, with a replica per client'
        self._require(apart or self.rounds == "in step", "rounds", wanted)
        self._require(self.generated >= 0, "generated", "0 or more")
        labelled = self.split and not (self.head_on_client or self.distils)
        wanted = "0 unless rounds are buffered and the labels come to the server"
        self._require(not self.generated or (self.rounds == "buffered" and labelled), "generated", wanted)
        own_loss = self.upload_every == 1 or self.local_losses != "none"
        self._require(own_loss, "upload_every", "1 for a front that is trained by the server's gradient")
        self._require(self.shared_tail or not self.joint_step, "joint_step", "False without a shared tail")
        self._require(self.joint_step or self.merging is None, "merging", "None without a joint step")
        alike = self.merging is None or self.vertical or self.micro_batches == 1
        self._require(alike, "micro_batches", "1 where clients with batches of any size are merged")
        alone = not self.vertical or (self.front_stages == 1 and self.average_front and not self.global_sampling)
        self._require(alone, "merging", "one front stage for each holder of features, kept as the round leaves it")
        self._require(self.joint_step or not self.global_sampling, "global_sampling", "False without a joint step")
        positive = bool(self.speeds) and all(0 < speed < inf for speed in self.speeds)
        self._require(positive, "speeds", "numbers above 0, such as (1.0, 0.25)")
        self._require(self.global_batch is None or self.global_batch >= 1, "global_batch", "1 or more")

    def _require(self, holds: bool, name: str, wanted: str) -> None:
        if not holds:
            raise ValueError(f"method {self.name}: {name} = {getattr(self, name)!r}, expected {wanted}")

    @property
    def least_stages(self) -> int:
        """Stages that the method needs: one at each place where the model passes."""
        return self.front_stages + 1 + self.head_on_client if self.split else 1

    def placement(self, stages: int) -> tuple[str, ...]:
        """The place of each of `stages` stages. Raises ValueError where they are too few for the method."""
        if not self.split:
            return (CLIENT,) * stages
        least = self.least_stages
        if stages < least:
            cuts = f"{least - 1} cut{'s' if least > 2 else ''}"
            raise ValueError(f"method {self.name}: {stages} stages, expected {least} or more: give {cuts} in the job")
        head = int(self.head_on_client)
        return (CLIENT,) * self.front_stages + ("server",) * (stages - self.front_stages - head) + (CLIENT,) * head

    def topology(
        self,
        clients: tuple[int, ...],
        *,
        stages: int,
        micro_batches: int | tuple[int, ...] = 1,
        steps: int = 1,
        phase: Phase = Phase.TRAIN,
    ) -> Topology:
        """The topology of one round in which `clients` (ids) take part, in a phase in which they do."""
        placement = self.placement(stages)
        if phase is not Phase.TRAIN:
            placement = placement[: self.front_stages + (phase is Phase.UPLOAD)]
        stored = frozenset({self.front_stages}) if phase is Phase.UPLOAD else frozenset()
        front = frozenset(stage for stage, place in enumerate(placement) if place == CLIENT)
        tail = frozenset(range(len(placement))) - front - stored
        averaged_tail = tail if self.average_tail and not self.shared_tail else frozenset()
        shared = tail if self.shared_tail else frozenset()
        return Topology(
            clients=clients,
            placement=placement,
            micro_batches=micro_batches,
            losses=self._losses(len(placement)),
            shared=shared,
            joint=shared if self.joint_step else frozenset(),
            merged=shared if self.merging else frozenset(),
            frozen=front if stored else frozenset(),
            stored=stored,
            aggregated=(front if self.average_front else frozenset()) | averaged_tail,
            steps=steps,
        )

    def batch_size(self, client: int, largest: int) -> int:
        """Samples in a mini-batch of `client`, where the fastest one's has `largest`."""
        speed = self.speeds[client % len(self.speeds)]
        return max(1, round(largest * speed / max(self.speeds)))

    def step_phase(self, step: int, phase: Phase) -> Phase:
        """What mini-batch `step` (from 0) of a turn is for: all train in the last of each so many, else the front."""
        return Phase.FRONT if phase is Phase.TRAIN and (step + 1) % self.upload_every else phase

    def _losses(self, stages: int) -> frozenset[int]:
        """Stages where a backward may start, besides the last one."""
        if self.local_losses == "every stage":
            return frozenset(range(stages))
        return frozenset({self.front_stages - 1}) if self.local_losses == "cut" else frozenset()

    def phase(self, number: int, rounds: int) -> Phase:
        """What happens in round `number` of `rounds`, counted from 1."""
        if self.transfer == "at the end":
            return Phase.UPLOAD if number == rounds else Phase.FRONT
        if self.transfer == "replayed":
            return Phase.SERVER if (number - 1) % self.transfer_every else Phase.UPLOAD
        return Phase.TRAIN

    def generator(self, phase: Phase = Phase.TRAIN) -> Generator:
        """The function that orders the work. Raises ValueError for an unknown name, ScheduleError for a wrong file."""
        if phase is Phase.UPLOAD:
            return transfer
        if callable(self.schedule):
            return self.schedule
        if isinstance(self.schedule, Path) or self.schedule.endswith(".sched"):
            return from_file(Path(self.schedule))
        return generator(self.schedule)

    @property
    def takes_strategy(self) -> bool:
        """Something is averaged when a round ends, so that a strategy has work."""
        averages = self.average_front or (self.average_tail and not self.shared_tail)
        return not self.in_turn and self.trains_front and (averages or not self.split)

    @property
    def vertical(self) -> bool:
        """The clients hold features of the same samples, not samples of their own."""
        return self.merging is not None and self.merging.aligned

    @property
    def trains_front(self) -> bool:
        """The client-side partition learns."""
        return self.transfer != "replayed"

    @property
    def server_trains_alone(self) -> bool:
        """There are rounds in which the tail learns from what the server keeps."""
        return self.transfer != "training"

    @property
    def keeps_activations(self) -> bool:
        """The server looks again at the activations that the tail was trained on, when a round ends."""
        return self.align_every > 0 or self.generated > 0

    @property
    def server_keeps_activations(self) -> bool:
        """The server computes on activations of earlier mini-batches too."""
        return self.server_trains_alone or self.keeps_activations

    @property
    def personal_front(self) -> bool:
        """Each client keeps a client-side partition of its own: there is no single trained model."""
        return self.split and not self.average_front
