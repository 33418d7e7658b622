"""How one batch of the samples of all clients is scored."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Merging:
    """The server computes once on what all clients sent, put together, not once for each.

    averaged          share of a mini-batch, from 0 to 1, whose samples go back as averages over the clients: the first
                      samples of all clients are one in the backward (EPSL, arXiv 2303.15991, section 3)
    aligned           the samples are the same ones at all clients, each of which has other features of them: features
                      are put together, not samples (vertical)
    labels_at         id of the client that has the labels, where samples are aligned
    logit_adjustment  scores are shifted by the logarithm of the classes' shares: for the tail of those in the whole
                      batch, for a front of those among its client's samples (SCALA, arXiv 2405.04875, section 4)

    Raises ValueError for a number out of range, and for what cannot be together.
    """

    averaged: float = 0.0
    logit_adjustment: bool = False
    aligned: bool = False
    labels_at: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.averaged <= 1:
            raise ValueError(f"merging: averaged = {self.averaged!r}, expected a share from 0 to 1")
        if self.labels_at < 0:
            raise ValueError(f"merging: labels_at = {self.labels_at!r}, expected the id of a client, from 0")
        chosen = [name for name in ("averaged", "logit_adjustment", "aligned") if getattr(self, name)]
        if len(chosen) > 1:
            raise ValueError(f"merging: {' and '.join(chosen)}, expected one of them")
