"""How one batch of the samples of all clients is scored."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Merging:
    """The server computes once on what all clients sent, put together, not once for each.

    averaged          share of a mini-batch, from 0 to 1, whose samples go back as averages over the clients: the first
                      samples of all clients are one in the backward (EPSL, arXiv 2303.15991, section 3)
    logit_adjustment  scores are shifted by the logarithm of the classes' shares: for the tail of those in the whole
                      batch, for a front of those among its client's samples (SCALA, arXiv 2405.04875, section 4)

    Raises ValueError for a share out of range, and for both.
    """

    averaged: float = 0.0
    logit_adjustment: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.averaged <= 1:
            raise ValueError(f"merging: averaged = {self.averaged!r}, expected a share from 0 to 1")
        if self.averaged and self.logit_adjustment:
            raise ValueError("merging: averaged and logit_adjustment, expected one of the two")
