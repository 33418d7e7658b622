"""Secrets in log records become `***`: a last line of defense, for code should not log them in the first place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

HIDDEN = "***"

_SECRET_NAME = re.compile(r"(?:.*[_-])?(?:token|secret|password|passphrase|key)", re.IGNORECASE)
"""Names of fields that are never shown: `token`, `client_token`, `private-key`, but not `tokens` or `monkey`."""


class Redaction:
    """What must not be shown: the values of fields with such names, and strings that were registered."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: tuple[str, ...] = ()
        for secret in secrets:
            self.conceal(secret)

    def conceal(self, secret: str) -> None:
        """Hide `secret` from now on, wherever it occurs; an empty one is in every text, and left alone."""
        if secret:
            # The longest first: one that holds another must vanish as a whole.
            self._secrets = tuple(sorted({*self._secrets, secret}, key=len, reverse=True))

    def text(self, text: str) -> str:
        """`text` without the registered secrets."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text

    def field(self, name: str, value: object) -> object:
        """The value of a field, and of the fields in it, as it may be shown; numbers and None stay what they are."""
        if _SECRET_NAME.fullmatch(name):
            return HIDDEN
        if isinstance(value, Mapping):
            return {self.text(str(inner)): self.field(str(inner), each) for inner, each in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.field("", each) for each in value]
        if value is None or isinstance(value, bool | int | float):
            return value
        return self.text(str(value))
