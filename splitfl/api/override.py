"""A job file with some of its settings changed from outside, checked as a whole again."""

from __future__ import annotations

from typing import Any

from splitfl.api.error import JobError
from splitfl.config import JobSettings, parse_job
from splitfl.methods import METHODS


def override(
    settings: JobSettings, *, method: str | None = None, rounds: int | None = None, clients: int | None = None
) -> JobSettings:
    """`settings` with another method, number of rounds or number of clients.

    Another method keeps of the file what means something to it: its own options are those of the file only where it
    has them too; what crosses a cut is left out where nothing is cut, a transform where the method has no use for one,
    and the strategy where nothing is averaged.
    Raises ConfigError for values that cannot be.
    """
    content: dict[str, Any] = settings.model_dump(exclude_unset=True)
    if rounds is not None:
        content["training"]["rounds"] = rounds
    if clients is not None:
        content["data"]["clients"] = clients
    if method is not None and method != settings.method.name:
        _switch(content, method)
    return parse_job(content, base=settings.base, name="job")


def _switch(content: dict[str, Any], method: str) -> None:
    if method not in METHODS:
        raise JobError(f"method = {method!r}: expected one of {', '.join(METHODS)}")
    made = METHODS[method]()
    content["method"] = {"name": method}
    if not made.split:
        content["model"].pop("cut", None)
        for role in ("activation", "gradient"):
            content.get("codec", {}).pop(role, None)
    if not made.split or made.server_keeps_activations or made.distils:
        content.get("codec", {}).pop("transform", None)
    if not made.takes_strategy:
        content.pop("strategy", None)
