"""Records of the same samples at several holders: found again by a keyed hash of their ids, which stay at home.

Each holder hashes its ids with a secret that the holders share and the server does not have (HMAC-SHA-256), so the
server can compare ids without learning any: it cannot try out which id gives a hash. It learns how many are shared.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset

from splitfl.data.error import DataError

DIGEST = 16
"""Bytes of a digest: two of 10^9 ids have the same one with a probability below 10^-20."""

LEAST_KEY = 16
"""Bytes that a secret has at least."""


class Holding(Dataset[Any]):
    """What one holder knows: features of its samples, their ids, and the labels if it is the one that has them.

    features  (samples, *shape)
    ids       one for each sample, each once: whatever `str` tells apart, such as text or whole numbers
    labels    (samples, ...), at the holder of the labels only

    Raises DataError where their numbers differ, or an id comes twice.
    """

    def __init__(self, features: torch.Tensor, ids: Sequence[Hashable], *, labels: torch.Tensor | None = None) -> None:
        self.features, self.labels = features, labels
        self.ids = [str(each.item() if isinstance(each, torch.Tensor) else each) for each in ids]
        for what, count in (("ids", len(self.ids)), ("labels", len(features) if labels is None else len(labels))):
            if count != len(features):
                raise DataError(f"a holding of {len(features)} samples has {count} {what}, expected one for each")
        seen: set[str] = set()
        for each in self.ids:
            if each in seen:
                raise DataError(f"id {each!r} comes twice in a holding, expected every id once")
            seen.add(each)

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.features[index], self._labels()[index]

    def digests(self, key: bytes) -> list[bytes]:
        """The keyed hash of each id, `DIGEST` bytes. Raises DataError for a key that is too short to be a secret."""
        if len(key) < LEAST_KEY:
            raise DataError(f"a linkage key of {len(key)} bytes, expected {LEAST_KEY} or more that the holders share")
        return [hmac.new(key, each.encode(), hashlib.sha256).digest()[:DIGEST] for each in self.ids]

    def aligned(self, shared: Sequence[bytes], key: bytes) -> torch.utils.data.TensorDataset:
        """(features, labels) of the samples with these digests, in their order; zeros where labels are elsewhere.

        Raises DataError for a digest of no sample here.
        """
        rows = {digest: row for row, digest in enumerate(self.digests(key))}
        missing = next((digest for digest in shared if digest not in rows), None)
        if missing is not None:
            raise DataError(f"the server links a record {missing.hex()} that this holder does not have")
        chosen = torch.tensor([rows[digest] for digest in shared], dtype=torch.int64)
        return torch.utils.data.TensorDataset(self.features[chosen], self._labels()[chosen])

    def _labels(self) -> torch.Tensor:
        return torch.zeros(len(self), dtype=torch.int64) if self.labels is None else self.labels


def common(holdings: Sequence[Sequence[bytes]]) -> list[bytes]:
    """The digests that all have, sorted: an order that every holder can follow and that tells nothing of the ids."""
    return sorted(set.intersection(*map(set, holdings))) if holdings else []
