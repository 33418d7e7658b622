"""The standard health service: statuses, watchers that misbehave, and what a probe is told where there is no answer."""

import asyncio
import contextlib
import socket
import struct
import subprocess
import sys
import time

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from splitfl.transport import ClientTLS, ServerTLS, TransportError, connect, serve
from splitfl.transport.grpc import client_credentials, server_credentials
from splitfl.transport.health import SERVICES, WATCHERS, Health, check_health
from splitfl.transport.tls import make_certificates, make_client_certificate

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@contextlib.asynccontextmanager
async def healthy(tls=None):
    """A server with nothing but its health: the address, and the health."""
    server = grpc.aio.server()
    health = Health(server)
    if tls is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", server_credentials(tls))
    await server.start()
    health.serving()
    try:
        yield f"127.0.0.1:{port}", health
    finally:
        health.close()
        await server.stop(1)


@contextlib.asynccontextmanager
async def watching(address, service="", *, tls=None):
    """A watcher: reads one status after the other."""
    make = (
        grpc.aio.insecure_channel(address) if tls is None else grpc.aio.secure_channel(address, client_credentials(tls))
    )
    async with make as channel:
        call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=service))

        async def status():
            answer = await asyncio.wait_for(call.read(), 10)
            return answer if answer is grpc.aio.EOF else answer.status

        yield status


@pytest.fixture(scope="module")
def mutual(tmp_path_factory):
    """Both sides of TLS in which the client shows a certificate, too."""
    folder = tmp_path_factory.mktemp("mutual")
    pair = make_certificates(folder, ["localhost", "127.0.0.1"])
    server = ServerTLS(certificate=pair.certificate, key=pair.key, client_ca=folder / "ca.pem")
    return server, make_client_certificate(folder, "probe")


@pytest.mark.parametrize("kind", ["plain", "tls", "mutual"])
async def test_the_status_changes_and_watchers_are_told(kind, certificates, mutual):
    server_tls, client_tls = {"plain": (None, None), "tls": certificates, "mutual": mutual}[kind]
    async with healthy(server_tls) as (address, health), watching(address, tls=client_tls) as status:
        for service in SERVICES:
            assert await check_health(address, tls=client_tls, service=service) == "SERVING"
        assert await status() == SERVING
        health.drain()
        assert await status() == NOT_SERVING
        assert await check_health(address, tls=client_tls) == "NOT_SERVING"
        health.serving()
        assert await status() == SERVING
        health.close()
        assert await status() == NOT_SERVING
        assert await status() is grpc.aio.EOF


async def test_a_server_of_sessions_is_healthy_until_it_drains(certificates):
    async def session(channel):
        await channel.wait_closed()

    server_tls, client_tls = certificates
    server = await serve("127.0.0.1:0", session, tls=server_tls)
    channel = await connect(server.address, tls=client_tls, timeout=10)
    async with watching(server.address, tls=client_tls) as status:
        assert await status() == SERVING
        server.drain()
        assert await status() == NOT_SERVING
        assert await check_health(server.address, tls=client_tls) == "NOT_SERVING"
        assert not channel.closed
        start = time.monotonic()
        await asyncio.gather(server.stop(5), channel.wait_closed())
        assert time.monotonic() - start < 4  # a watcher does not hold it up
        assert await status() is grpc.aio.EOF
    await channel.close()


