"""What a method demands of the model and its cut; each raises JobError, saying what would be right."""

from __future__ import annotations

from splitfl.api.error import JobError
from splitfl.methods import Method
from splitfl.model import Partition, Stage, holders


def require_fit(method: Method, parts: Partition, *, minimum: int, optimizer_state: str) -> None:
    """Raise JobError where the model, cut as in `parts`, cannot be trained by `method`.

    `minimum` are the fewest samples that the model takes at once.
    """
    if method.server_keeps_activations or method.merging:
        _require_samples_at_cut(method, parts)
    if method.rounds != "in step" and optimizer_state == "keep":
        raise JobError(
            f'optimizer_state = "keep" with method {method.name!r}: expected "reset", since its turns begin with '
            "weights of different rounds"
        )
    if method.global_sampling and minimum > 1:
        raise JobError(
            f"method = {method.name!r} draws mini-batches of any size, this model takes {minimum} samples or more: use "
            "GroupNorm or LayerNorm instead of BatchNorm"
        )


def _require_samples_at_cut(method: Method, parts: Partition) -> None:
    """Activations of many mini-batches or clients are joined by their samples."""
    for port in parts.stages[method.front_stages - 1].outputs:
        if not port.batched:
            raise JobError(
                f"method = {method.name!r}: {port.name!r}, which crosses the cut, has no batch dimension, and the "
                "server joins activations of many mini-batches or clients: choose another cut"
            )
        if method.generated and not port.dtype.is_floating_point:
            raise JobError(
                f"method = {method.name!r}: {port.name!r}, which crosses the cut, is {port.dtype}, and the server "
                "draws activations, which are floating-point numbers: choose another cut"
            )


def holders_of(method: Method, parts: Partition) -> tuple[Stage, ...]:
    """What each client holds of the first stage, where clients hold features of the same samples; else nothing."""
    merging = method.merging
    if merging is None or not merging.aligned:
        return ()
    found = holders(parts.stages[0])
    if merging.labels_at >= len(found):
        names = ", ".join(port.name for port in parts.stages[0].inputs)
        raise JobError(
            f"labels_at = {merging.labels_at} with method {method.name}: expected 0 to {len(found) - 1}, the place of "
            f"the client with the labels among those that hold {names}"
        )
    return found
