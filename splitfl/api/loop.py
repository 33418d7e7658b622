"""One event loop in a thread of its own for every blocking call of the API.

gRPC binds itself to the loop that it first meets, so closing a loop after each call would leave it with a dead one;
and a notebook has a loop of its own in the main thread already.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end and return what it returns; an interrupt cancels it, and waits until it has cleaned up."""
    future = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        with suppress(CancelledError):
            future.result()
        raise


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()

    def serve() -> None:
        # One torch thread, as in every worker of a server: the order of summation decides the bits.
        torch.set_num_threads(1)
        asyncio.set_event_loop(loop)
        loop.run_forever()

    thread = threading.Thread(target=serve, name="splitfl-loop", daemon=True)
    thread.start()

    def stop() -> None:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=5)
        if not thread.is_alive():
            loop.close()

    atexit.register(stop)
    return loop
