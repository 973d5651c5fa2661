"""SwiGLU for GPUs, forward and backward: elementwise, one pass each."""

import triton
import triton.language as tl

from ernie_third_party_kernels.gpu import cdiv, empty

BLOCK = 1024


@triton.jit
def swiglu_kernel(gate, up, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(gate + at, mask=at < n, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y + at, (g * tl.sigmoid(g) * u).to(y.dtype.element_ty), mask=at < n)


@triton.jit
def swiglu_back_kernel(gate, up, dy, d_gate, d_up, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(gate + at, mask=at < n, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=at < n, other=0.0).to(tl.float32)
    d = tl.load(dy + at, mask=at < n, other=0.0).to(tl.float32)
    s = tl.sigmoid(g)
    tl.store(d_gate + at, (d * u * s * (1.0 + g * (1.0 - s))).to(d_gate.dtype.element_ty), mask=at < n)
    tl.store(d_up + at, (d * g * s).to(d_up.dtype.element_ty), mask=at < n)


def forward(gate, up):
    """silu(gate) up, [T, I]."""
    y, n = empty(gate, list(gate.shape)), gate.shape[0] * gate.shape[1]
    swiglu_kernel[(cdiv(n, BLOCK),)](gate, up, y, n, BLOCK=BLOCK)
    return y


def backward(gate, up, dy):
    """(d gate, d up)."""
    d_gate, d_up = empty(gate, list(gate.shape)), empty(up, list(up.shape))
    n = gate.shape[0] * gate.shape[1]
    swiglu_back_kernel[(cdiv(n, BLOCK),)](gate, up, dy, d_gate, d_up, n, BLOCK=BLOCK)
    return d_gate, d_up


COMPILED = [
    (swiglu_kernel, {"gate": "*bf16", "up": "*bf16", "y": "*bf16", "n": "i32"}, {"BLOCK": BLOCK}),
    (
        swiglu_back_kernel,
        {"gate": "*bf16", "up": "*bf16", "dy": "*bf16", "d_gate": "*bf16", "d_up": "*bf16", "n": "i32"},
        {"BLOCK": BLOCK},
    ),
]
