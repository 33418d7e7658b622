"""Where Prometheus fetches the metrics: a small HTTP server on a thread of its own."""

from __future__ import annotations

import logging
import socket
import socketserver
import threading
from http.server import HTTPServer
from typing import TYPE_CHECKING, Any

from splitfl.monitor.metrics import MonitorError, prometheus_client
from splitfl.transport.address import parse_address

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

SCRAPES = 8
"""Requests that are answered at the same time; a further one is hung up on."""

PATIENCE = 10.0
"""Seconds that a peer may take to ask, and to take the answer."""

_LOGGER = logging.getLogger(__name__)


class Endpoint:
    """Answers every GET with the metrics of one registry, until it is closed. Made by `expose`."""

    def __init__(self, server: _Server, host: str) -> None:
        self.port: int = server.server_address[1]
        self.address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        self.url = f"http://{self.address}/metrics"
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, args=(0.2,), daemon=True, name="metrics")
        self._thread.start()

    def close(self) -> None:
        """Listen no more. Closing twice is fine."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=PATIENCE)


def expose(registry: CollectorRegistry, address: str = "127.0.0.1:0") -> Endpoint:
    """Serve the metrics of `registry` over plain HTTP at `address` (`host:port`, port 0 for any).

    There is no password: beyond loopback, whoever reaches the port reads the metrics, the clients' names included.
    Raises TransportError for an address that is none, MonitorError where it cannot be listened at.
    """
    prometheus = prometheus_client()
    host, port = parse_address(address)
    handler = prometheus.exposition.MetricsHandler.factory(registry)
    handler.timeout = PATIENCE
    try:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        server = _Server(family, place, handler)
    except OSError as error:
        reason = error.strerror or error
        raise MonitorError(f"metrics: cannot listen at {address}: {reason}; choose another HOST:PORT") from None
    return Endpoint(server, host)


class _Server(socketserver.ThreadingMixIn, HTTPServer):
    """A thread for each request, of which there are a few at most."""

    daemon_threads = True

    def __init__(self, family: int, place: Any, handler: Any) -> None:
        self.address_family = family
        self._room = threading.Semaphore(SCRAPES)
        super().__init__(place, handler)

    def server_bind(self) -> None:
        """Bind; the base class would also ask the network for this machine's name, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a new thread, or hang up where too many are being answered."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one request, and make room for the next."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that hangs up is nobody's fault: no traceback on stderr, as the base class would print."""
        del request
        _LOGGER.debug("a request for metrics from %s failed", client_address[0], exc_info=True)