async def test_before_it_serves_it_is_not_serving():
    server = grpc.aio.server()
    Health(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    assert await check_health(f"127.0.0.1:{port}") == "NOT_SERVING"
    await server.stop(0)


async def test_a_watcher_that_leaves_takes_no_other_with_it():
    async with healthy() as (address, health), watching(address) as stays:
        assert await stays() == SERVING
        async with watching(address) as leaves:
            assert await leaves() == SERVING
        await asyncio.sleep(0.1)
        health.drain()
        assert await stays() == NOT_SERVING


async def test_services_that_are_not_here():
    async with healthy() as (address, health):
        with pytest.raises(TransportError, match=r"it has no service 'other', expected '' or 'splitfl.v1.Session'"):
            await check_health(address, service="other")
        async with watching(address, "other") as status:
            assert await status() == SERVICE_UNKNOWN
            health.close()
            assert await status() is grpc.aio.EOF


async def test_watchers_are_counted():
    async with healthy() as (address, health), contextlib.AsyncExitStack() as stack:
        for _ in range(WATCHERS):
            status = await stack.enter_async_context(watching(address))
            assert await status() == SERVING
        async with watching(address) as one_more:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await one_more()
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await check_health(address) == "SERVING"
        await stack.aclose()
        await asyncio.sleep(0.2)
        async with watching(address) as status:
            assert await status() == SERVING
            assert health._watchers == 1


def http2(kind, flags, stream, payload):
    """One frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def watch_without_window():
    """A call of Watch by a client that lets the server send nothing at all (RFC 9113, 6.5.2: a window of 0 bytes)."""
    headers = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": b"/grpc.health.v1.Health/Watch",
        b":authority": b"localhost",
        b"te": b"trailers",
        b"content-type": b"application/grpc",
    }
    block = b"".join(b"\x10" + bytes([len(name)]) + name + bytes([len(text)]) + text for name, text in headers.items())
    settings = http2(4, 0, 0, struct.pack(">HI", 4, 0))
    empty_request = http2(0, 1, 1, bytes(5))
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + http2(1, 4, 1, block) + empty_request


async def test_a_watcher_that_reads_nothing_holds_nobody_up():
    start = time.monotonic()
    async with healthy() as (address, health), watching(address) as status:
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(watch_without_window())
        await asyncio.sleep(0.3)
        assert b"application/grpc" in await reader.read(4096)  # the call has begun
        assert await status() == SERVING
        assert health._watchers == 2
        health.drain()
        assert await status() == NOT_SERVING
        assert await check_health(address) == "NOT_SERVING"
    writer.close()
    await asyncio.sleep(0.05)
    assert time.monotonic() - start < 8


async def no_health(address, **options):
    """The one line with which a check fails."""
    start = time.monotonic()
    with pytest.raises(TransportError) as caught:
        await check_health(address, **options)
    assert time.monotonic() - start < options.get("timeout", 5) + 3
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_nobody_listens():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    line = await no_health(address)
    assert line.startswith(f"no health of {address}: the connection failed: ")
    assert "refused" in line
    assert "something listens" not in line


async def test_certificates_that_do_not_fit(certificates, mutual, tmp_path):
    server_tls, client_tls = certificates
    make_certificates(tmp_path, ["localhost"])
    async with healthy(server_tls) as (address, _), healthy(mutual[0]) as (guarded, _), healthy() as (plain, _):
        stranger = await no_health(address, tls=ClientTLS(ca=tmp_path / "ca.pem"))
        assert "not signed by the authority that this client trusts" in stranger
        assert "the server there expects TLS, but this check speaks plain text" in await no_health(address)
        assert "does not use TLS, but this client does" in await no_health(plain, tls=client_tls)
        unknown = ClientTLS(ca=mutual[1].ca)
        assert "does it ask for a client's certificate" in await no_health(guarded, tls=unknown)
        assert await check_health(guarded, tls=mutual[1]) == "SERVING"


async def test_a_server_without_a_health_service():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    assert "has no health service" in await no_health(f"127.0.0.1:{port}")
    await server.stop(0)


async def test_something_else_listens():
    peers = []

    async def answer(reader, writer):
        peers.append(writer)
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async def silence(reader, writer):
        peers.append(writer)

    for behavior, expected in ((answer, "is it another service?"), (silence, "no answer within 1 s")):
        other = await asyncio.start_server(behavior, "127.0.0.1", 0)
        line = await no_health(f"127.0.0.1:{other.sockets[0].getsockname()[1]}", timeout=1)
        assert expected in line
        other.close()
        for peer in peers:
            peer.transport.abort()
        await asyncio.sleep(0.05)  # the connections end


async def test_addresses_and_plain_text_are_checked_first():
    with pytest.raises(TransportError, match="expected host:port"):
        await check_health("localhost")
    with pytest.raises(TransportError, match="outside this machine and TLS is not set up"):
        await check_health("example.org:9070")


@pytest.mark.slow
def test_the_generated_code_gives_no_warning():
    code = "from grpc_health.v1 import health_pb2, health_pb2_grpc"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)
