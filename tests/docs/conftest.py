"""The documents, and what stands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *sorted(ROOT.glob("docs/*.md")),
    ROOT / "README.md",
    ROOT / "server/README.md",
    ROOT / "clients/edge/README.md",
]
PROGRAM = re.compile(r"(\S*/)?(splitfl|python|cp) ")


@pytest.fixture
def root() -> Path:
    """The top of the repository."""
    return ROOT


@pytest.fixture(params=DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def document(request) -> Path:
    """Each document in turn."""
    return request.param


@pytest.fixture
def blocks() -> Callable[[Path], list[str]]:
    """A document's code blocks: lines with four spaces in front, up to the next line of prose."""

    def found(path: Path) -> list[str]:
        made: list[list[str]] = [[]]
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("    ") or (not line.strip() and made[-1]):
                made[-1].append(line[4:])
            elif made[-1]:
                made.append([])
        return ["\n".join(lines).strip("\n") + "\n" for lines in made if lines]

    return found


@pytest.fixture
def commands(blocks) -> Callable[[Path], list[list[str]]]:
    """A document's commands as lists of words, without comments; a backslash at the end of a line joins the next."""

    def found(path: Path) -> list[list[str]]:
        lines = [line.removeprefix("$ ") for block in blocks(path) for line in block.replace("\\\n", " ").splitlines()]
        return [shlex.split(line, comments=True) for line in lines if PROGRAM.match(line)]

    return found
