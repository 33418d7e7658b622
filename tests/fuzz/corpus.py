"""Well-formed messages, from which malformed ones are made."""

from __future__ import annotations

import torch

from splitfl.codecs import CODECS, frame, parse
from splitfl.schedule.instruction import Kind, Value
from splitfl.transport.envelope import encode_control, encode_parts
from splitfl.transport.messages import (
    PROTOCOL,
    Address,
    Begin,
    Finish,
    Hello,
    Refuse,
    Report,
    Status,
    Step,
    Traced,
    Welcome,
)

PROGRAM = "F s0 m0\nsend act[0,0,0] -> server\n"


def frames() -> list[bytes]:
    """One frame for each codec, and some with the shapes that are easily forgotten."""
    draw = torch.Generator().manual_seed(0)
    tensors = {
        "weight": torch.randn(4, 3, generator=draw),
        "bias": torch.randn(3, generator=draw, dtype=torch.float64),
        "count": torch.tensor(7),
        "mask": torch.tensor([True, False]),
        "empty": torch.empty(0, 5),
        "half": torch.randn(2, 2, generator=draw).to(torch.bfloat16),
    }
    tensors["long"] = torch.randn(6, 3, 5, generator=draw) * (torch.arange(5) == 2)  # columns of zeros
    names = ("topk:0.1+int8", "randk:0.05", "topk:0.2+int4+zstd", "zstd", "columns+int8", "columns+zstd")
    chains = [parse(name) for name in names]
    return [b"".join(map(bytes, frame.encode(tensors, codec, draw=7))) for codec in (*CODECS.values(), *chains)]


def envelopes() -> list[bytes]:
    """One of each control message, and the parts of bundles."""
    words = [
        Hello(PROTOCOL, "ada", '{"model": "12ab"}', 24, "splitfl 0", "secret", "1f", "2e", 3, 4, "trainer"),
        Welcome("2e", 0, 3),
        Begin(1, 5, PROGRAM, (PROGRAM,), PROGRAM, (Step(0, 8), Step(0, 8))),
        Report(1, 24, {"busy": 0.5, "loss": 1.25}, (Traced("F s0 m0", 0.0, 0.5, 10),)),
        Refuse("failed", "no disk"),
        Finish("training is complete"),
        Status('{"phase": "training"}'),
    ]
    parts = [
        envelope
        for kind in (Kind.ACT, Kind.GRAD, Kind.PARAMS)
        for payload in frames()[:2]
        for envelope in encode_parts(
            Address(1, 2, Value(kind, 0, 1, 0 if kind is not Kind.PARAMS else None)), [payload]
        )
    ]
    return [*map(encode_control, words), *parts]
