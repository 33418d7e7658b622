"""Named tensors as bytes and back: the only binary format for tensors.

The bytes are a `splitfl.v1.Frame` of proto/splitfl/v1/frame.proto, so any language reads them with generated classes;
they are written by hand because a payload can then go from the tensor's own memory to the network in one copy. The
payload is the last field of each tensor: a header, then the numbers. Numbers are little-endian on every machine.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import torch

from splitfl.codecs.chain import Chain
from splitfl.codecs.columns import features, narrowed, places_size, used_columns, widened
from splitfl.codecs.header import FrameError, Header, Limits, payload_size, read_headers, write_header
from splitfl.codecs.packing import Codec, CodecError, Groups, Packed
from splitfl.codecs.sparse import (
    LARGEST,
    Walk,
    positions_of,
    positions_size,
    read_positions,
    write_positions,
)
from splitfl.codecs.spec import DTYPE_NUMBERS, Spec, dtype_names, spec_of
from splitfl.codecs.zstd import compressed, decompressed

__all__ = ["DEFAULT_LIMITS", "Buffer", "FrameError", "Limits", "decode", "encode", "wire_size"]

Buffer = bytes | bytearray | memoryview

DEFAULT_LIMITS = Limits()

TRUSTED = Limits(thinned=LARGEST)
"""For frames that were made in this process."""

BIT_FOR_BIT = Chain(name="raw")

if sys.byteorder != "little":
    raise ImportError("splitfl needs a little-endian machine: tensors are written to the wire as they lie in memory")


def encode(tensors: Mapping[str, torch.Tensor], codec: Chain | None = None, *, draw: int = 0) -> list[Buffer]:
    """`tensors` as the buffers of one frame, to be sent one after the other.

    Without a codec every tensor travels bit for bit. `draw` decides what a codec does at random. Payload buffers share
    the memory of contiguous CPU tensors: they must be sent, or copied, before the tensors change. Raises FrameError for
    a tensor that has no form in a frame, and CodecError for values that the codec cannot carry.
    """
    buffers: list[Buffer] = []
    for number, (name, tensor) in enumerate(tensors.items()):
        spec = spec_of(tensor)
        if spec.dtype not in DTYPE_NUMBERS or tensor.layout is not torch.strided:
            what = str(spec) if tensor.layout is torch.strided else f"{spec} in layout {tensor.layout}"
            raise FrameError(f"{name!r} is {what}, expected a dense tensor of {dtype_names(DTYPE_NUMBERS)}")
        buffers += _encode(name, spec, tensor.detach(), codec or BIT_FOR_BIT, draw + number)
    return buffers


def _encode(name: str, spec: Spec, tensor: torch.Tensor, codec: Chain, draw: int) -> list[Buffer]:
    """Leave out, pack, compress, as far as the codec does so for such a tensor."""
    kept, columns, positions, walk = None, None, b"", None
    keep = codec.thins(name, spec)
    if keep is not None:
        flat = tensor.cpu().reshape(-1)
        chosen, walk = keep.choose(flat, draw)
        tensor, kept = flat[chosen], len(chosen)
        positions = b"" if walk else write_positions(chosen, spec.elements)
    elif codec.narrows(name, spec):
        matrix = tensor.cpu().reshape(spec.shape[0], -1)
        chosen = used_columns(matrix)
        if _size(name, spec, codec, columns=len(chosen)) < _size(name, spec, codec):
            tensor, columns = matrix[:, chosen], len(chosen)
            positions = write_positions(chosen, features(spec))
    format = codec.packs(name, spec)
    packed = _pack(name, tensor, format)
    payload = _memory(packed.payload)
    smaller = compressed(payload) if codec.compress and len(payload) else b""
    use = 0 < len(smaller) <= len(payload) - 2  # the field that says so takes two bytes
    header = write_header(
        name,
        spec,
        codec=format,
        payload=len(smaller if use else payload),
        axis=packed.groups.axis,
        scales=_bytes(packed.scales),
        offsets=_bytes(packed.offsets),
        kept=kept,
        columns=columns,
        positions=positions,
        walk=walk,
        compressed=use,
    )
    if not spec.elements:
        return [header]
    return [header, smaller if use else payload]


def decode(
    buffer: Buffer, *, limits: Limits = DEFAULT_LIMITS, expect: Mapping[str, Spec] | None = None
) -> dict[str, torch.Tensor]:
    """The tensors in a frame, in order; they own their memory, on the CPU.

    `expect` gives the names, dtypes and shapes that the receiver is ready for. Raises FrameError for bytes that are
    no frame, or not that one; whatever the bytes claim, no more memory is reserved than they have themselves (times 16
    where int4 becomes float64 again), or `limits.thinned` elements for a tensor of which only a part was sent.
    """
    headers = read_headers(memoryview(buffer).cast("B"), limits)
    if expect is not None:
        _compare({name: header.spec for name, header in headers.items()}, expect)
    return {name: _unpack(header) for name, header in headers.items()}


def wire_size(specs: Mapping[str, Spec], codec: Chain | None = None) -> int:
    """Exactly the bytes that `encode` makes of tensors of these dtypes and shapes, whatever their values.

    With compression and with `columns`, which depend on the values, the most that they can be; of `randk` the
    positions, which depend on the draw, are counted with as many bytes as the largest take.
    """
    chain = codec or BIT_FOR_BIT
    return sum(_size(name, spec, chain) for name, spec in specs.items())


def _size(name: str, spec: Spec, codec: Chain, *, columns: int | None = None) -> int:
    """Bytes of one tensor, uncompressed; where so many columns are sent of it, or all of it."""
    keep, format = codec.thins(name, spec), codec.packs(name, spec)
    sent, kept, positions, walk = spec, None, 0, None
    if keep is not None:
        kept = keep.kept(spec.elements)
        sent = Spec(spec.dtype, (kept,))
        if keep.name == "randk":
            walk = Walk(spec.elements - 1, spec.elements - 1)
        else:
            positions = positions_size(spec.elements, kept)
    elif columns is not None:
        sent, positions = narrowed(spec, columns), places_size(spec, columns)
    groups = format.groups(sent.shape) if format else Groups(0, 1)
    payload = payload_size(sent, format)
    header = write_header(
        name,
        spec,
        codec=format,
        payload=payload,
        axis=groups.axis,
        scales=bytes(4 * groups.number) if format and format.scaled else b"",
        offsets=bytes(4 * groups.number) if format and format.shifted else b"",
        kept=kept,
        columns=columns,
        positions=bytes(positions),
        walk=walk,
    )
    return len(header) + payload


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
    sent = _sent(header)
    if header.columns is not None:
        places = read_positions(header.positions, features(header.spec), header.columns)
        if places is None:
            what = f"{header.columns} ascending columns of {header.spec}"
            raise FrameError(f"{header.name!r}: its positions are not {what}")
        return widened(sent, places, header.spec)
    if header.kept is None:
        return sent
    whole = torch.zeros(header.spec.shape, dtype=header.spec.dtype)
    elements = header.spec.elements
    if header.walk is not None:
        positions: torch.Tensor | None = positions_of(header.walk, elements, header.kept)
    else:
        positions = read_positions(header.positions, elements, header.kept)
    if positions is None:
        raise FrameError(f"{header.name!r}: its positions are not {header.kept} ascending ones of {header.spec}")
    whole.view(-1)[positions] = sent
    return whole


def _sent(header: Header) -> torch.Tensor:
    """The tensor that the payload stands for: the whole one, or what was kept of it."""
    name, spec, codec = header.name, header.sent, header.codec
    payload = header.payload
    if header.compressed:
        unfolded = decompressed(payload, payload_size(spec, codec))
        if unfolded is None:
            raise FrameError(f"{name!r}: its payload is no Zstandard frame of {payload_size(spec, codec)} bytes")
        payload = unfolded
    if codec is None:
        return _tensor(name, payload, spec)
    per_group = Spec(torch.float32, (header.groups.number,))
    scales = _tensor(name, header.scales, per_group) if codec.scaled else None
    offsets = _tensor(name, header.offsets, per_group) if codec.shifted else None
    for metadata in (scales, offsets):
        if metadata is not None and not torch.isfinite(metadata).all():
            raise FrameError(f"{name!r}: a scale or an offset is infinite or NaN")
    packed = Packed(_tensor(name, payload, codec.payload(spec)), scales, offsets, header.groups)
    return codec.decode(packed, spec.shape).to(spec.dtype)


def _tensor(name: str, payload: memoryview, spec: Spec) -> torch.Tensor:
    """A tensor of `spec` with a copy of `payload`: its memory is aligned, and does not keep the message alive."""
    raw = torch.empty(len(payload), dtype=torch.uint8)
    raw.numpy().data[:] = payload
    if spec.dtype is torch.bool and spec.elements and int(raw.max()) > 1:
        raise FrameError(f"{name!r}: a bool is neither 0 nor 1")
    return raw.view(spec.dtype).reshape(spec.shape)
