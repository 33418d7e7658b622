"""Coroutine tests run in an event loop of their own, and pairs of connected channels of every kind."""

import asyncio
import contextlib
import inspect

import pytest

from splitfl.schedule.instruction import Kind, Value
from splitfl.transport import ClientTLS, Way, connect, memory_pair, serve
from splitfl.transport.messages import Address
from splitfl.transport.shaped import Link
from splitfl.transport.tls import make_certificates


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine; whatever it leaves running fails it."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def test():
        await asyncio.wait_for(pyfuncitem.obj(**wanted), 100)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        names = [task.get_coro().__qualname__ for task in left]
        assert not [name for name in names if name.startswith(("StreamChannel", "ShapedStream", "Server"))], names

    asyncio.run(test())
    return True


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """The server's and the client's side of TLS on loopback."""
    directory = tmp_path_factory.mktemp("certificates")
    server = make_certificates(directory, ["localhost", "127.0.0.1"])
    return server, ClientTLS(ca=directory / "ca.pem")


@pytest.fixture
def act():
    """Addresses of activations."""

    def make(micro_batch=0, *, round_number=1, step=0):
        return Address(round_number, step, Value(Kind.ACT, 0, 0, micro_batch))

    return make


@contextlib.asynccontextmanager
async def memory_channels(**options):
    near, far = memory_pair(**options)
    try:
        yield near, far
    finally:
        await asyncio.gather(near.close(), far.close())


@contextlib.asynccontextmanager
async def grpc_channels(certificates=None, **options):
    server_tls, client_tls = certificates or (None, None)
    opened = asyncio.get_running_loop().create_future()

    async def session(channel):
        opened.set_result(channel)
        await channel.wait_closed()

    server = await serve("127.0.0.1:0", session, tls=server_tls, limits=options.get("limits"))
    try:
        near = await connect(server.address, tls=client_tls, timeout=10, **options)
        try:
            yield near, await opened
        finally:
            await near.close()
    finally:
        await server.stop(1)


@pytest.fixture(params=["memory", "shaped", "grpc", "tls"])
def channels(request, certificates):
    """A context manager that connects a client's channel and a server's: `async with channels() as (near, far)`."""
    if request.param == "memory":
        return memory_channels
    if request.param == "shaped":
        way = Way(rate=1e9, delay=0.001)
        return lambda **options: memory_channels(link=Link(up=way, down=way), **options)
    if request.param == "grpc":
        return grpc_channels
    return lambda **options: grpc_channels(certificates, **options)


@pytest.fixture
def grpc_pair():
    """Connected channels over plain gRPC on loopback."""
    return grpc_channels


@pytest.fixture
def memory():
    """Connected channels in memory."""
    return memory_channels
