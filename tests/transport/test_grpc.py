"""What is special about gRPC: certificates, ports, versions, long silences, large messages, clean ends."""

import asyncio
import logging
import os
import socket
import time
from pathlib import Path

import grpc
import grpc.aio
import pytest

from splitfl.errors import SplitflError
from splitfl.transport import ChannelClosed, ClientTLS, ServerTLS, TransportError, connect, serve
from splitfl.transport.messages import Finish, Hello
from splitfl.transport.part import PART_SIZE
from splitfl.transport.tls import make_certificates, make_client_certificate


async def idle(channel):
    await channel.wait_closed()


async def refusal(address, *, within=5.0, timeout=2.0, **options):
    """The one line with which a connection is refused."""
    start = time.monotonic()
    with pytest.raises(TransportError) as caught:
        await connect(address, timeout=timeout, **options)
    assert time.monotonic() - start < within
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_a_port_in_use_is_refused():
    server = await serve("127.0.0.1:0", idle)
    with pytest.raises(TransportError, match=f"cannot listen at 127.0.0.1:{server.port}: Address already in use"):
        await serve(f"127.0.0.1:{server.port}", idle)
    await server.stop(1)
    again = await serve(f"127.0.0.1:{server.port}", idle)
    await again.stop(1)


async def test_an_address_of_another_machine_is_refused():
    with pytest.raises(TransportError, match=r"cannot listen at 192\.0\.2\.1:1024"):
        await serve("192.0.2.1:1024", idle, insecure=True)


@pytest.mark.parametrize("address", ["localhost", "localhost:", ":80", "host:123456", "http://host:1", "::1:80", ""])
async def test_addresses_that_are_none_are_refused(address):
    with pytest.raises(TransportError, match="expected host:port"):
        await serve(address, idle)
    with pytest.raises(TransportError, match="expected host:port"):
        await connect(address, timeout=1)


@pytest.mark.parametrize(
    "address", ["0.0.0.0:0", "example.org:8443", "10.0.0.1:1", "[::]:0", "127.0.0.1.example.org:1"]
)
async def test_plain_text_outside_this_machine_needs_consent(address):
    with pytest.raises(TransportError, match="outside this machine and TLS is not set up"):
        await serve(address, idle)
    with pytest.raises(TransportError, match="outside this machine and TLS is not set up"):
        await connect(address, timeout=1)


async def test_plain_text_with_consent():
    server = await serve("0.0.0.0:0", idle, insecure=True)
    channel = await connect(f"127.0.0.1:{server.port}", timeout=5)
    await channel.close()
    await server.stop(1)


async def test_certificates_that_do_not_fit(certificates, tmp_path):
    server_tls, client_tls = certificates
    make_certificates(tmp_path, ["localhost"])
    server = await serve("127.0.0.1:0", idle, tls=server_tls)
    other_name = await serve("127.0.0.1:0", idle, tls=make_certificates(tmp_path / "other", ["example.org"]))
    plain = await serve("127.0.0.1:0", idle)
    line = await refusal(server.address, tls=ClientTLS(ca=tmp_path / "ca.pem"), timeout=30)
    assert "not signed by the authority" in line
    line = await refusal(plain.address, tls=client_tls, timeout=30)
    assert "does not use TLS" in line
    line = await refusal(server.address, timeout=0.5)
    assert "the server there expects TLS, but this client speaks plain text" in line
    line = await refusal(other_name.address, tls=ClientTLS(ca=tmp_path / "other" / "ca.pem"), timeout=30)
    assert "not for this host name" in line
    for each in (server, plain, other_name):
        await each.stop(1)


async def test_mutual_tls(certificates):
    server_tls, client_tls = certificates
    directory = client_tls.ca.parent
    both = ServerTLS(certificate=server_tls.certificate, key=server_tls.key, client_ca=client_tls.ca)
    server = await serve("127.0.0.1:0", idle, tls=both)
    channel = await connect(server.address, tls=make_client_certificate(directory, "phone"), timeout=5)
    await channel.close()
    line = await refusal(server.address, tls=client_tls, timeout=0.5)
    assert "does it ask for a client's certificate" in line
    await server.stop(1)


