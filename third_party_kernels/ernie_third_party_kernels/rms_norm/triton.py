"""RMS norm for GPUs: one program per row, a row in registers. Forward; the gradients run the reference."""

import triton
import triton.language as tl

from ernie_third_party_kernels.gpu import empty, power_of_two


@triton.jit
def rms_norm_kernel(x, w, y, inverse, H, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * H + at, mask=at < H, other=0.0).to(tl.float32)
    r = 1.0 / tl.sqrt(tl.sum(values * values, axis=0) / H + epsilon)
    weight = tl.load(w + at, mask=at < H, other=0.0).to(tl.float32)
    tl.store(y + row * H + at, (values * r * weight).to(y.dtype.element_ty), mask=at < H)
    tl.store(inverse + row, r)


def forward(x, weight, epsilon):
    """(y, 1 / rms) of x [T, H]."""
    T, H = x.shape
    y, inverse = empty(x, [T, H]), empty(x, [T], "float32")
    rms_norm_kernel[(T,)](x, weight, y, inverse, H, epsilon, BLOCK=power_of_two(H))
    return y, inverse


COMPILED = [
    (
        rms_norm_kernel,
        {"x": "*bf16", "w": "*bf16", "y": "*bf16", "inverse": "*fp32", "H": "i32", "epsilon": "fp32"},
        {"BLOCK": 4096},
    )
]
