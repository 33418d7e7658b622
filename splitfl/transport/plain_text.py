"""A client that speaks plain text to a server that expects TLS: both are told, where they would see a closed socket.

The server's library does not say why a handshake failed, so the client tells it: over TLS, without knowing whom it
talks to, and nothing but that it came in plain text.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl

import grpc
import grpc.aio
from cryptography import x509

from splitfl.transport.address import parse_address
from splitfl.transport.envelope import encode_control
from splitfl.transport.grpc_stream import METHOD
from splitfl.transport.messages import Refuse

PLAIN_TEXT = "plain-text"
"""Code of the only word that such a client says."""

PATIENCE = 2.0
"""Seconds for either connection."""


async def expects_tls(address: str) -> bool:
    """Whether the server at `address` speaks TLS. If it does, it is told that somebody came in plain text."""
    certificate = await _certificate(address)
    if certificate is None:
        return False
    with contextlib.suppress(Exception):  # that it listens to this at all is a courtesy
        async with asyncio.timeout(PATIENCE):
            await _tell(address, certificate)
    return True


async def _certificate(address: str) -> bytes | None:
    """The certificate that is shown at `address`, unverified; None where no TLS is spoken."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, port = parse_address(address)
    try:
        async with asyncio.timeout(PATIENCE):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except (OSError, TimeoutError):
        return None
    shown: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return shown


async def _tell(address: str, certificate: bytes) -> None:
    """Say that this client came in plain text, over a connection that trusts whoever is there."""
    names = x509.load_der_x509_certificate(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    name = next(str(each.value) for each in names.value)
    trust = grpc.ssl_channel_credentials(ssl.DER_cert_to_PEM_cert(certificate).encode())
    options = [("grpc.ssl_target_name_override", name), ("grpc.enable_http_proxy", 0)]
    async with grpc.aio.secure_channel(address, trust, options=options) as channel:
        call = channel.stream_stream(METHOD)()
        await call.write(encode_control(Refuse(PLAIN_TEXT, "a client came in plain text")))
        await call.read()  # the server's answer: it has heard
