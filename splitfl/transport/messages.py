"""What travels in a session: tensors under an address, and the few words that steer a run.

A session opens with the client's Hello and the server's Welcome. Each round the server says Begin, both sides exchange
tensors, and the client says Report. Refuse and Finish end a session. All are values; `envelope` gives them bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from splitfl.schedule.instruction import Value

PROTOCOL = 1
"""The version that both ends must speak; raised whenever an older end could misunderstand a newer one."""

TRAINER, OBSERVER = "trainer", "observer"
"""The roles of those who come: one trains, the other only hears how training stands."""

STALE = "stale"
"""Code of the refusal of work that comes too late: the round has closed, the client is asked again in the next."""


class Address(NamedTuple):
    """Where a bundle of tensors belongs: which value of which mini-batch (`step`) of which round."""

    round: int
    step: int
    value: Value

    def __str__(self) -> str:
        return f"{self.value} of round {self.round}, step {self.step}"


class Step(NamedTuple):
    """One mini-batch of a round: the index of its program in `Begin.programs`, and its number of samples."""

    program: int
    samples: int


class Traced(NamedTuple):
    """One instruction as it ran: its text, when it started and ended (seconds from the round's start), bytes moved."""

    instruction: str
    start: float
    end: float
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Hello:
    """The client's first word.

    protocol     the version it speaks; this field keeps its place in every version, so that a mismatch can be told
    client       its name
    fingerprint  digests of what both ends must agree on, as JSON
    samples      its number of training samples
    software     its name and version, for messages
    token        a secret that the server may ask for
    instance     names this process, so that its return is told from another client of the same name
    session, turn, steps  where it was when it lost the connection: the session's id, the number of the last Begin, and
                 the mini-batches of it that are complete; empty and zero at the first hello
    role         "trainer", or "observer"; an empty one is a trainer's
    links        where clients hold features of the same samples: keyed digests of the samples' ids, in base64
    """

    protocol: int
    client: str
    fingerprint: str
    samples: int
    software: str
    token: str = ""
    instance: str = ""
    session: str = ""
    turn: int = 0
    steps: int = 0
    role: str = ""
    links: str = ""

    def __repr__(self) -> str:
        """Without the token, which must not find its way into a log."""
        return f"Hello(client={self.client!r}, role={self.role!r}, software={self.software!r}, samples={self.samples})"


@dataclass(frozen=True, slots=True)
class Welcome:
    """The server's answer once all clients are there: the session's id, this client's id, how many there are.

    `settings` is JSON for what the client must know beyond its own copy of the job; `links` are the digests that all
    clients have, where they hold features of the same samples: its samples are those, in that order.
    """

    session: str
    client: int
    clients: int
    settings: str = "{}"
    links: str = ""


@dataclass(frozen=True, slots=True)
class Begin:
    """A round starts.

    seed      from which all of the round's randomness is derived
    opening   program that runs before the first mini-batch, as schedule text; `closing` after the last
    programs  the distinct programs of the mini-batches
    plan      one entry per mini-batch, in order
    first     the mini-batch to start with: 0, or where a turn goes on after a lost connection
    phase     what the turn is for: "" or "train", "front" (only the front trains), "upload" (forward only)
    """

    round: int
    seed: int
    opening: str
    programs: tuple[str, ...]
    closing: str
    plan: tuple[Step, ...]
    first: int = 0
    phase: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """A client has finished its part of a round: samples that count as its weight, metrics, one traced mini-batch."""

    round: int
    samples: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    trace: tuple[Traced, ...] = ()


@dataclass(frozen=True, slots=True)
class Refuse:
    """No: a short machine-readable `code`, and a message for people that says what would be right."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The server has no more rounds, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Status:
    """How training stands, told to an observer when it comes and after every round: JSON, described in docs."""

    content: str


Control = Hello | Welcome | Begin | Report | Refuse | Finish | Status


def version_refusal(hello: Hello) -> Refuse | None:
    """The refusal of a client that speaks another protocol than this end, naming both versions; None if it is ours."""
    if hello.protocol == PROTOCOL:
        return None
    return Refuse(
        "version",
        f"client {hello.client!r} ({hello.software}) speaks protocol {hello.protocol}, this server speaks {PROTOCOL}: "
        "install matching versions of splitfl",
    )
