"""What is wrong with a job file, one clear line for each fault."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from splitfl.errors import SplitflError


class ConfigError(SplitflError):
    """A job file that cannot be used. `lines` holds a fault each: the setting, its value and what would be right."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def shown(value: object) -> str:
    """A value as a job file would write it."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError:
        return str(value)


def setting(location: Sequence[int | str]) -> str:
    """A setting's place as users know it: ("training", "optimizer", "lr") is `[training] optimizer.lr`."""
    section, *rest = [str(part) for part in location]
    return f"[{section}] {'.'.join(rest)}".rstrip()


def suggestion(word: str, known: Iterable[str]) -> str:
    """`did you mean x?` where something known is close, else all that is known."""
    names = sorted(known)
    close = get_close_matches(word.lower(), [name.lower() for name in names], n=1)
    if close:
        return f"did you mean {next(name for name in names if name.lower() == close[0])}?"
    return f"expected one of {', '.join(names)}" if names else "expected nothing here"
