"""A job file read: TOML in, settings out, every fault as one clear line."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from splitfl.config.error import ConfigError, setting, shown, suggestion
from splitfl.config.settings import JobSettings

_EXPECTED = {
    "bool_type": "expected true or false",
    "dict_type": "expected a table",
    "finite_number": "expected a finite number",
    "float_type": "expected a number",
    "greater_than": "expected more than {gt:g}",
    "greater_than_equal": "expected {ge} or more",
    "int_type": "expected a whole number",
    "less_than": "expected less than {lt}",
    "less_than_equal": "expected {le} or less",
    "literal_error": "expected {expected}",
    "model_type": "expected a table",
    "string_pattern_mismatch": "expected 1 to 64 letters, digits, dots, dashes or underscores",
    "string_too_short": "expected a text that is not empty",
    "string_type": 'expected a text in quotes ("...")',
}


def load_job(path: str | Path) -> JobSettings:
    """The settings of the job file at `path`.

    Raises ConfigError with one line for each fault, each beginning with the file's name: a file that is missing or not
    TOML, unknown settings, wrong types and values, and combinations that cannot work.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not a text in UTF-8"
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path.name}: {_located(str(error))}") from None
    return parse_job(content, base=path.parent.resolve(), name=path.name)


def parse_job(content: Mapping[str, Any] | str, *, base: Path = Path(), name: str = "job") -> JobSettings:
    """Settings from a file's content: a mapping as TOML yields it, or the text of `JobSettings.to_json`.

    `base` is the folder that relative paths count from, `name` what errors call the file. Raises ConfigError as
    `load_job`.
    """
    values: Mapping[str, Any] = json.loads(content) if isinstance(content, str) else content
    if "base" in values:
        raise ConfigError(f"{name}: [base]: unknown section, {suggestion('base', _sections())}")
    try:
        return JobSettings.model_validate({**values, "base": base})
    except ValidationError as error:
        lines = dict.fromkeys(line for fault in error.errors() for line in _lines(fault))
        raise ConfigError(*(f"{name}: {line}" for line in lines)) from None


def _located(message: str) -> str:
    # "Expected '=' after a key (at line 3, column 9)" reads better with the place in front.
    found = re.fullmatch(r"(.*) \(at (.*)\)", message, flags=re.DOTALL)
    return f"{found[2]}: {found[1]}" if found else message


def _lines(fault: Any) -> Iterator[str]:
    kind, place, value, context = fault["type"], fault["loc"], fault["input"], fault.get("ctx", {})
    if kind == "value_error" and not place:
        yield from str(context["error"]).splitlines()
    elif kind == "missing":
        what = "section" if len(place) == 1 else "setting"
        yield f"{setting(place)}: missing {what}{_needed(place)}"
    elif kind == "extra_forbidden":
        what = "section" if len(place) == 1 else "setting"
        yield f"{setting(place)}: unknown {what}, {suggestion(str(place[-1]), _known(place[:-1]))}"
    elif kind == "value_error" and isinstance(value, Mapping):
        yield f"{setting(place)}{' ' if len(place) == 1 else '.'}{context['error']}"
    else:
        wanted = _EXPECTED[kind].format(**context) if kind in _EXPECTED else context.get("error", fault["msg"])
        yield f"{setting(place)} = {shown(value)}: {wanted}"


def _sections() -> list[str]:
    return [name for name in JobSettings.model_fields if name != "base"]


def _known(place: tuple[int | str, ...]) -> list[str]:
    """Names of the settings at a place: of the sections, of a section, or of a table in one."""
    if not place:
        return _sections()
    found = _table(place)
    return list(found.model_fields) if found else []


def _needed(place: tuple[int | str, ...]) -> str:
    """What a missing table must hold."""
    found = _table(place)
    required = [name for name, field in found.model_fields.items() if field.is_required()] if found else []
    return f"; it holds at least {', '.join(required)}" if required else ""


def _table(place: tuple[int | str, ...]) -> type[BaseModel] | None:
    """The class of the table at a place; None where a single value is."""
    table: type[BaseModel] = JobSettings
    for part in place:
        field = table.model_fields.get(str(part))
        kinds = [field.annotation, *get_args(field.annotation)] if field else []
        found = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if found is None:
            return None
        table = found
    return table
