"""The seam that everything above sees: a channel between two ends, and how it fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from splitfl.codecs.frame import Buffer
from splitfl.codecs.proto3 import WireError
from splitfl.errors import SplitflError
from splitfl.transport.messages import Address, Control


class TransportError(SplitflError):
    """A session cannot be set up as asked."""


class EnvelopeError(WireError):
    """Bytes that are no message of a session, or a message that has no form in bytes."""


class ChannelClosed(SplitflError):  # noqa: N818
    """The channel is closed: `reason` says by whom and why."""

    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(f"the channel to {peer} is closed: {reason}")
        self.peer = peer
        self.reason = reason


class DeadlineExceeded(SplitflError):  # noqa: N818
    """Nothing came in time: `what` was awaited from `peer` for `seconds`."""

    def __init__(self, what: str, *, peer: str, seconds: float, note: str = "") -> None:
        super().__init__(f"waited {seconds:g} s for {what} from {peer}{note}")
        self.what = what
        self.peer = peer
        self.seconds = seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLimits:
    """What one end accepts from the other.

    message   bytes of one bundle of tensors; a larger one closes the channel as soon as its first piece shows the size
    waiting   bytes that arrived and that nobody took yet; beyond it the end stops reading, so the sender waits
    """

    message: int = 4 << 30
    waiting: int = 1 << 30


class Channel(Protocol):
    """One end of a session. Bundles of tensors are found by address, not by order of arrival."""

    @property
    def peer(self) -> str:
        """The other end, for messages."""

    @property
    def identity(self) -> frozenset[str]:
        """The names in the certificate that the other end showed; empty where it showed none."""

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more; what had arrived before can still be received."""

    @property
    def reason(self) -> str:
        """Why the channel closed; empty while it is open."""

    @property
    def sent_bytes(self) -> int:
        """Bytes of all envelopes written so far; gRPC and TLS add their framing."""

    @property
    def received_bytes(self) -> int:
        """Bytes of all envelopes read so far."""

    async def send(self, address: Address, payload: Sequence[Buffer]) -> int:
        """Send the concatenated buffers under `address`; returns the bytes on the wire, once all are written.

        The buffers may change after that, not before. Raises ChannelClosed.
        """

    async def receive(self, address: Address, *, timeout: float) -> memoryview:
        """Take the payload sent under `address`, whether it is here already or still to come.

        Raises DeadlineExceeded after `timeout` seconds, ChannelClosed if it can come no more.
        """

    def expect(self, round_number: int, wanted: Callable[[Address], bool]) -> None:
        """Let in, of this round, the bundles that are `wanted`, and none of a later round; others close the channel.

        A channel on which nothing was ever expected lets in everything.
        """

    async def tell(self, control: Control) -> None:
        """Send a control message, ahead of tensors that are still being sent. Raises ChannelClosed."""

    async def hear(self, *, timeout: float, what: str) -> Control:
        """Take the next control message; `what` says in errors what was awaited. Raises as `receive` does."""

    async def wait_closed(self) -> None:
        """Return once the channel is closed, by whichever end."""

    async def close(self, reason: str = "closed by this end") -> None:
        """Deliver the control messages that are under way, then end the session. Closing twice is fine."""
