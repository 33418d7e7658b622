"""Named tensors as bytes and back: the only binary format for tensors.

The bytes are a `splitfl.v1.Frame` of proto/splitfl/v1/frame.proto, so any language reads them with generated classes;
they are written by hand because a payload can then go from the tensor's own memory to the network in one copy. The
payload is the last field of each tensor: a header, then the numbers. Numbers are little-endian on every machine.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import torch

from splitfl.codecs.header import FrameError, Header, Limits, payload_size, read_headers, write_header
from splitfl.codecs.packing import Codec, CodecError, Groups, Packed
from splitfl.codecs.spec import DTYPE_NUMBERS, Spec, dtype_names, spec_of

__all__ = ["DEFAULT_LIMITS", "Buffer", "FrameError", "Limits", "decode", "encode", "wire_size"]

Buffer = bytes | bytearray | memoryview

DEFAULT_LIMITS = Limits()

if sys.byteorder != "little":
    raise ImportError("splitfl needs a little-endian machine: tensors are written to the wire as they lie in memory")


def encode(tensors: Mapping[str, torch.Tensor], codec: Codec | None = None) -> list[Buffer]:
    """`tensors` as the buffers of one frame, to be sent one after the other.

    Without a codec every tensor travels bit for bit. Payload buffers share the memory of contiguous CPU tensors: they
    must be sent, or copied, before the tensors change. Raises FrameError for a tensor that has no form in a frame, and
    CodecError for values that the codec cannot carry.
    """
    buffers: list[Buffer] = []
    for name, tensor in tensors.items():
        spec = spec_of(tensor)
        if spec.dtype not in DTYPE_NUMBERS or tensor.layout is not torch.strided:
            what = str(spec) if tensor.layout is torch.strided else f"{spec} in layout {tensor.layout}"
            raise FrameError(f"{name!r} is {what}, expected a dense tensor of {dtype_names(DTYPE_NUMBERS)}")
        chosen = _chosen(codec, name, spec)
        packed = _pack(name, tensor.detach(), chosen)
        scales, offsets = _bytes(packed.scales), _bytes(packed.offsets)
        buffers.append(write_header(name, spec, codec=chosen, axis=packed.groups.axis, scales=scales, offsets=offsets))
        if spec.elements:
            buffers.append(_memory(packed.payload))
    return buffers


def decode(
    buffer: Buffer, *, limits: Limits = DEFAULT_LIMITS, expect: Mapping[str, Spec] | None = None
) -> dict[str, torch.Tensor]:
    """The tensors in a frame, in order; they own their memory, on the CPU.

    `expect` gives the names, dtypes and shapes that the receiver is ready for. Raises FrameError for bytes that are
    no frame, or not that one; whatever the bytes claim, no more memory is reserved than they have themselves (times 8
    where int8 becomes float64 again).
    """
    headers = read_headers(memoryview(buffer).cast("B"), limits)
    if expect is not None:
        _compare({name: header.spec for name, header in headers.items()}, expect)
    return {name: _unpack(header) for name, header in headers.items()}


def wire_size(specs: Mapping[str, Spec], codec: Codec | None = None) -> int:
    """Exactly the bytes that `encode` makes of tensors of these dtypes and shapes, whatever their values."""
    total = 0
    for name, spec in specs.items():
        chosen = _chosen(codec, name, spec)
        groups = chosen.groups(spec.shape) if chosen else Groups(0, 1)
        scales = bytes(4 * groups.number) if chosen and chosen.scaled else b""
        offsets = bytes(4 * groups.number) if chosen and chosen.shifted else b""
        header = write_header(name, spec, codec=chosen, axis=groups.axis, scales=scales, offsets=offsets)
        total += len(header) + payload_size(spec, chosen)
    return total


def _chosen(codec: Codec | None, name: str, spec: Spec) -> Codec | None:
    return codec if codec is not None and codec.applies(name, spec) else None


def _pack(name: str, tensor: torch.Tensor, codec: Codec | None) -> Packed:
    if codec is None:
        return Packed(tensor)
    try:
        return codec.encode(tensor)
    except CodecError as error:
        raise CodecError(f"{name!r}: {error}; the training has diverged, or this role needs another codec") from None


def _memory(tensor: torch.Tensor) -> memoryview:
    """The bytes of `tensor`: its own memory where it is contiguous on the CPU."""
    flat = tensor.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _bytes(metadata: torch.Tensor | None) -> bytes:
    return b"" if metadata is None else bytes(_memory(metadata))


def _compare(got: Mapping[str, Spec], expect: Mapping[str, Spec]) -> None:
    missing = [name for name in expect if name not in got]
    extra = [name for name in got if name not in expect]
    if missing or extra:
        raise FrameError(f"missing tensors {missing}, unexpected tensors {extra}")
    for name, spec in expect.items():
        if got[name] != spec:
            raise FrameError(f"{name!r} is {got[name]}, expected {spec}")


def _unpack(header: Header) -> torch.Tensor:
    name, spec, codec = header.name, header.spec, header.codec
    if codec is None:
        return _tensor(name, header.payload, spec)
    per_group = Spec(torch.float32, (header.groups.number,))
    scales = _tensor(name, header.scales, per_group) if codec.scaled else None
    offsets = _tensor(name, header.offsets, per_group) if codec.shifted else None
    for metadata in (scales, offsets):
        if metadata is not None and not torch.isfinite(metadata).all():
            raise FrameError(f"{name!r}: a scale or an offset is infinite or NaN")
    payload = _tensor(name, header.payload, Spec(codec.dtype, spec.shape))
    return codec.decode(Packed(payload, scales, offsets, header.groups)).to(spec.dtype)


def _tensor(name: str, payload: memoryview, spec: Spec) -> torch.Tensor:
    """A tensor of `spec` with a copy of `payload`: its memory is aligned, and does not keep the message alive."""
    raw = torch.empty(len(payload), dtype=torch.uint8)
    raw.numpy().data[:] = payload
    if spec.dtype is torch.bool and spec.elements and int(raw.max()) > 1:
        raise FrameError(f"{name!r}: a bool is neither 0 nor 1")
    return raw.view(spec.dtype).reshape(spec.shape)
