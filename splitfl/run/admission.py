"""What a hello must hold before anybody is taken in: version, name, identity, role, and the same job."""

from __future__ import annotations

import json
import re

from splitfl.errors import SplitflError
from splitfl.run.access import Access
from splitfl.run.blueprint import Blueprint
from splitfl.run.linkage import unpack
from splitfl.transport.messages import OBSERVER, Hello, Refuse, version_refusal
from splitfl.transport.plain_text import PLAIN_TEXT

MOST = 200_000
"""Mini-batches of one client in a round: each is planned before the round begins."""

NAME = re.compile(r"[\w.-]{1,64}")


def objection(hello: object, identity: frozenset[str], *, access: Access, blueprint: Blueprint) -> Refuse | None:
    """The refusal of a first message that is no acceptable hello; None where it is one.

    Who somebody is comes before anything about the job, so that a stranger learns nothing of it.
    """
    if isinstance(hello, Refuse) and hello.code == PLAIN_TEXT:
        return Refuse("tls", "this server expects TLS: start the client with the authority's certificate (--ca)")
    if not isinstance(hello, Hello):
        return Refuse("protocol", f"the first message is {type(hello).__name__}, expected Hello")
    if (refusal := version_refusal(hello)) is not None:
        return refusal
    if not NAME.fullmatch(hello.client):
        return Refuse("name", "a client's name has 1 to 64 letters, digits, dots, dashes or underscores")
    if (refusal := access.objection(hello, identity)) is not None:
        return refusal
    return None if hello.role == OBSERVER else _job_objection(hello, blueprint)


def _job_objection(hello: Hello, blueprint: Blueprint) -> Refuse | None:
    if hello.samples < 1:
        return Refuse("samples", f"client {hello.client!r} has no training samples, expected 1 or more")
    ours, theirs = blueprint.fingerprints(), _fingerprints(hello.fingerprint)
    batches = hello.samples / blueprint.training.batch_size * (blueprint.training.epochs or 0)
    if batches > MOST:
        return Refuse(
            "samples",
            f"client {hello.client!r} claims {hello.samples} training samples, {batches:.0f} mini-batches a round, "
            f"expected at most {MOST}: a larger batch_size, or local_steps",
        )
    if blueprint.holders and (reason := _unlinkable(hello)):
        return Refuse("links", f"client {hello.client!r} cannot be linked: {reason}")
    different = [name for name in ours if ours[name] != theirs.get(name)]
    if different:
        return Refuse(
            "job",
            f"client {hello.client!r} runs another job than this server: it differs in {', '.join(different)}; "
            "use the same job file and model code on both",
        )
    return None


def _unlinkable(hello: Hello) -> str | None:
    """What is wrong with the digests of a client's records, or None."""
    try:
        count = len(unpack(hello.links))
    except SplitflError as error:
        return str(error)
    return None if count == hello.samples else f"{count} digests for {hello.samples} samples, expected one for each"


def _fingerprints(text: str) -> dict[str, object]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}
