"""Seeds derived by name, so that no random draw depends on what happened to run before it."""

from __future__ import annotations

import hashlib


def derive(seed: int, *labels: int | str) -> int:
    """A seed in [0, 2**63) for the draw that `labels` name; equal on every machine."""
    text = "/".join([str(seed), *map(str, labels)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
