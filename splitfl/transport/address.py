"""Network addresses as a user writes them, and whether an address stays on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import re
import socket

from splitfl.transport.base import TransportError

_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<host>[^:\[\]/\s]+)):(?P<port>[0-9]{1,5})")


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[ipv6]:port`. Raises TransportError saying what is accepted."""
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match["port"]) > 65535:
        raise TransportError(f"address {address!r}: expected host:port, such as example.org:8443 or [::1]:8443")
    return match["six"] or match["host"], int(match["port"])


def is_loopback(host: str) -> bool:
    """Whether `host` can only be this machine: `localhost`, 127.0.0.0/8 or ::1. Names are not looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def require_protection(address: str, *, protected: bool, insecure: bool) -> None:
    """Raise TransportError unless the connection is encrypted, stays on this machine, or may be plain text."""
    host, _ = parse_address(address)
    if not protected and not insecure and not is_loopback(host):
        raise TransportError(
            f"address {address!r} is outside this machine and TLS is not set up: give certificates, or allow plain "
            "text with insecure = true (--insecure)"
        )


def require_secrecy(address: str, *, secret: bool, protected: bool) -> None:
    """Raise TransportError where a secret would leave this machine in plain text, whatever else is allowed."""
    host, _ = parse_address(address)
    if secret and not protected and not is_loopback(host):
        raise TransportError(
            f"a token for {address!r} would travel in plain text, for anybody to read: give the authority that signed "
            "the server's certificate (--ca), or leave the token out"
        )


def require_free(address: str) -> None:
    """Raise TransportError where a server cannot listen at `address`, with the system's own reason."""
    host, port = parse_address(address)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # As gRPC does, so that a port whose last connections are still fading away counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen(1)
    except OSError as error:
        advice = "stop the other program, or choose another port" if error.errno == errno.EADDRINUSE else "check it"
        raise TransportError(f"cannot listen at {address}: {error.strerror or error}; {advice}") from None


async def listens(address: str, *, timeout: float = 1.0) -> bool:
    """Whether anything accepts TCP connections at `address`."""
    host, port = parse_address(address)
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(timeout):
            _, writer = await asyncio.open_connection(host, port)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return True
    return False
