"""Which codec carries what: activations, gradients and model updates bear different losses of precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from splitfl.codecs.cast import BF16, FP16, FP32
from splitfl.codecs.packing import Codec, CodecError
from splitfl.codecs.quantize import INT8

RAW = "raw"

CODECS: Mapping[str, Codec | None] = {RAW: None, **{each.name: each for each in (FP32, BF16, FP16, INT8)}}
"""Every codec by the name that a user writes; `raw` is none: each tensor travels bit for bit."""

ROLES: Mapping[str, str] = {"act": "activation", "grad": "gradient", "params": "update", "avg": "update"}
"""The role of each kind of value that a schedule moves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Codecs:
    """A codec for each role; None carries that role's tensors bit for bit."""

    activation: Codec | None = None
    gradient: Codec | None = None
    update: Codec | None = None

    def for_kind(self, kind: str) -> Codec | None:
        """The codec for a value of `kind`: act, grad, params or avg. CodecError for a kind that never travels."""
        if kind not in ROLES:
            raise CodecError(f"a value of kind {kind!r} does not travel, expected one of {', '.join(ROLES)}")
        role: Codec | None = getattr(self, ROLES[kind])
        return role


def codec(*, activation: str | None = None, gradient: str | None = None, update: str | None = None) -> Codecs:
    """The codecs of a job by name; None is `raw`. Raises CodecError naming the role and the names that exist.

    codec(activation="int8", gradient="bf16")
    """
    return Codecs(
        activation=_named("activation", activation),
        gradient=_named("gradient", gradient),
        update=_named("update", update),
    )


def _named(role: str, name: str | None) -> Codec | None:
    wanted = RAW if name is None else name
    if wanted not in CODECS:
        raise CodecError(f"codec: {role} = {name!r}, expected one of {', '.join(CODECS)}")
    return CODECS[wanted]
