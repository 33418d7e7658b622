"""Linking records on the server: the digests of every holder as text, and those that all have."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from itertools import combinations

from splitfl.data.linkage import DIGEST, common
from splitfl.errors import SplitflError

MOST = 390_000
"""Records that a holder can link: their digests travel in one control message."""


def pack(digests: Sequence[bytes]) -> str:
    """Digests as text. Raises SplitflError for more than a message can carry."""
    if len(digests) > MOST:
        raise SplitflError(f"a holding of {len(digests)} samples, expected at most {MOST} to link")
    return base64.b64encode(b"".join(digests)).decode()


def unpack(text: str) -> list[bytes]:
    """The inverse of `pack`. Raises SplitflError for text that it does not give, or a digest that comes twice."""
    try:
        joined = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise SplitflError("the digests of the records are not base64") from None
    digests = [joined[start : start + DIGEST] for start in range(0, len(joined), DIGEST)]
    if len(joined) % DIGEST or len(set(digests)) < len(digests):
        raise SplitflError(f"the digests of the records are not {DIGEST} bytes each, each once")
    return digests


def link(holdings: Iterable[tuple[str, str]]) -> str:
    """What all holders have, from (name, packed digests) of each. Raises SplitflError where that is nothing."""
    named = [(name, unpack(text)) for name, text in holdings]
    shared = common([digests for _, digests in named])
    if not shared:
        sizes = ", ".join(f"{name}: {len(digests)}" for name, digests in named)
        pairs = ", ".join(
            f"{one} and {other} share {len({*first} & {*second})}"
            for (one, first), (other, second) in combinations(named, 2)
        )
        raise SplitflError(
            f"no record is at all {len(named)} holders ({sizes}; {pairs}): expected the same ids, written alike, and "
            "the same linkage key at each"
        )
    return pack(shared)
