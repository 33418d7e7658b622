"""The standard health service of gRPC (grpc.health.v1): whether a server takes sessions, for probes of every kind.

Asking is open to whoever the transport lets connect: it tells nothing but the status. Few may wait for changes at a
time, and none of them can hold up the server: a status changes without waiting for those who are told.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from splitfl.transport.address import is_loopback, listens, parse_address, require_protection
from splitfl.transport.base import TransportError
from splitfl.transport.grpc_stream import SILENCE, VERSION, _failure, options
from splitfl.transport.plain_text import expects_tls
from splitfl.transport.tls import ClientTLS

Status = health_pb2.HealthCheckResponse.ServingStatus

SERVICES = ("", f"{VERSION}.Session")
"""Services that have a status: the server as a whole, and its sessions. It is the same one."""

WATCHERS = 64
"""Peers that may wait for a change at the same time."""


class Health:
    """The health of one gRPC server, to which it adds its service; not serving until told otherwise.

    The servicer that comes with grpc_health holds a lock while it writes to a watcher, so that one slow reader would
    keep the server from draining, and it forgets all watchers of a service when one of them leaves.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._status: int = Status.NOT_SERVING
        self._closed = False
        self._changed = asyncio.Event()
        self._watchers = 0
        health_pb2_grpc.add_HealthServicer_to_server(self, server)

    def serving(self) -> None:
        """Sessions are taken."""
        self._change(Status.SERVING)

    def drain(self) -> None:
        """No new sessions, please: balancers and probes are told while the sockets are still open."""
        self._change(Status.NOT_SERVING)

    def close(self) -> None:
        """Tell the watchers for the last time, and let their calls end, or they would hold up the server's end."""
        self._closed = True
        self.drain()

    def _change(self, status: int) -> None:
        self._status = status
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802  the contract's name
        """The status now; NOT_FOUND for a service that is not here."""
        if request.service not in SERVICES:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no such service here: there is {SERVICES[1]}")
        return health_pb2.HealthCheckResponse(status=self._status)

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802
        """The status now and after every change, until either end is done."""
        if self._watchers >= WATCHERS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{WATCHERS} watch already, as many as may")
        self._watchers += 1
        try:
            await self._tell(context, known=request.service in SERVICES)
        finally:
            self._watchers -= 1

    async def _tell(self, context: Any, *, known: bool) -> None:
        told: int | None = None
        while True:
            changed, over = self._changed, self._closed
            status = self._status if known else Status.SERVICE_UNKNOWN
            if status != told:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                told = status
            if over:
                return
            await changed.wait()


async def check_health(
    address: str,
    *,
    tls: ClientTLS | None = None,
    insecure: bool = False,
    timeout: float = 5.0,
    service: str = "",
) -> str:
    """The status of the server at `address` within `timeout` seconds: "SERVING", "NOT_SERVING" or "UNKNOWN".

    Raises TransportError in one line where there is no answer: nobody listens, the certificate is not trusted, no
    health service is there, or it does not know `service`.
    """
    require_protection(address, protected=tls is not None, insecure=insecure)
    async with _channel(address, tls) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            reason = await _reason(error, address, tls=tls, timeout=timeout, service=service)
            raise TransportError(f"no health of {address}: {reason}") from None
    known = answer.status in Status.values()
    return Status.Name(answer.status) if known else "UNKNOWN"


def _channel(address: str, tls: ClientTLS | None) -> grpc.aio.Channel:
    from splitfl.transport.grpc import client_credentials  # which imports this file

    chosen = options(SILENCE)
    if is_loopback(parse_address(address)[0]):
        chosen.append(("grpc.enable_http_proxy", 0))
    if tls is None:
        return grpc.aio.insecure_channel(address, options=chosen)
    return grpc.aio.secure_channel(address, client_credentials(tls), options=chosen)


async def _reason(
    error: grpc.aio.AioRpcError, address: str, *, tls: ClientTLS | None, timeout: float, service: str
) -> str:
    """Why there was no answer, and what may be wrong."""
    code = error.code()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {timeout:g} s"
    if code is grpc.StatusCode.NOT_FOUND:
        return f"it has no service {service!r}, expected '' or {SERVICES[1]!r}"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return "what listens there has no health service: is it another server, or an earlier splitfl?"
    failure = _failure(code, error.details())
    if failure.final or not await listens(address):
        return failure.reason
    if tls is not None:
        question = "does it ask for a client's certificate, or is it another service?"
        return f"{failure.reason}; something listens there: {question}"
    if await expects_tls(address):
        return "the server there expects TLS, but this check speaks plain text: give its authority (--ca, ClientTLS)"
    return f"{failure.reason}; something listens there: is it another service?"
