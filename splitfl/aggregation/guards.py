"""What stands between clients and a strategy: updates that must not count, and results that must not be used."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import torch

from splitfl.aggregation.buffers import is_variance
from splitfl.aggregation.values import AggregationError, Refusal, Reply, Tensors, Update, UpdateKind


def guard_updates(
    replies: Iterable[Reply],
    template: Mapping[str, torch.Tensor],
    *,
    asked: Collection[int] | None = None,
    holds: Mapping[int, Collection[str]] | None = None,
    kind: UpdateKind = "weights",
) -> tuple[list[Update], list[Refusal]]:
    """The updates that count and the refusals, each by ascending client id.

    template  tensors with the names, shapes and dtypes that an update must have
    asked     ids that take part in the round; None accepts any
    holds     the names that each client hands over where they differ (a cut per device); None expects all of them
    kind      what the state of an update must mean

    An update is refused, naming the client and the tensor, where a tensor is missing or unknown, its shape or dtype
    differs, a value is not finite, a running variance is negative, it was trained on no samples, or a client sent
    more than one. Refusals among `replies` are passed on.
    """
    replies = list(replies)
    sent = Counter(reply.client for reply in replies)
    accepted: list[Update] = []
    refused: dict[int, Refusal] = {}
    for reply in sorted(replies, key=lambda reply: reply.client):
        expected = set(template if holds is None else holds.get(reply.client, ()))
        reason = _unwelcome(reply, sent[reply.client], asked) or (
            reply.reason if isinstance(reply, Refusal) else objection(reply, template, expected=expected, kind=kind)
        )
        if reason:
            refused[reply.client] = Refusal(reply.client, reply.name, reason)
        elif isinstance(reply, Update):
            accepted.append(reply)
    return accepted, list(refused.values())


def _unwelcome(reply: Reply, sent: int, asked: Collection[int] | None) -> str | None:
    """Why no reply of this client counts, whatever it says."""
    if asked is not None and reply.client not in asked:
        return "sent an update but was not asked in this round"
    if sent > 1:  # which one came first is a matter of luck, so none of them counts
        return f"sent {sent} updates in one round, expected 1"
    return None


def objection(
    update: Update, template: Mapping[str, torch.Tensor], *, expected: Collection[str], kind: UpdateKind = "weights"
) -> str | None:
    """Why `update` cannot count, or None. The cheap questions come first."""
    if update.kind != kind:
        wanted = "weights are" if kind == "weights" else "a delta is"
        return f"sent {'a delta' if update.kind == 'delta' else update.kind} where {wanted} expected"
    if update.samples <= 0:
        return f"trained on {update.samples} samples, expected 1 or more"
    missing = [name for name in expected if name not in update.state]
    if missing:
        return f"lacks tensor {sorted(missing)[0]!r}" + _and_more(missing)
    unknown = [name for name in update.state if name not in expected]
    if unknown:
        return f"sent unknown tensor {sorted(unknown)[0]!r}" + _and_more(unknown)
    for name in sorted(expected):
        reason = _difference(update.state[name], template[name]) or _bad_value(name, update.state[name])
        if reason:
            return f"tensor {name!r} {reason}"
    return None


def _and_more(names: Collection[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _difference(value: torch.Tensor, wanted: torch.Tensor) -> str | None:
    if value.layout != torch.strided:
        return f"is {value.layout}, expected a dense tensor"
    if value.shape != wanted.shape:
        return f"has shape {tuple(value.shape)}, expected {tuple(wanted.shape)}"
    if value.dtype != wanted.dtype:
        return f"has dtype {value.dtype}, expected {wanted.dtype}"
    return None


def _bad_value(name: str, value: torch.Tensor) -> str | None:
    if not is_finite(value):
        return "holds values that are not finite"
    if is_variance(name) and bool((value < 0).any()):
        return "holds a negative variance"
    return None


def is_finite(value: torch.Tensor) -> bool:
    """Whether every element is a number: no NaN, no infinity. True of integers and of an empty tensor."""
    if not (value.is_floating_point() or value.is_complex()):
        return True
    if not value.numel():
        return True
    plain = torch.view_as_real(value) if value.is_complex() else value
    # The narrow float8 types have no such test of their own.
    plain = plain.to(torch.float32) if plain.element_size() == 1 else plain
    # NaN and infinity both show in the extremes: one pass and no temporary, six times as fast as isfinite.
    return all(map(math.isfinite, (float(extreme) for extreme in torch.aminmax(plain))))


def guard_result(result: Mapping[str, torch.Tensor], template: Mapping[str, torch.Tensor], *, source: str) -> Tensors:
    """`result` in the order and dtypes of `template`.

    Raises AggregationError that begins with `source`, what the result is, and names the tensor: one that is missing or
    unknown, whose shape differs, or with a value that is not finite in its own dtype or a negative running variance.
    """
    missing, unknown = template.keys() - result.keys(), result.keys() - template.keys()
    if missing or unknown:
        what = f"lacks tensor {min(missing)!r}" if missing else f"has unknown tensor {min(unknown)!r}"
        raise AggregationError(f"{source} {what}")
    cast = {}
    for name, wanted in template.items():
        value = result[name].to(wanted.dtype)
        reason = _difference(value, wanted) or _bad_value(name, value)
        if reason:
            raise AggregationError(f"{source} cannot be used: tensor {name!r} {reason}")
        cast[name] = value
    return cast
