"""What the documents show is what there is: commands, files, settings, methods, code."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from typing import get_args

import pytest
import typer.main
from pydantic import BaseModel

from splitfl.cli import app
from splitfl.codecs import CODECS
from splitfl.config import parse_job
from splitfl.config.settings import JobSettings
from splitfl.data import NAMES
from splitfl.methods import METHODS
from splitfl.planning import DEVICES, LINKS

PATH = re.compile(r"`((?:[\w-]+/)+(?:[\w-]+\.(?:py|md|toml))?|[\w-]+\.md)`")
SETTING = re.compile(r"\| `([\w.]+)` \| (?:`(.+?)`|(-|none)) \| (.+) \|")


def test_every_command_can_be_given_like_that(document, commands):
    group = typer.main.get_command(app)
    for program, *words in commands(document):
        if program.rsplit("/", 1)[-1] == "splitfl":
            words = words[: words.index(">")] if ">" in words else words
            context = group.make_context("splitfl", list(words))
            name, command, rest = group.resolve_command(context, words)
            command.make_context(name, rest, parent=context)


def test_every_file_that_is_named_is_there(document, root):
    for path in PATH.findall(document.read_text(encoding="utf-8")):
        places = (root, root / "splitfl", document.parent)
        assert any((place / path).exists() for place in places), f"{document.name} names {path}"


def test_files_that_are_copied_are_there(document, commands, root):
    for program, *words in commands(document):
        if program == "cp":
            source = words[0].removeprefix("/opt/splitfl/")
            assert (root / source).is_file(), words


def settings(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Every setting of a section by its path, with its default: None for none, ... for one that must be given."""
    for name, field in section.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        table = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if table is not None:
            yield from settings(table, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", ... if field.is_required() else field.get_default(call_default_factory=True)


def documented(text: str) -> dict[str, object]:
    rows: dict[str, object] = {}
    for name, value, word, _ in SETTING.findall(text):
        rows[name] = {"-": ..., "none": None}[word] if word else tomllib.loads(f"x = {value}")["x"]
    return rows


def test_every_setting_of_a_job_file_is_described_with_its_default(root):
    text = (root / "docs/job-file.md").read_text(encoding="utf-8")
    parts = dict(zip(*[iter(re.split(r"^## \[(\w+)\]$", text, flags=re.MULTILINE)[1:])] * 2, strict=True))
    sections = {
        name: next(kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type))
        for name, field in JobSettings.model_fields.items()
        if name != "base"
    }
    assert set(parts) == set(sections)
    for name, section in sections.items():
        expected = {path: list(value) if isinstance(value, tuple) else value for path, value in settings(section)}
        assert documented(parts[name]) == expected, name


@pytest.mark.parametrize("names", [DEVICES, LINKS, METHODS, CODECS, NAMES], ids=lambda names: next(iter(names)))
def test_every_name_that_a_job_may_use_is_listed(root, names):
    text = (root / "docs/job-file.md").read_text(encoding="utf-8")
    assert [name for name in names if f"`{name}`" not in text] == []


def test_the_shortest_job_file_is_one(root, blocks):
    (text,) = blocks(root / "docs/job-file.md")
    job = parse_job(tomllib.loads(text))
    assert (job.method.name, job.data.clients) == ("pipar", 3)
    json.loads(job.to_json())


def test_the_table_of_methods_is_that_of_the_package(root):
    rows = re.findall(r"^\| `([\w-]+)` \|(.+)\|(.+)\|(.+)\|(.+)\|(.+)\|$", (root / "docs/methods.md").read_text(), re.M)
    table = {name: [cell.strip() for cell in cells] for name, *cells in rows}
    assert set(table) == set(METHODS)
    for name, (front, _, trained_by, tail, _) in table.items():
        method = METHODS[name]()
        head = " and head" if method.head_on_client else ""
        assert front == (f"front{head}" if method.split else "whole model")
        assert trained_by.removeprefix("its ") == method.front_trained_by
        assert tail == ("-" if not method.split else "shared" if method.shared_tail else "one per client")


def functions(text: str) -> dict[str, str]:
    """The functions of a program by name, whatever their layout and comments."""
    return {node.name: ast.dump(node) for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}


def test_the_method_that_is_shown_is_the_examples(root, blocks):
    shown = next(block for block in blocks(root / "docs/add-a-method.md") if "def " in block)
    assert functions(shown) == functions((root / "examples/own_method/quiet_sl.py").read_text(encoding="utf-8"))


def test_the_generator_that_is_shown_is_the_examples(root, blocks):
    shown = next(block for block in blocks(root / "docs/own-schedule.md") if "def " in block)
    name, dump = next(iter(functions(shown).items()))
    assert functions((root / "examples/own_schedule.py").read_text(encoding="utf-8"))[name] == dump
    assert len(shown.splitlines()) < 20


def test_the_first_model_of_the_readme_is_the_examples(root, blocks):
    shown = next(block for block in blocks(root / "README.md") if "splitfl.Job(" in block)
    example = (root / "examples/first_model.py").read_text(encoding="utf-8")
    assert ast.dump(ast.parse(shown)) == ast.dump(ast.parse(example))
