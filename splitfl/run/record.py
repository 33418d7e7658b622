"""What a run leaves behind for its readers: plain values that go to JSON and back, with no tensor among them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from splitfl.errors import SplitflError

if TYPE_CHECKING:
    from splitfl.planning.timeline import Event

T = TypeVar("T")

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]

# A diverged loss is a result too: JSON has no NaN, so it travels as the string "NaN".
EXACT = ConfigDict(extra="forbid", ser_json_inf_nan="strings")


class RecordError(SplitflError):
    """A recorded history cannot be read; the message names the field."""


class Failure(NamedTuple):
    """A client that dropped out of a round, or whose update was refused, and why."""

    client: str
    reason: str


class Span(NamedTuple):
    """One instruction on an actor's time line: its text, its start and end in seconds, and the bytes it moved."""

    actor: str
    instruction: str
    start: Annotated[float, Field(allow_inf_nan=False)]
    end: Annotated[float, Field(allow_inf_nan=False)]
    nbytes: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """One round as it went.

    round         number of the round, from 1
    seconds       how long it took, on the real clock or on the simulator's virtual one
    accuracy      share of the test samples predicted right, 0 to 1; None where nothing was tested
    loss          mean loss over the test samples
    train_loss    mean loss over the samples that were trained on
    bytes_up      bytes from the clients to the server; `bytes_down` the other way
    idle          share of the round, 0 to 1, in which an actor computed nothing
    participants  names of the clients whose work counted
    failures      clients that dropped out or were refused
    """

    __pydantic_config__: ClassVar[ConfigDict] = EXACT

    round: Annotated[int, Field(ge=1)]
    seconds: Seconds
    clock: Literal["real", "virtual"] = "real"
    accuracy: Share | None = None
    loss: float | None = None
    train_loss: float | None = None
    bytes_up: Count = 0
    bytes_down: Count = 0
    idle: Mapping[str, Share] = field(default_factory=dict)
    participants: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()

    def figures(self) -> dict[str, object]:
        """What is known of the round, as an event tells it."""
        names = ("round", "seconds", "accuracy", "loss", "bytes_up", "bytes_down")
        known = {name: value for name in names if (value := getattr(self, name)) is not None}
        return {**known, "participants": len(self.participants), "failures": len(self.failures)}

    def to_json(self) -> str:
        """The record as one line of JSON, as in the history's `rounds`."""
        return _ROUND.dump_json(self).decode()

    @staticmethod
    def from_json(text: str | bytes) -> RoundRecord:
        """The record that `to_json` wrote. Raises RecordError naming the first field that is wrong."""
        return _read(_ROUND, text, what="round")


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A whole run: what was asked for, every round, and one mini-batch seen closely.

    title      what a table calls the run; `method` the method's name
    clients    names of the clients that enrolled, by id: the third is the actor `c2`
    settings   the job's settings, as plain JSON values
    measured   the instructions of one mini-batch on every actor, as they ran; starts at 0 s
    predicted  the same from the simulator
    """

    __pydantic_config__: ClassVar[ConfigDict] = EXACT

    title: str
    method: str
    clients: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    rounds: tuple[RoundRecord, ...] = ()
    measured: tuple[Span, ...] = ()
    predicted: tuple[Span, ...] = ()

    def to_json(self) -> str:
        """The history as one line of JSON, from which `from_json` makes an equal one."""
        return _HISTORY.dump_json(self).decode()

    @staticmethod
    def from_json(text: str | bytes) -> History:
        """The history that `to_json` wrote. Raises RecordError naming the first field that is wrong."""
        return _read(_HISTORY, text, what="history")


def _read(adapter: TypeAdapter[T], text: str | bytes, *, what: str) -> T:
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        where = f"{place}: " if place else ""
        raise RecordError(f"{what}: {where}{first['msg']}") from error


def spans(events: Iterable[Event]) -> tuple[Span, ...]:
    """The time line of recorded or simulated events, moved so that the earliest starts at 0 s."""
    return from_zero(
        [Span(event.actor, str(event.instruction), event.start, event.end, event.nbytes) for event in events]
    )


def from_zero(listed: Sequence[Span]) -> tuple[Span, ...]:
    """`listed`, moved so that the earliest starts at 0 s."""
    origin = min((span.start for span in listed), default=0.0)
    return tuple(span._replace(start=span.start - origin, end=span.end - origin) for span in listed)


_ROUND = TypeAdapter(RoundRecord)
_HISTORY = TypeAdapter(History)
