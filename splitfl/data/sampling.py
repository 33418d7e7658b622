"""Mini-batches drawn from the data of all clients together: how many samples of each are in which one."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

import numpy as np

from splitfl.data.error import DataError


def global_plan(
    samples: Mapping[int, int],
    *,
    batch: int,
    epochs: int = 1,
    steps: int | None = None,
    drop_last: bool = False,
    seed: int,
) -> tuple[dict[int, int], ...]:
    """Samples of each client in every mini-batch of a round, as if drawn from one pool without replacement.

    `samples`: client id -> samples it has. A mini-batch has `batch` samples of all clients together, the last one of a
    pass what is left; how many are of which client follows the multivariate hypergeometric distribution, so that
    each is a uniform draw of the pool (GPSL, arXiv 2407.15738, section III). A client of which none were drawn is
    left out of that mini-batch. The round has `epochs` passes, or `steps` mini-batches if given.

    Raises DataError for a setting out of range.
    """
    for name, value in (("global_batch", batch), ("epochs", epochs), ("steps", steps)):
        if value is not None and value < 1:
            raise DataError(f"{name} = {value}: expected 1 or more")
    clients = sorted(samples)
    total = sum(samples.values())
    per_pass = total // batch if drop_last else ceil(total / batch)
    wanted = per_pass * epochs if steps is None else steps
    if not per_pass:
        return ()
    random = np.random.default_rng(seed)
    drawn: list[dict[int, int]] = []
    left = np.zeros(len(clients), dtype=np.int64)
    while len(drawn) < wanted:
        if len(drawn) % per_pass == 0:
            left = np.array([samples[client] for client in clients], dtype=np.int64)
        counts = random.multivariate_hypergeometric(left, min(batch, int(left.sum())), method="marginals")
        left -= counts
        drawn.append({client: int(count) for client, count in zip(clients, counts, strict=True) if count})
    return tuple(drawn)
