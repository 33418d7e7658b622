"""Who takes part and where every stage lives: all that a generator needs to know."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

CLIENT = "client"
"""In a placement: the stage lives on the device of the client whose data it sees."""


ACTOR_NAME = r"[A-Za-z][A-Za-z0-9_-]{0,63}"
"""What an actor may be called: a name that a schedule's text can carry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The actors, the stages and the rules of one mini-batch (or of a round of `steps` mini-batches).

    clients        ids of the clients that take part, ascending; client 2 is the actor `c2`
    placement      the actor of each stage: "client", or a name such as "server" or "edge"
    micro_batches  micro-batches per mini-batch, one number for all clients or one per client
    chunks         sequence chunks per micro-batch
    losses         stages where a backward may start; always holds the last one
    shared         stages with a single replica for all clients (never on a client)
    joint          shared stages that take one optimizer step for all clients together, not one per client
    merged         joint stages that compute once for all clients together, on one batch of what they all sent: the last
                   ones, from some stage on
    frozen         stages that run forward only: nothing is trained there
    stored         stages that keep what arrives, with the labels, to be trained on it later; always the last one
    aggregated     stages whose weights are averaged when the round ends
    steps          mini-batches in the round
    aggregator     the actor that averages
    stash_weights  a backward may use older weights than the current ones, kept since its forward (PipeDream)

    Raises ValueError, naming the field, where the parts contradict each other.
    """

    clients: tuple[int, ...]
    placement: tuple[str, ...]
    micro_batches: int | tuple[int, ...] = 1
    chunks: int = 1
    losses: frozenset[int] = frozenset()
    shared: frozenset[int] = frozenset()
    joint: frozenset[int] = frozenset()
    merged: frozenset[int] = frozenset()
    frozen: frozenset[int] = frozenset()
    stored: frozenset[int] = frozenset()
    aggregated: frozenset[int] = frozenset()
    steps: int = 1
    aggregator: str = "server"
    stash_weights: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "losses", frozenset(self.losses) | {self.last})
        self._require(bool(self.placement), "placement", "at least one stage")
        named = all(re.fullmatch(ACTOR_NAME, place) for place in self.placement)
        self._require(named, "placement", "names of letters, digits, _ and -, that begin with a letter")
        named = bool(re.fullmatch(ACTOR_NAME, self.aggregator)) and self.aggregator != CLIENT
        self._require(named, "aggregator", "the name of an actor, such as server")
        self._require(bool(self.clients), "clients", "at least one client")
        ascending = tuple(sorted(set(self.clients))) == self.clients and min(self.clients) >= 0
        self._require(ascending, "clients", "distinct ids from 0 upwards, in ascending order")
        self._require(self.chunks >= 1, "chunks", "1 or more")
        self._require(self.steps >= 1, "steps", "1 or more")
        if isinstance(self.micro_batches, tuple):
            per_client = len(self.micro_batches) == len(self.clients)
            self._require(per_client, "micro_batches", f"{len(self.clients)} numbers, one per client")
        self._require(min(self._counts()) >= 1, "micro_batches", "1 or more for every client")
        for name in ("losses", "shared", "joint", "merged", "frozen", "stored", "aggregated"):
            stages: frozenset[int] = getattr(self, name)
            known = all(0 <= stage < self.stages for stage in stages)
            self._require(known, name, f"stages between 0 and {self.last}")
        on_client = {stage for stage, place in enumerate(self.placement) if place == CLIENT}
        self._require(not self.shared & on_client, "shared", "stages that are not placed on the client")
        self._require(self.joint <= self.shared, "joint", "a subset of the shared stages")
        ends = self.merged == frozenset(range(self.stages - len(self.merged), self.stages))
        self._require(self.merged <= self.joint and ends, "merged", "joint stages: the last ones, from some stage on")
        alike = not self.merged or self.shared == self.joint
        self._require(alike, "joint", "all shared stages, where some are merged")
        even = not self.merged or len(set(self._counts())) == 1
        self._require(even, "micro_batches", "the same number for all clients, whose micro-batches are merged")
        self._require(not self.shared & self.aggregated, "aggregated", "stages that are not shared")
        alone = not self.stored or self.stored == {self.last}
        self._require(alone, "stored", f"the last stage, {self.last}, or none")
        self._require(not self.stored & on_client, "stored", "a stage that is not placed on the client")
        feeds = not self.stored or self.frozen == frozenset(range(self.last))
        self._require(feeds, "frozen", "every stage below the stored one")

    def _require(self, holds: bool, field: str, wanted: str) -> None:
        if not holds:
            raise ValueError(f"topology: {field} = {getattr(self, field)!r}, expected {wanted}")

    def _counts(self) -> tuple[int, ...]:
        return self.micro_batches if isinstance(self.micro_batches, tuple) else (self.micro_batches,)

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.placement)

    @property
    def last(self) -> int:
        """Index of the last stage."""
        return len(self.placement) - 1

    @property
    def trained(self) -> list[int]:
        """The stages that learn, ascending."""
        return [stage for stage in range(self.stages) if stage not in self.frozen | self.stored]

    @property
    def actors(self) -> tuple[str, ...]:
        """Every actor that holds a stage or averages: clients first, then the others by their first stage."""
        names = [f"c{client}" for client in self.clients]
        names += [place for place in self.placement if place != CLIENT]
        if self.aggregated:
            names.append(self.aggregator)
        return tuple(dict.fromkeys(names))

    def actor(self, stage: int, client: int | None) -> str:
        """The actor that runs `stage` for `client` (None: for all together)."""
        place = self.placement[stage]
        return f"c{client}" if place == CLIENT else place

    def owners(self, stage: int) -> tuple[int | None, ...]:
        """For whom `stage` computes: each client, or None, all of them together, where they are merged."""
        return (None,) if stage in self.merged else self.clients

    def micro(self, client: int | None) -> range:
        """The micro-batches of `client`, or of each (None). Raises ValueError for a client that does not take part."""
        if client is None:
            return range(self._counts()[0])
        if client not in self.clients:
            raise ValueError(f"topology: unknown client {client}, expected one of {', '.join(map(str, self.clients))}")
        if isinstance(self.micro_batches, tuple):
            return range(self.micro_batches[self.clients.index(client)])
        return range(self.micro_batches)

    def only(self, clients: Iterable[int]) -> Topology:
        """The same topology for some of its clients: what the survivors of a lost client run."""
        chosen = tuple(sorted(clients))
        counts = self.micro_batches
        if isinstance(counts, tuple):
            counts = tuple(len(self.micro(client)) for client in chosen)
        return replace(self, clients=chosen, micro_batches=counts)

    def without_aggregation(self) -> Topology:
        """The topology of a mini-batch inside a round: nothing is averaged, one step."""
        return replace(self, aggregated=frozenset(), steps=1)
