"""Tensors of every dtype, with every bit pattern in reach."""

import torch
from hypothesis import strategies as st

from splitfl.codecs.spec import DTYPE_NUMBERS, Spec

SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def random_bits(spec: Spec, *, seed: int = 0) -> torch.Tensor:
    """A tensor whose bytes are random: NaNs with payloads, infinities and subnormals included."""
    generator = torch.Generator().manual_seed(seed)
    if spec.dtype is torch.bool:
        return torch.randint(0, 2, spec.shape, generator=generator).bool()
    nbytes = spec.elements * spec.dtype.itemsize
    return torch.randint(0, 256, (nbytes,), generator=generator, dtype=torch.uint8).view(spec.dtype).reshape(spec.shape)


def bits(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor in row-major order."""
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


def tensors() -> st.SearchStrategy[dict[str, torch.Tensor]]:
    """Bundles of tensors of any dtype and small shape."""
    spec = st.builds(Spec, st.sampled_from(list(DTYPE_NUMBERS)), SHAPES)
    tensor = st.builds(lambda spec, seed: random_bits(spec, seed=seed), spec, st.integers(0, 1000))
    return st.dictionaries(st.text(max_size=8).filter(lambda name: name.isprintable()), tensor, max_size=4)


def finite_tensors() -> st.SearchStrategy[dict[str, torch.Tensor]]:
    """Bundles of floating-point tensors with finite values, beside integers and labels."""
    dtype = st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64])

    def make(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
        return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 100).to(dtype)

    tensor = st.builds(make, SHAPES, dtype, st.integers(0, 1000))
    return st.dictionaries(st.sampled_from(["x", "skip", "target:", "target:1"]), tensor, max_size=4)
