"""Which codec carries what: activations, gradients and model updates bear different losses of precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from splitfl.codecs.chain import FORMATS, RAW, Chain, parse
from splitfl.codecs.packing import CodecError

CODECS: Mapping[str, Chain | None] = {name: parse(name) for name in (RAW, *FORMATS)}
"""The codecs of one part by the name that a user writes; `raw` is none: each tensor travels bit for bit."""

ROLES: Mapping[str, str] = {"act": "activation", "grad": "gradient", "params": "update", "avg": "update"}
"""The role of each kind of value that a schedule moves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Codecs:
    """A codec for each role; None carries that role's tensors bit for bit."""

    activation: Chain | None = None
    gradient: Chain | None = None
    update: Chain | None = None

    def for_kind(self, kind: str) -> Chain | None:
        """The codec for a value of `kind`: act, grad, params or avg. CodecError for a kind that never travels.

        Averages travel whole: of weights nothing can be left out, only of their changes, which clients send.
        """
        if kind not in ROLES:
            raise CodecError(f"a value of kind {kind!r} does not travel, expected one of {', '.join(ROLES)}")
        role: Chain | None = getattr(self, ROLES[kind])
        if kind == "avg" and role is not None and role.keep is not None:
            return replace(role, keep=None, feedback=False)
        return role


def codec(*, activation: str | None = None, gradient: str | None = None, update: str | None = None) -> Codecs:
    """The codecs of a job by name; None is `raw`. Raises CodecError naming the role and what a name may be.

    codec(activation="int8", gradient="topk:0.1+bf16")
    """
    return Codecs(
        activation=_named("activation", activation),
        gradient=_named("gradient", gradient),
        update=_named("update", update),
    )


def _named(role: str, name: str | None) -> Chain | None:
    try:
        made = parse(RAW if name is None else name)
    except CodecError as error:
        raise CodecError(f"codec: {role} = {error}") from None
    if made is not None and made.feedback and role != "update":
        raise CodecError(
            f"codec: {role} = {name!r}: feedback is for updates; what a mini-batch left out belongs to its own samples"
        )
    return made
