"""Who may come to a server, and in which role: certificates and tokens against names.

A token is 256 random bits, so that its plain SHA-256 is enough to know it by: the server holds nothing from which a
token could be made. A client speaks only for itself: the name in its hello must be the name in its certificate, and
the one that its token was made for.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from splitfl.transport.messages import OBSERVER, TRAINER, Hello, Refuse

ROLES = (TRAINER, OBSERVER)


@dataclass(frozen=True, slots=True)
class Entry:
    """A name that may come: the digest of its token, and its role."""

    digest: str
    role: str = TRAINER


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What a server asks of those who come, besides the same job.

    tokens        by name; where there are any, everybody must show one
    certificates  everybody's certificate must hold the name that it comes under (transport has verified it)
    observers     names whose role is the observer's, where no token says so
    """

    tokens: Mapping[str, Entry] = field(default_factory=dict)
    certificates: bool = False
    observers: frozenset[str] = frozenset()

    @property
    def guarded(self) -> bool:
        """Whether anything is asked at all."""
        return bool(self.tokens) or self.certificates

    def objection(self, hello: Hello, identity: frozenset[str]) -> Refuse | None:
        """The refusal of one that is not who it says, or may not do what it came for; None lets it in."""
        role = hello.role or TRAINER
        if role not in ROLES:
            return Refuse("role", f"role {role!r}: expected {TRAINER} or {OBSERVER}")
        if self.certificates and hello.client not in identity:
            shown = ", ".join(sorted(identity)) or "no name"
            problem = f"client {hello.client!r} shows the certificate of {shown}: a client speaks for itself only"
            return Refuse("identity", problem)
        entry = self.tokens.get(hello.client)
        # Compared for an unknown name, too, so that the time taken does not tell which names are known.
        known = hmac.compare_digest(digest(hello.token), entry.digest if entry else digest(""))
        if self.tokens and not (entry and known):
            return Refuse("token", f"client {hello.client!r} shows no valid token of its own: ask who runs the server")
        allowed = self._role(hello.client, entry)
        if allowed is not None and role != allowed:
            return Refuse("role", f"{hello.client!r} may come as {allowed}, not as {role}")
        return None

    def _role(self, name: str, entry: Entry | None) -> str | None:
        """The role that a name has; None where nobody is asked who it is."""
        if entry is not None:
            return entry.role
        if name in self.observers:
            return OBSERVER
        return TRAINER if self.guarded else None


def make_token() -> str:
    """A new token: 256 random bits as text."""
    return secrets.token_urlsafe(32)


def digest(token: str) -> str:
    """By what a server knows a token: its SHA-256, in hexadecimal digits."""
    return hashlib.sha256(token.encode()).hexdigest()
