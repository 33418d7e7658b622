"""Functions that a job names as text: `file.py:function` beside the job file, or `package.module:function`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from splitfl.config.error import ConfigError, suggestion


def split_reference(reference: str) -> tuple[str, str]:
    """The place and the function of `place:function`. Raises ValueError where the text has another form."""
    place, colon, name = reference.rpartition(":")
    module = place.endswith(".py") or all(part.isidentifier() for part in place.split("."))
    if not (colon and place and name.isidentifier() and module):
        raise ValueError('expected "file.py:function" or "package.module:function"')
    return place, name


def resolve(reference: str, base: Path) -> Callable[..., Any]:
    """The function that `reference` names; files are looked for from the folder `base`, that of the job file.

    This runs the code of the named file, so a reference comes from the user's own job file and never from the network.
    A file is imported once, however often it is named. Raises ConfigError where the file, the module or the function
    does not exist, cannot be called, or the file itself fails, naming the line.
    """
    try:
        place, name = split_reference(reference)
    except ValueError as error:
        raise ConfigError(f"{reference}: {error}") from None
    module = _import(place, base, reference=reference)
    try:
        found = getattr(module, name)
    except AttributeError:
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ConfigError(f"{reference}: {place} has no function {name!r}: {suggestion(name, functions)}") from None
    if not callable(found):
        raise ConfigError(f"{reference}: {name} is of type {type(found).__name__}, expected a function")
    return found  # type: ignore[no-any-return]


def _import(place: str, base: Path, *, reference: str) -> ModuleType:
    path = (base / place).resolve() if place.endswith(".py") else None
    if path is not None and not path.is_file():
        raise ConfigError(f"{reference}: no file {path}; the path counts from the job file's folder")
    try:
        with _importable(path.parent if path else base.resolve()):
            return _import_file(path) if path else importlib.import_module(place)
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name and place.startswith(error.name)
        if path is None and missing:
            where = f"the Python path or {base.resolve()}"
            raise ConfigError(f"{reference}: no module {place!r} on {where}") from None
        cause = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{reference}: importing {place} failed{_line(error, path)}: {cause}") from error


def _import_file(path: Path) -> ModuleType:
    # Two jobs may each have a model.py: the module's name comes from the whole path.
    name = f"_job_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    # As for a script: what lies beside the file can be imported by it.
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _line(error: BaseException, path: Path | None) -> str:
    if isinstance(error, SyntaxError) and error.lineno:
        return f" at line {error.lineno}"
    trace, line = error.__traceback__, None
    while trace is not None:
        if path is not None and trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f" at line {line}"
