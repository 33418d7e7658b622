"""Malformed messages against the decoders: `python -m tests.fuzz.malformed --messages 1000000 --seed 1`.

Each must be decoded, or refused with the one kind of error that the decoder promises, in bounded time and memory.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from splitfl.codecs import FrameError, frame
from splitfl.transport.envelope import EnvelopeError, decode
from tests.fuzz.corpus import envelopes, frames
from tests.fuzz.mutate import mutate

SETTLED = 20_000
"""Messages after which the process has all the memory that it needs."""

PAGE = resource.getpagesize()


@dataclass
class Found:
    """What became of the messages; `slowest` in seconds, `grown` in bytes of resident memory."""

    outcomes: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    grown: int = 0


def fuzz(messages: int, seed: int) -> Found:
    """Send so many messages through the decoders, half to each. What they raise beyond their promise goes up."""
    draw, found = random.Random(seed), Found()
    bundles, words = frames(), envelopes()
    settled = resident()
    for number in range(messages):
        if number == SETTLED:
            settled = resident()
        to_frame = bool(number % 2)
        message = mutate(draw, bundles if to_frame else words)
        start = time.perf_counter()
        found.outcomes[_frame(message) if to_frame else _envelope(message)] += 1
        found.slowest = max(found.slowest, time.perf_counter() - start)
    found.grown = resident() - settled
    return found


def _frame(message: bytes) -> str:
    try:
        frame.decode(message)
    except FrameError:
        return "frames refused"
    return "frames decoded"


def _envelope(message: bytes) -> str:
    try:
        decode(message)
    except EnvelopeError:
        return "envelopes refused"
    return "envelopes decoded"


def resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def main() -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    start = time.monotonic()
    found = fuzz(options.messages, options.seed)
    print(f"{options.messages} messages of seed {options.seed} in {time.monotonic() - start:.0f} s")
    print(", ".join(f"{number} {name}" for name, number in sorted(found.outcomes.items())))
    print(f"slowest {1000 * found.slowest:.1f} ms; resident memory grew by {found.grown / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
