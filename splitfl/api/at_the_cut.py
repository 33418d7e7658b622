"""Whether a job's transform can be: what it is, and whether anything crosses the cut that it would change."""

from __future__ import annotations

from typing import Any

from splitfl.methods import Method
from splitfl.model import Partition, Transform, TransformError, is_transformed, parse_transform


def transform_for(given: Any, method: Method) -> Transform | None:
    """What a job gives as `transform`: one, the name of one, or None.

    Raises TransformError for anything else, and where the method has no use for one.
    """
    made = parse_transform(given) if isinstance(given, str) else given
    if made is None:
        return None
    if not isinstance(made, Transform):
        raise TransformError(f"transform = {given!r}: expected a splitfl.model.Transform, or the name of one")
    what = f"transform = {made.name!r} with method {method.name}"
    if not method.split:
        raise TransformError(f"{what}: nothing crosses a cut; leave the transform out")
    if method.server_keeps_activations:
        raise TransformError(
            f"{what}: the server also computes on activations that it keeps, outside of a mini-batch; leave the "
            "transform out"
        )
    return made


def require_transformed(transform: Transform, parts: Partition, method: Method) -> None:
    """Raise TransformError where nothing that leaves the client can be transformed."""
    ports = parts.stages[method.front_stages - 1].outputs
    if not any(map(is_transformed, ports)):
        names = ", ".join(repr(port.name) for port in ports)
        raise TransformError(
            f"transform = {transform.name!r} with method {method.name}: of what crosses the cut ({names}) nothing has "
            "samples and a gradient; leave the transform out, or choose another cut"
        )
