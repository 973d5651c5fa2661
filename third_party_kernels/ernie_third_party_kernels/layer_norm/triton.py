"""Layer norm for GPUs: one program per row, a row in registers. Forward; the gradients run the reference."""

import triton
import triton.language as tl

from ernie_third_party_kernels.gpu import empty, power_of_two


@triton.jit
def layer_norm_kernel(x, w, b, y, mean, inverse, H, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * H + at, mask=at < H, other=0.0).to(tl.float32)
    m = tl.sum(values, axis=0) / H
    centered = tl.where(at < H, values - m, 0.0)
    r = 1.0 / tl.sqrt(tl.sum(centered * centered, axis=0) / H + epsilon)
    weight = tl.load(w + at, mask=at < H, other=0.0).to(tl.float32)
    bias = tl.load(b + at, mask=at < H, other=0.0).to(tl.float32)
    tl.store(y + row * H + at, (centered * r * weight + bias).to(y.dtype.element_ty), mask=at < H)
    tl.store(mean + row, m)
    tl.store(inverse + row, r)


def forward(x, weight, bias, epsilon):
    """(y, mean, 1 / deviation) of x [T, H]."""
    T, H = x.shape
    y, mean, inverse = empty(x, [T, H]), empty(x, [T], "float32"), empty(x, [T], "float32")
    layer_norm_kernel[(T,)](x, weight, bias, y, mean, inverse, H, epsilon, BLOCK=power_of_two(H))
    return y, mean, inverse


COMPILED = [
    (
        layer_norm_kernel,
        {
            **{"x": "*bf16", "w": "*bf16", "b": "*bf16", "y": "*bf16"},
            **{"mean": "*fp32", "inverse": "*fp32", "H": "i32", "epsilon": "fp32"},
        },
        {"BLOCK": 4096},
    )
]