async def test_nobody_there_is_told_in_time():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        line = await refusal(address, timeout=0.5, within=3)
    assert "within 0.5 s" in line
    assert "Connection refused" in line


async def test_something_that_never_answers_is_told_in_time():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        line = await refusal(f"127.0.0.1:{silent.getsockname()[1]}", timeout=0.5, within=5)
    assert "within 0.5 s" in line


async def test_a_client_may_start_before_its_server():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    connecting = asyncio.create_task(connect(address, timeout=20))
    await asyncio.sleep(0.3)
    server = await serve(address, idle)
    channel = await connecting
    await channel.close()
    await server.stop(1)


async def test_other_versions_are_told_so():
    server = await serve("127.0.0.1:0", idle)
    async with grpc.aio.insecure_channel(server.address) as old:
        call = old.stream_stream("/splitfl.v0.Session/Open")()
        assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "this server speaks splitfl.v1" in await call.details()
        call = old.unary_unary("/somebody.else/Call")(b"")
        with pytest.raises(grpc.aio.AioRpcError, match="UNIMPLEMENTED"):
            await call
    await server.stop(1)


async def test_a_server_of_something_else_is_told_so():
    other = grpc.aio.server()
    port = other.add_insecure_port("127.0.0.1:0")
    await other.start()
    line = await refusal(f"127.0.0.1:{port}", timeout=20)
    assert "does not speak splitfl.v1" in line
    await other.stop(0)


async def test_the_server_tells_why_it_stopped(grpc_pair):
    async with grpc_pair() as (near, far):
        await far.close("the disk is full")
        await near.wait_closed()
        assert near.reason == "the server ended the session: the disk is full"


async def test_a_failing_session_ends_the_channel_and_is_logged(caplog):
    async def fail(channel):
        raise ZeroDivisionError("a bug")

    async def complain(channel):
        raise SplitflError("no room")

    for session, reason, logged in ((fail, "the server failed", True), (complain, "no room", False)):
        caplog.clear()
        server = await serve("127.0.0.1:0", session)
        channel = await connect(server.address, timeout=5)
        await channel.wait_closed()
        assert reason in channel.reason
        assert any("a bug" in record.exc_text for record in caplog.records if record.exc_text) is logged
        await channel.close()
        await server.stop(1)


async def test_stopping_a_server_ends_its_sessions_in_time():
    ended = []

    async def stubborn(channel):
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(channel.reason)

    server = await serve("127.0.0.1:0", stubborn)
    channels = [await connect(server.address, timeout=5) for _ in range(3)]
    await asyncio.sleep(0.05)
    start = time.monotonic()
    await server.stop(0.5)
    assert time.monotonic() - start < 5
    assert ended == ["the server stopped"] * 3
    for channel in channels:
        await channel.wait_closed()
        await channel.close()


async def test_a_client_that_vanishes_is_noticed():
    lost = asyncio.get_running_loop().create_future()

    async def session(channel):
        try:
            await channel.hear(timeout=60, what="anything")
        except ChannelClosed as closed:
            lost.set_result(str(closed))

    server = await serve("127.0.0.1:0", session)
    raw = grpc.aio.insecure_channel(server.address)
    call = raw.stream_stream("/splitfl.v1.Session/Open")()
    await call.initial_metadata()
    call.cancel()
    await raw.close()
    assert "client" in await asyncio.wait_for(lost, 5)
    await server.stop(1)


@pytest.mark.parametrize("noise", [b"", b"\xff" * 50, b"\x80\x04K\x01.", b"\x3a\x04\x18\x01\x40\x05"])
async def test_noise_is_refused_and_leaves_the_server_up(noise):
    server = await serve("127.0.0.1:0", idle)
    async with grpc.aio.insecure_channel(server.address) as raw:
        call = raw.stream_stream("/splitfl.v1.Session/Open")()
        await call.write(noise)
        assert b"protocol" in await asyncio.wait_for(call.read(), 5)
        assert await asyncio.wait_for(call.code(), 5) is grpc.StatusCode.OK
    channel = await connect(server.address, timeout=5)
    await channel.close()
    await server.stop(1)


