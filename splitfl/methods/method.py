"""What a method is: where the parts live, who is averaged, and the generator that orders the work."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from splitfl.schedule.file import from_file
from splitfl.schedule.generators import Generator, generator
from splitfl.schedule.topology import CLIENT, Topology

ScheduleSource = str | Path | Generator
"""A built-in generator's name, the path of a `.sched` file, or a function of the user's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way of training a split model federatedly, as data.

    name           as `splitfl methods` prints it
    schedule       generator of the mini-batch's instructions, the name of a built-in one, or a `.sched` file
    micro_batches  parts of a mini-batch that are in flight together; "auto" lets the planner choose
    split          False: the whole model lives on the client and nothing crosses a cut
    shared_tail    one server-side replica for all clients (False: one per client)
    average_front  the client-side partitions are averaged when the round ends
    average_tail   the server-side replicas are averaged when the round ends
    in_turn        clients train one after the other and hand the client-side weights on
    front_trained_by, source  for the table: whose gradient trains the front, and the paper
    """

    name: str
    schedule: ScheduleSource
    micro_batches: int | Literal["auto"] = 1
    split: bool = True
    shared_tail: bool = False
    average_front: bool = True
    average_tail: bool = True
    in_turn: bool = False
    front_trained_by: str = "server's gradient"
    source: str = ""

    def placement(self, stages: int) -> tuple[str, ...]:
        """The place of each of `stages` stages: the first on the client, the rest on the server."""
        if not self.split:
            return (CLIENT,) * stages
        return (CLIENT,) + ("server",) * (stages - 1)

    def topology(
        self, clients: tuple[int, ...], *, stages: int, micro_batches: int | tuple[int, ...] = 1, steps: int = 1
    ) -> Topology:
        """The topology of one round in which `clients` (ids) take part."""
        placement = self.placement(stages)
        front = frozenset(stage for stage, place in enumerate(placement) if place == CLIENT)
        tail = frozenset(range(stages)) - front
        averaged_tail = tail if self.average_tail and not self.shared_tail else frozenset()
        return Topology(
            clients=clients,
            placement=placement,
            micro_batches=micro_batches,
            shared=tail if self.shared_tail else frozenset(),
            aggregated=(front if self.average_front else frozenset()) | averaged_tail,
            steps=steps,
        )

    def generator(self) -> Generator:
        """The function that orders the work. Raises ValueError for an unknown name, ScheduleError for a wrong file."""
        if callable(self.schedule):
            return self.schedule
        if isinstance(self.schedule, Path) or self.schedule.endswith(".sched"):
            return from_file(Path(self.schedule))
        return generator(self.schedule)

    @property
    def personal_front(self) -> bool:
        """Each client keeps a client-side partition of its own: there is no single trained model."""
        return self.split and not self.average_front
