"""Tokens as files: digests and roles for the server (`tokens.json`), one secret for each client (`NAME.token`)."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from splitfl.errors import SplitflError
from splitfl.run.access import ROLES, Entry, digest, make_token

SERVER_FILE = "tokens.json"

NAME = re.compile(r"[\w-][\w.-]{0,63}")
"""Names that are safe as parts of file names."""


def issue(folder: Path, name: str, *, role: str) -> Path:
    """Make a token for `name`, which replaces an earlier one; returns the client's file, readable by its owner only.

    Raises SplitflError for an impossible name, and where the files cannot be written.
    """
    if not NAME.fullmatch(name):
        raise SplitflError(f"client {name!r}: expected 1 to 64 letters, digits, dots, dashes or underscores")
    if role not in ROLES:
        raise SplitflError(f"role {role!r}: expected {' or '.join(ROLES)}")
    token = make_token()
    server, own = folder / SERVER_FILE, folder / f"{name}.token"
    entries = load_tokens(server) if server.exists() else {}
    entries[name] = Entry(digest(token), role)
    content = {client: {"digest": entry.digest, "role": entry.role} for client, entry in sorted(entries.items())}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(own, f"{token}\n")
        _write(server, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise SplitflError(f"tokens in {folder}: {error.strerror or error}") from error
    return own


def load_tokens(path: Path) -> dict[str, Entry]:
    """The server's file. SplitflError where it is missing or is none."""
    try:
        content = json.loads(path.read_text())
        return {str(name): _entry(each) for name, each in content.items()}
    except OSError as error:
        raise SplitflError(f"cannot read the tokens {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SplitflError(f"{path} holds no tokens: expected the {SERVER_FILE} that `splitfl tokens` makes") from None


def load_token(path: Path) -> str:
    """A client's secret. SplitflError where the file is missing or empty; the message never holds what is in it."""
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SplitflError(f"cannot read the token {path}: {getattr(error, 'strerror', 'no text')}") from None
    if not token or any(sign.isspace() for sign in token):
        raise SplitflError(f"{path} holds no token: expected the one line that `splitfl tokens` makes")
    return token


def _entry(content: Any) -> Entry:
    entry = Entry(content["digest"], content["role"])
    if not re.fullmatch(r"[0-9a-f]{64}", entry.digest) or entry.role not in ROLES:
        raise ValueError("no digest of a token")
    return entry


def _write(path: Path, content: str) -> None:
    """Aside with the final mode, then renamed: a secret is never readable by others, and a file never half written."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(content)
    aside.replace(path)