async def test_a_message_beyond_the_limit_ends_the_stream():
    server = await serve("127.0.0.1:0", idle)
    async with grpc.aio.insecure_channel(server.address, options=[("grpc.max_send_message_length", -1)]) as raw:
        call = raw.stream_stream("/splitfl.v1.Session/Open")()
        await call.initial_metadata()
        await call.write(bytes(20 << 20))
        assert await asyncio.wait_for(call.code(), 10) is not None
    await server.stop(1)


async def test_pings_in_silence_are_no_fault(certificates):
    """A client of another make that pings every 50 ms through 2 s of silence is still heard."""
    server_tls, client_tls = certificates
    heard = asyncio.get_running_loop().create_future()

    async def session(channel):
        heard.set_result(await channel.hear(timeout=30, what="a word after the silence"))

    server = await serve("127.0.0.1:0", session, tls=server_tls)
    await silence_then_speak(server.address, client_tls, ping_ms=50, silence=2.0)
    assert await heard == Finish("")
    await server.stop(1)


@pytest.mark.slow
async def test_a_minute_of_silence(certificates):
    """Once with our own client, once with one that pings every 5 s."""
    server_tls, client_tls = certificates
    heard = []

    async def session(channel):
        heard.append(await channel.hear(timeout=90, what="a word after the silence"))

    server = await serve("127.0.0.1:0", session, tls=server_tls)
    ours = await connect(server.address, tls=client_tls, timeout=5)
    await silence_then_speak(server.address, client_tls, ping_ms=5000, silence=60.0)
    await ours.tell(Finish(""))
    await ours.wait_closed()
    assert heard == [Finish(""), Finish("")]
    await ours.close()
    await server.stop(1)


async def silence_then_speak(address, tls, *, ping_ms, silence):
    options = [
        ("grpc.keepalive_time_ms", ping_ms),
        ("grpc.keepalive_timeout_ms", 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_time_between_pings_ms", ping_ms),
    ]
    credentials = grpc.ssl_channel_credentials(tls.ca.read_bytes())
    async with grpc.aio.secure_channel(address, credentials, options=options) as raw:
        call = raw.stream_stream("/splitfl.v1.Session/Open")()
        await call.initial_metadata()
        await asyncio.sleep(silence)
        await call.write(b"\x32\x00")
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("size", [600 * 10**6, 2200 * 10**6], ids=["600 MB", "beyond 2 GiB"])
async def test_a_bundle_larger_than_any_message_of_grpc(certificates, act, size):
    server_tls, client_tls = certificates

    async def session(channel):
        payload = await channel.receive(act(), timeout=200)
        assert len(payload) == size
        assert payload[-PART_SIZE:] == tail
        await channel.tell(Finish("got it"))
        await channel.wait_closed()

    tail = os.urandom(PART_SIZE)
    server = await serve("127.0.0.1:0", session, tls=server_tls)
    channel = await connect(server.address, tls=client_tls, timeout=5)
    start = time.monotonic()
    sending = asyncio.create_task(channel.send(act(), [bytes(size - PART_SIZE), tail]))
    await asyncio.sleep(0.1)
    await channel.tell(Hello(1, "c", "{}", 1, "not stuck"))
    assert not sending.done()
    await sending
    assert await channel.hear(timeout=60, what="the receipt") == Finish("got it")
    logging.getLogger(__name__).info("%d bytes over TLS in %.1f s", size, time.monotonic() - start)
    await channel.close()
    await server.stop(1)


@pytest.mark.slow
async def test_memory_stays_flat_over_rounds(grpc_pair, act):
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    async with grpc_pair() as (near, far):
        sizes = []
        for round_number in range(60):
            for micro_batch in range(4):
                address = act(micro_batch, round_number=round_number)
                _, payload = await asyncio.gather(
                    near.send(address, [bytes(3 << 20)]), far.receive(address, timeout=10)
                )
                del payload
            sizes.append(resident())
    assert sizes[-1] - sizes[9] < 30 << 20
