"""Checkpoints: one safetensors file per round, written aside, synced and renamed, so that each is whole or absent."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes

from splitfl.errors import SplitflError

Tensors = dict[str, torch.Tensor]


class CheckpointError(SplitflError):
    """A checkpoint cannot be written or read."""


def save(path: Path, state: Mapping[str, torch.Tensor], record: Mapping[str, Any]) -> None:
    """Write `state` and the JSON-able `record` to `path` at once. CheckpointError where the disk refuses."""
    # Tied parameters share memory, which the format does not allow: each name gets its own copy.
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}
    content = to_bytes(tensors, metadata={"splitfl": json.dumps(dict(record)), "digest": digest(tensors)})
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(aside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        _sync_directory(path.parent)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise CheckpointError(f"checkpoint {path}: {error.strerror or error}") from error


def load(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """The state and the record in `path`. CheckpointError where it is missing, damaged or of another program."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            metadata = file.metadata() or {}
            record = json.loads(metadata.get("splitfl", "null"))
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"checkpoint {path} cannot be read ({error}): expected one that splitfl wrote") from error
    if not isinstance(record, dict):
        raise CheckpointError(f"checkpoint {path} holds no record of a run: expected one that splitfl wrote")
    if metadata.get("digest") != digest(tensors):
        raise CheckpointError(f"checkpoint {path} is damaged: its contents do not match their digest")
    return tensors, record


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and contents: the format itself does not notice a flipped bit."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name]
        found.update(f"{name}:{value.dtype}:{tuple(value.shape)}:".encode())
        found.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def require_writable(directory: Path) -> None:
    """Make `directory` where it is missing. CheckpointError, before any work is done, where it cannot be written."""
    probe = directory / f".writable.{os.getpid()}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise CheckpointError(f"checkpoint folder {directory} cannot be written: {error.strerror or error}") from error


def prune(directory: Path, *, keep: int) -> None:
    """Delete all but the newest `keep` round checkpoints in `directory`, and what a killed writer left half done."""
    for path in [*sorted(directory.glob("round-*.safetensors"))[:-keep], *directory.glob(".round-*.safetensors.*")]:
        path.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
