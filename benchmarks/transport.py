"""A message there and back: our channel beside a bare gRPC stream and beside gRPC with protobuf's classes.

    python benchmarks/transport.py --mebibytes 1 --rounds 200

The server is a process of its own, on loopback, without TLS. The contenders take turns, so that whatever else the
machine does touches all of them; figures are medians.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable
from concurrent import futures
from multiprocessing.connection import Connection

import grpc
import grpc.aio
import torch

from splitfl.codecs import frame
from splitfl.schedule.instruction import Kind, Value
from splitfl.transport import Channel, connect, proto, serve
from splitfl.transport.messages import Address

LARGEST = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
TIMEOUT = 60.0


def up(index: int) -> Address:
    """The address of the message to the server; rounds count up, as in training."""
    return Address(index, 0, Value(Kind.ACT, 0, 0, 0))


def down(index: int) -> Address:
    """The address of the message back."""
    return Address(index, 0, Value(Kind.GRAD, 0, 0, 0))


async def echo_bytes(channel: Channel) -> None:
    """Our server, without tensors."""
    index = 0
    while True:
        payload = await channel.receive(up(index), timeout=TIMEOUT)
        await channel.send(down(index), [payload])
        index += 1


async def echo_tensors(channel: Channel) -> None:
    """Our server: bytes to tensors, and tensors to bytes again."""
    index = 0
    while True:
        tensors = frame.decode(await channel.receive(up(index), timeout=TIMEOUT))
        await channel.send(down(index), frame.encode(tensors))
        index += 1


async def bare_echo(requests: object, context: grpc.aio.ServicerContext) -> None:
    """The least that gRPC can do: raw bytes, one stream."""
    del requests
    while (message := await context.read()) is not grpc.aio.EOF:
        await context.write(message)


def class_echo(requests: object, context: grpc.ServicerContext) -> object:
    """What most programs do: blocking calls, and the classes that protoc generates."""
    del context
    for request in requests:
        tensor = torch.frombuffer(bytearray(request.tensors[0].payload), dtype=torch.float32)
        yield as_message(tensor)


def as_message(tensor: torch.Tensor) -> proto.Frame:
    """A tensor in protobuf's classes."""
    message = proto.Frame()
    message.tensors.add(name="x", dtype=2, shape=tensor.shape, payload=tensor.numpy().tobytes())
    return message


def run_server(ports: Connection) -> None:
    """All servers in one process; sends their ports and serves until the other end hangs up."""
    torch.set_num_threads(1)

    async def main() -> None:
        ours = [await serve("127.0.0.1:0", session) for session in (echo_bytes, echo_tensors)]
        bare = grpc.aio.server(options=LARGEST)
        handler = grpc.stream_stream_rpc_method_handler(bare_echo)
        bare.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", {"Echo": handler}),))
        bare_port = bare.add_insecure_port("127.0.0.1:0")
        await bare.start()
        blocking = grpc.server(futures.ThreadPoolExecutor(2), options=LARGEST)
        handler = grpc.stream_stream_rpc_method_handler(
            class_echo, proto.Frame.FromString, proto.Frame.SerializeToString
        )
        blocking.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", {"Echo": handler}),))
        blocking_port = blocking.add_insecure_port("127.0.0.1:0")
        blocking.start()
        ports.send([*(server.port for server in ours), bare_port, blocking_port])
        await asyncio.get_running_loop().run_in_executor(None, ports.poll, None)
        for server in ours:
            await server.stop(1)
        await bare.stop(0)
        blocking.stop(0)

    asyncio.run(main())


async def measure(ports: list[int], *, size: int, rounds: int) -> dict[str, float]:
    """Median seconds of a round trip for each contender."""
    tensor = torch.rand(size // 4)
    payload = tensor.numpy().tobytes()
    bytes_channel = await connect(f"127.0.0.1:{ports[0]}")
    tensor_channel = await connect(f"127.0.0.1:{ports[1]}")
    bare_channel = grpc.aio.insecure_channel(f"127.0.0.1:{ports[2]}", options=LARGEST)
    bare = bare_channel.stream_stream("/bench/Echo")()
    class_channel = grpc.insecure_channel(f"127.0.0.1:{ports[3]}", options=LARGEST)
    requests: asyncio.Queue[torch.Tensor | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def pull() -> object:
        while (wanted := asyncio.run_coroutine_threadsafe(requests.get(), loop).result()) is not None:
            yield as_message(wanted)

    replies = class_channel.stream_stream("/bench/Echo", proto.Frame.SerializeToString, proto.Frame.FromString)(pull())

    async def by_bytes(index: int) -> None:
        _, reply = await asyncio.gather(
            bytes_channel.send(up(index), [payload]), bytes_channel.receive(down(index), timeout=TIMEOUT)
        )
        if len(reply) != size:
            raise RuntimeError("a reply of another size")

    async def by_tensors(index: int) -> None:
        _, reply = await asyncio.gather(
            tensor_channel.send(up(index), frame.encode({"x": tensor})),
            tensor_channel.receive(down(index), timeout=TIMEOUT),
        )
        frame.decode(reply)

    async def by_bare_stream(index: int) -> None:
        del index
        await bare.write(payload)
        if len(await bare.read()) != size:
            raise RuntimeError("a reply of another size")

    async def by_classes(index: int) -> None:
        del index
        requests.put_nowait(tensor)
        reply = await loop.run_in_executor(None, next, replies)
        torch.frombuffer(bytearray(reply.tensors[0].payload), dtype=torch.float32)

    contenders: dict[str, Callable[[int], Awaitable[None]]] = {
        "bare gRPC stream of bytes": by_bare_stream,
        "splitfl channel, bytes": by_bytes,
        "splitfl channel, tensor to tensor": by_tensors,
        "sync gRPC, protobuf classes, tensor to tensor": by_classes,
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for index in range(rounds):
        for name, contender in contenders.items():
            start = time.perf_counter()
            await contender(index)
            seconds[name].append(time.perf_counter() - start)
    requests.put_nowait(None)
    await bytes_channel.close()
    await tensor_channel.close()
    await bare_channel.close()
    await loop.run_in_executor(None, class_channel.close)
    return {name: statistics.median(times[rounds // 10 :]) for name, times in seconds.items()}


def main() -> None:
    """Print the medians and their ratios to the bare stream."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=float, default=1.0, help="payload of a message")
    parser.add_argument("--rounds", type=int, default=200, help="round trips per contender")
    options = parser.parse_args()
    torch.set_num_threads(1)
    near, far = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=run_server, args=(far,), daemon=True)
    server.start()
    size = int(options.mebibytes * (1 << 20)) // 4 * 4
    medians = asyncio.run(measure(near.recv(), size=size, rounds=options.rounds))
    near.send(None)
    server.join(timeout=10)
    least = min(medians.values())
    for name, seconds in medians.items():
        ratio = seconds / medians["bare gRPC stream of bytes"]
        print(f"{name:48} {seconds * 1e3:8.3f} ms   {ratio:5.2f} x the bare stream   {seconds / least:5.2f} x the best")


if __name__ == "__main__":
    main()
