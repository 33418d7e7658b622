"""Sessions over gRPC: one bidirectional stream per client, encrypted unless it stays on this machine."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import grpc
import grpc.aio

from splitfl.errors import SplitflError
from splitfl.transport.address import listens, require_free, require_protection
from splitfl.transport.base import Channel, ChannelLimits, TransportError
from splitfl.transport.gate import Gate, SessionLimits
from splitfl.transport.grpc_stream import (
    METHOD,
    REASON_KEY,
    SILENCE,
    VERSION,
    ClientStream,
    Failure,
    ServerStream,
    options,
)
from splitfl.transport.health import Health
from splitfl.transport.plain_text import expects_tls
from splitfl.transport.shaped import Link, shape
from splitfl.transport.stream import GRACE, StreamChannel
from splitfl.transport.tls import ClientTLS, ServerTLS, load_authority, load_pair

OnSession = Callable[[Channel], Awaitable[None]]

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds between attempts to reach a server that is not up yet."""

ATTEMPT = 10.0
"""Seconds for one attempt: on a line that swallows everything, the next one may get through."""

_LOGGER = logging.getLogger(__name__)


class Server:
    """A listening server, made by `serve`: its `port`, and its `address` with that port."""

    def __init__(
        self, on_session: OnSession, limits: ChannelLimits, sessions: SessionLimits, *, silence: float = SILENCE
    ) -> None:
        self.port = 0
        self.address = ""
        self._on_session = on_session
        self._limits = limits
        self._gate = Gate(sessions, clock=time.monotonic)
        # Two servers must not share a port unnoticed.
        self._server = grpc.aio.server(options=[*options(silence), ("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((cast(Any, _Methods(self._open)),))
        self._health = Health(self._server)
        self._sessions: dict[asyncio.Task[None], StreamChannel] = {}

    async def start(self, address: str, credentials: grpc.ServerCredentials | None) -> None:
        """Listen at `address`. Raises TransportError."""
        require_free(address)
        try:
            if credentials is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, credentials)
        except RuntimeError:
            raise TransportError(f"cannot listen at {address}: gRPC could not bind it; choose another port") from None
        self.address = f"{address.rpartition(':')[0]}:{self.port}"
        await self._server.start()
        self._health.serving()

    def drain(self) -> None:
        """Tell whoever asks for the health that no more sessions are wanted; those there are go on."""
        self._health.drain()

    async def stop(self, grace: float = GRACE) -> None:
        """Close all sessions, telling why, and listen no more; within about `grace` seconds."""
        self._health.close()
        closing = [asyncio.create_task(channel.close("the server stopped")) for channel in self._sessions.values()]
        sessions = list(self._sessions)
        if closing:
            await asyncio.wait([*closing, *sessions], timeout=grace)
        for task in sessions:
            task.cancel()
        await asyncio.gather(*closing, *sessions, return_exceptions=True)
        await self._server.stop(grace)

    async def _open(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """One session, from the first envelope until either end is done."""
        del requests
        stream = ServerStream(context)
        objection = self._gate.objection(stream.peer.rpartition(":")[0], open_sessions=len(self._sessions))
        if objection is not None:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, objection)
        # Sent at once: to the client it means that a server of this version is there.
        await context.send_initial_metadata(())
        channel = StreamChannel(stream, limits=self._limits)
        session = asyncio.create_task(self._run_session(channel))
        self._sessions[session] = channel
        session.add_done_callback(self._sessions.pop)
        try:
            await stream.finished.wait()
            context.set_trailing_metadata(((REASON_KEY, stream.reason.encode()),))
        except asyncio.CancelledError:
            channel.lose("the client disconnected")
            raise

    async def _run_session(self, channel: StreamChannel) -> None:
        reason = "the session is over"
        try:
            await self._on_session(channel)
        except SplitflError as error:
            reason = str(error)
        except Exception:
            _LOGGER.exception("a session with %s failed", channel.peer)
            reason = "the server failed"
        finally:
            await channel.close(reason)


class _Methods:
    """Finds the handler of a call; a client of another version is told so, instead of `UNIMPLEMENTED`."""

    def __init__(self, opened: Callable[[AsyncIterator[bytes], Any], Awaitable[None]]) -> None:
        self._session: Any = grpc.stream_stream_rpc_method_handler(opened)
        self._other_version: Any = grpc.stream_stream_rpc_method_handler(_refuse_version)

    def service(self, call: Any) -> Any:
        if call.method == METHOD:
            return self._session
        return self._other_version if call.method.startswith("/splitfl.") else None


async def _refuse_version(requests: AsyncIterator[bytes], context: Any) -> None:
    del requests
    message = f"this server speaks {VERSION}, the client another version: install matching versions of splitfl"
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)


async def serve(
    address: str,
    on_session: OnSession,
    *,
    tls: ServerTLS | None = None,
    insecure: bool = False,
    limits: ChannelLimits | None = None,
    sessions: SessionLimits | None = None,
    silence: float = SILENCE,
) -> Server:
    """Listen at `address` (`host:port`, port 0 for any) and call `on_session` with the channel of each client.

    A session ends when `on_session` returns or raises. `limits` hold for each of them, `sessions` for how many
    there may be; one too many is told so before it costs anything. A client that gives no sign of life for `silence`
    seconds is gone. Plain text is refused outside this machine unless `insecure`.
    Raises TransportError in one line: bad address, port in use, certificate missing or not matching its key.
    """
    require_protection(address, protected=tls is not None, insecure=insecure)
    credentials = None if tls is None else server_credentials(tls)
    server = Server(on_session, limits or ChannelLimits(), sessions or SessionLimits(), silence=silence)
    try:
        await server.start(address, credentials)
    except TransportError:
        await server.stop(0)
        raise
    return server


async def connect(
    address: str,
    *,
    tls: ClientTLS | None = None,
    insecure: bool = False,
    timeout: float = 60.0,
    limits: ChannelLimits | None = None,
    link: Link | None = None,
    silence: float = SILENCE,
) -> Channel:
    """Open a session with the server at `address`, trying for `timeout` seconds while it is not up yet.

    `link` emulates a slower one; a server that gives no sign of life for `silence` seconds is gone.
    Raises TransportError in one line, at once where waiting would not help: a certificate that is not trusted or not
    for this host, a server that speaks plain text or another version.
    """
    require_protection(address, protected=tls is not None, insecure=insecure)
    credentials = None if tls is None else client_credentials(tls)
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout
    pause = FIRST_PAUSE
    while True:
        stream = ClientStream(address, credentials, silence=silence)
        failure = await stream.open(min(max(deadline - clock(), 0.0), ATTEMPT))
        if failure is None:
            return StreamChannel(shape(stream, link), limits=limits or ChannelLimits())
        if tls is None and not failure.final and await expects_tls(address):
            advice = "give the authority that signed its certificate (--ca, ClientTLS)"
            failure = Failure(f"the server there expects TLS, but this client speaks plain text: {advice}", final=True)
        if failure.final or clock() + pause >= deadline:
            if failure.final:
                raise TransportError(f"cannot connect to {address}: {failure.reason}")
            hint = await _hint(address, tls)
            raise TransportError(f"cannot connect to {address} within {timeout:g} s: {failure.reason}{hint}")
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


async def _hint(address: str, tls: ClientTLS | None) -> str:
    """What may be wrong where something listens, but takes no session."""
    if not await listens(address):
        return ""
    if tls is None:
        return "; something listens there: is it another service?"
    return "; something listens there: does it ask for a client's certificate, or is it another service?"


def server_credentials(tls: ServerTLS) -> grpc.ServerCredentials:
    """gRPC's credentials for a server. Raises TransportError naming the file that is wrong."""
    pair = load_pair(tls.certificate, tls.key)
    authority = None if tls.client_ca is None else load_authority(tls.client_ca)
    return grpc.ssl_server_credentials(
        [(pair.key, pair.certificate)], root_certificates=authority, require_client_auth=authority is not None
    )


def client_credentials(tls: ClientTLS) -> grpc.ChannelCredentials:
    """gRPC's credentials for a client. Raises TransportError naming the file that is wrong."""
    authority = load_authority(tls.ca)
    if tls.certificate is None and tls.key is None:
        return grpc.ssl_channel_credentials(authority)
    if tls.certificate is None or tls.key is None:
        raise TransportError("a client's certificate and key belong together: give both or neither")
    pair = load_pair(tls.certificate, tls.key)
    return grpc.ssl_channel_credentials(authority, pair.key, pair.certificate)
