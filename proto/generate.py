"""Regenerate what the proto files decide: protobuf's Python classes, and the golden byte vectors.

    python proto/generate.py

Needs grpcio-tools. Run it after every change of a .proto file, and commit what it writes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from google.protobuf import json_format
from grpc_tools import protoc

PROTO = Path(__file__).resolve().parent
GENERATED = PROTO.parent / "splitfl" / "transport" / "_generated"
HEADER = "# ruff: noqa\n# fmt: off\n# mypy: ignore-errors\n"
SOURCES = ("splitfl/v1/frame.proto", "splitfl/v1/session.proto")


def generate_classes(target: Path = GENERATED) -> None:
    """Write the message classes of every proto file, with type stubs, under `target`."""
    target.mkdir(parents=True, exist_ok=True)
    status = protoc.main(["protoc", f"-I{PROTO}", f"--python_out={target}", f"--pyi_out={target}", *SOURCES])
    if status != 0:
        raise SystemExit(f"protoc failed with status {status}")
    for folder in (target / "splitfl", target / "splitfl" / "v1"):
        (folder / "__init__.py").touch()
    for file in target.glob("splitfl/v1/*_pb2.py*"):
        file.write_text(HEADER + file.read_text())


def generate_vectors(target: Path = PROTO / "golden") -> None:
    """Write the bytes of every message in cases.json, by protobuf's own classes."""
    sys.path.insert(0, str(PROTO.parent))
    from splitfl.transport import proto

    for case in json.loads((PROTO / "golden" / "cases.json").read_text()):
        message = getattr(proto, case["message"])()
        json_format.ParseDict(case["content"], message)
        (target / f"{case['name']}.bin").write_bytes(message.SerializeToString())


if __name__ == "__main__":
    generate_classes()
    generate_vectors()
