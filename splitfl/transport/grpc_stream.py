"""The two ends of a gRPC stream, as streams of envelopes: every way in which gRPC fails becomes one reason in words.

gRPC carries raw bytes here; its own message classes are not used. Of its options we set what a stream of one-megabyte
parts through long silences needs, and leave the rest, flow control above all, as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import grpc
import grpc.aio

from splitfl.transport.address import is_loopback, parse_address
from splitfl.transport.control import CONTROL_LIMIT
from splitfl.transport.stream import GRACE, StreamEnded

VERSION = "splitfl.v1"
METHOD = f"/{VERSION}.Session/Open"

MESSAGE_LIMIT = CONTROL_LIMIT + 64
"""Bytes of one gRPC message: the largest control message and its tag."""

SILENCE = 100.0
"""Seconds without a sign of life after which the other end counts as gone."""

PING, ACKNOWLEDGED = 30.0, 20.0
"""Seconds without traffic before a ping at the latest, and for the other machine to acknowledge what it was sent."""


def options(silence: float) -> list[tuple[str, int]]:
    """gRPC's options for a peer that counts as gone after `silence` seconds.

    A ping in quiet times keeps NATs open and finds a connection of which only one end is left. Its answer has the most
    of `silence`, since it queues behind the tensors that are under way on a slow line. A peer that has nothing to say
    is no fault: pings without data are neither limited nor punished, on either side.
    """
    quiet = min(PING, 0.2 * silence)
    return [
        ("grpc.max_receive_message_length", MESSAGE_LIMIT),
        ("grpc.max_send_message_length", MESSAGE_LIMIT),
        ("grpc.keepalive_time_ms", int(1000 * quiet)),
        # The next one sets TCP's own limit for data that no machine acknowledges; the one after it that for the answer
        # to a ping, which is a minute otherwise.
        ("grpc.keepalive_timeout_ms", int(1000 * min(ACKNOWLEDGED, silence - quiet))),
        ("grpc.http2.ping_timeout_ms", int(1000 * (silence - quiet))),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.max_ping_strikes", 0),
    ]


REASON_KEY = "splitfl-reason-bin"
"""Trailing metadata in which a server says why it ended a session."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a stream could not be opened; `final` where trying again would not help."""

    reason: str
    final: bool


class ServerStream:
    """The server's end. `finished` is set once the remote procedure call may return."""

    def __init__(self, context: Any) -> None:
        self.peer = re.sub(r"^ipv[46]:", "", unquote(context.peer()))
        self.identity = _names(context.auth_context())
        self.finished = asyncio.Event()
        self.reason = ""
        self._context = context

    async def write(self, envelope: bytes) -> None:
        """Send an envelope, as soon as flow control allows."""
        try:
            await self._context.write(envelope)
        except Exception:  # gRPC has half a dozen types for a call that is over, most of them private
            raise StreamEnded("the client is gone") from None

    async def read(self) -> bytes:
        """The next envelope."""
        try:
            envelope = await self._context.read()
        except Exception:
            raise StreamEnded("the client is gone") from None
        if not isinstance(envelope, bytes):
            self.finished.set()
            raise StreamEnded("the client ended the session")
        return envelope

    async def end(self, reason: str) -> None:
        """Let the call return, with `reason` for the client; gRPC delivers what was written before."""
        self.reason = self.reason or reason
        self.finished.set()


class ClientStream:
    """The client's end, with a connection of its own."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None, *, silence: float = SILENCE) -> None:
        self.peer = address
        self.identity: frozenset[str] = frozenset()  # the host name was checked, and that is all that is asked
        chosen = options(silence)
        if is_loopback(parse_address(address)[0]):
            chosen.append(("grpc.enable_http_proxy", 0))
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(address, options=chosen)
        else:
            self._channel = grpc.aio.secure_channel(address, credentials, options=chosen)
        self._call: Any = None

    async def open(self, timeout: float) -> Failure | None:
        """Open the stream within `timeout` seconds; a Failure, and nothing left open, if that was not possible."""
        self._call = self._channel.stream_stream(METHOD)()
        try:
            async with asyncio.timeout(timeout):
                await self._call.initial_metadata()
                if not self._call.done():
                    return None
                failure = _failure(await self._call.code(), await self._call.details())
        except TimeoutError:
            failure = Failure(f"no answer within {timeout:.3g} s", final=False)
        except BaseException:
            await self._release()
            raise
        await self._release()
        return failure

    async def write(self, envelope: bytes) -> None:
        """Send an envelope, as soon as flow control allows."""
        try:
            await self._call.write(envelope)
        except (grpc.RpcError, asyncio.InvalidStateError):
            raise StreamEnded(await self._why()) from None

    async def read(self) -> bytes:
        """The next envelope."""
        try:
            envelope = await self._call.read()
        except grpc.RpcError:
            raise StreamEnded(await self._why()) from None
        if not isinstance(envelope, bytes):
            raise StreamEnded(await self._why())
        return envelope

    async def end(self, reason: str) -> None:
        """Write no more, wait until the server has read everything, and hang up."""
        del reason
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError, TimeoutError):
            async with asyncio.timeout(GRACE):
                await self._call.done_writing()
                await self._call.code()
        await self._release()

    async def _release(self) -> None:
        self._call.cancel()
        await self._channel.close()

    async def _why(self) -> str:
        code = await self._call.code()
        if code is not grpc.StatusCode.OK:
            return _failure(code, await self._call.details()).reason
        said = dict(await self._call.trailing_metadata()).get(REASON_KEY, b"")
        return f"the server ended the session: {said.decode()}" if said else "the server ended the session"


def _names(proofs: Mapping[str, Sequence[bytes]]) -> frozenset[str]:
    """The names that a client's certificate holds. gRPC has verified it, or there would be no stream."""
    shown = [*proofs.get("x509_common_name", ()), *proofs.get("x509_subject_alternative_name", ())]
    return frozenset(name.decode(errors="replace") for name in shown)


def _failure(code: grpc.StatusCode, details: str | None) -> Failure:
    text = " ".join((details or "").split())
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return Failure(text, final=True)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Failure(text, final=False)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return Failure(f"what listens there does not speak {VERSION}: install matching versions of splitfl", final=True)
    for sign, reason in _SIGNS.items():
        if sign in text:
            return Failure(reason, final=True)
    # gRPC lists every address that it tried; the last part holds the system's reason.
    return Failure(f"the connection failed: {text.rpartition('last error: ')[2] or code.name}", final=False)


_SIGNS = {
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not signed by the authority that this client trusts",
    "Hostname Verification Check failed": "the server's certificate is not for this host name",
    "WRONG_VERSION_NUMBER": "the server there does not use TLS, but this client does",
}
