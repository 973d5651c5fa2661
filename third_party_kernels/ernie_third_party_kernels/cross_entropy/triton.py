"""Cross-entropy of rows of logits for GPUs: the loss in one pass over a row (running maximum and sum), and the gradient in
place of the logits in a second. Labels below 0 are not learned."""

import triton
import triton.language as tl

from ernie_third_party_kernels.gpu import empty

BLOCK = 4096


@triton.jit
def loss_kernel(logits, labels, loss, lse, V, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    top, total = float("-inf"), 0.0
    for first in range(0, V, BLOCK):
        at = first + tl.arange(0, BLOCK)
        values = tl.load(logits + row * V + at, mask=at < V, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(values, axis=0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(values - higher), axis=0)
        top = higher
    sum_ = top + tl.log(total)
    label = tl.load(labels + row)
    own = tl.load(logits + row * V + tl.maximum(label, 0)).to(tl.float32)
    tl.store(loss + row, tl.where(label < 0, 0.0, sum_ - own))
    tl.store(lse + row, sum_)


@triton.jit
def back_kernel(logits, labels, lse, factor, V, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    label, f, sum_ = tl.load(labels + row), tl.load(factor + row), tl.load(lse + row)
    f = tl.where(label < 0, 0.0, f)
    for first in range(0, V, BLOCK):
        at = first + tl.arange(0, BLOCK)
        values = tl.load(logits + row * V + at, mask=at < V, other=0.0).to(tl.float32)
        share = tl.exp(values - sum_) - tl.where(at == label, 1.0, 0.0)
        tl.store(logits + row * V + at, (share * f).to(logits.dtype.element_ty), mask=at < V)


def forward(logits, labels):
    """(loss, log-sum-exp), float32 [T], of logits [T, V] and labels int64 [T]."""
    T, V = logits.shape
    loss, lse = empty(logits, [T], "float32"), empty(logits, [T], "float32")
    loss_kernel[(T,)](logits, labels, loss, lse, V, BLOCK=BLOCK)
    return loss, lse


def backward_(logits, labels, lse, factor):
    """(softmax - onehot) times ``factor`` [T], written over the logits."""
    T, V = logits.shape
    back_kernel[(T,)](logits, labels, lse, factor, V, BLOCK=BLOCK)
    return logits


COMPILED = [
    (
        loss_kernel,
        {"logits": "*bf16", "labels": "*i64", "loss": "*fp32", "lse": "*fp32", "V": "i32"},
        {"BLOCK": BLOCK},
    ),
    (
        back_kernel,
        {"logits": "*bf16", "labels": "*i64", "lse": "*fp32", "factor": "*fp32", "V": "i32"},
        {"BLOCK": BLOCK},
    ),
]
