"""Hadamard transform in blocks and rounding to FP8 (E4M3) for GPUs, in one pass: what a quantized product needs of its
inputs. The transform is a product with a matrix of signs that is made in registers."""

import triton
import triton.language as tl

from ernie_third_party_kernels.gpu import cdiv, empty

ROWS = 32


@triton.jit
def quantize_kernel(x, scale, y, blocks, TRANSFORM: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    r, i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    places, inside = r[:, None] * BLOCK + i[None, :], r[:, None] < blocks
    values = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
    if TRANSFORM:  # the sign at (a, b) is the parity of the bits that a and b share
        shared = i[:, None] & i[None, :]
        shared ^= shared >> 4
        shared ^= shared >> 2
        shared ^= shared >> 1
        signs = 1.0 - 2.0 * (shared & 1).to(tl.float32)
        values = tl.dot(values, signs, input_precision="ieee")
    ratio = values / tl.load(scale)
    size = tl.minimum(tl.abs(ratio), 448.0)
    # to nearest even on the bits, as casts differ between devices: three bits of fraction are left, below 2^-6 steps of 2^-9
    bits = size.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & ~0xFFFFF).to(tl.float32, bitcast=True)
    tiny = (size + 24576.0) - 24576.0
    rounded = tl.where(size < 0.015625, tiny, normal)
    signed = tl.where(ratio < 0.0, -rounded, rounded)
    tl.store(y + places, tl.where(ratio == ratio, signed, ratio).to(y.dtype.element_ty), mask=inside)


def quantize(x, scale, block=32, transform=True):
    """float8_e4m3fn of ``H x / scale`` (or ``x / scale``): x [T, n], n a multiple of ``block`` (16 or 32)."""
    y = empty(x, list(x.shape), "float8_e4m3fn")
    blocks = x.shape[0] * x.shape[1] // block
    quantize_kernel[(cdiv(blocks, ROWS),)](x, scale, y, blocks, TRANSFORM=transform, BLOCK=block, ROWS=ROWS)
    return y


#: The first architecture that has E4M3.
ARCH = 89
_TYPES = {"x": "*bf16", "scale": "*fp32", "y": "*fp8e4nv", "blocks": "i32"}
COMPILED = [
    (quantize_kernel, _TYPES, {"TRANSFORM": True, "BLOCK": 32, "ROWS": ROWS}),
    (quantize_kernel, _TYPES, {"TRANSFORM": False, "BLOCK": 32, "ROWS": ROWS}),
]
