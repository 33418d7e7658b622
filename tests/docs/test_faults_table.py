"""Every test that the page about faults names is there."""

from __future__ import annotations

import ast
import re

NAMED = re.compile(r"`(\w+/\w+\.py)::(\w+)`")


def test_every_named_test_is_there(root):
    page = (root / "docs" / "faults.md").read_text(encoding="utf-8")
    named = NAMED.findall(page)
    rows = [line for line in page.splitlines() if line.startswith("| ") and "| test |" not in line]
    assert len(named) == len(rows) > 30
    for path, name in named:
        tree = ast.parse((root / "tests" / path).read_text(encoding="utf-8"))
        functions = {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in functions, f"{path} has no {name}"
