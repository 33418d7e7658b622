"""Plain text at a port that expects TLS: both ends learn what is wrong."""

from __future__ import annotations

import asyncio

import pytest

from splitfl.api.loop import run_blocking
from splitfl.transport import ServerTLS, TransportError, connect, make_certificates, serve
from splitfl.transport.messages import Refuse
from splitfl.transport.plain_text import PLAIN_TEXT, expects_tls


def run(work):
    return run_blocking(asyncio.wait_for(work, 30))


def test_both_ends_are_told(tmp_path):
    heard = []

    async def session(channel):
        heard.append(await channel.hear(timeout=5, what="a first word"))

    async def work():
        server = await serve("127.0.0.1:0", session, tls=make_certificates(tmp_path, ["example.org"]))
        try:
            with pytest.raises(TransportError, match=r"expects TLS, but this client speaks plain text: give .*--ca"):
                await connect(server.address, timeout=20)
        finally:
            await server.stop(1)

    run(work())
    assert heard == [Refuse(PLAIN_TEXT, "a client came in plain text")]


def test_with_client_certificates_the_client_is_told_at_least(tmp_path):
    made = make_certificates(tmp_path, ["127.0.0.1"])
    tls = ServerTLS(certificate=made.certificate, key=made.key, client_ca=tmp_path / "ca.pem")

    async def work():
        server = await serve("127.0.0.1:0", lambda channel: channel.wait_closed(), tls=tls)
        try:
            with pytest.raises(TransportError, match="expects TLS"):
                await connect(server.address, timeout=20)
        finally:
            await server.stop(1)

    run(work())


def test_what_speaks_no_tls_is_not_taken_for_it():
    async def work():
        server = await serve("127.0.0.1:0", lambda channel: channel.wait_closed())
        try:
            assert not await expects_tls(server.address)
        finally:
            await server.stop(1)
        assert not await expects_tls(server.address)

    run(work())
