"""Calls of the operators of vision towers; see ``operator_cases.py``."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.operator_case import Case


def patches() -> Iterator[Case]:
    """Four images of one tower, and one of 4,096 patches."""
    import paddle
    from erniecore_ops.patch_attention import patch_attention_backward, patch_attention_forward

    for lengths, h, d in (((256, 576, 1024, 640), 6, 64), ((4096,), 16, 72)):
        N, pairs = sum(lengths), float(sum(n * n for n in lengths))
        qkv, dy = paddle.randn([N, 3, h, d]), paddle.randn([N, h, d])
        out, stats = patch_attention_forward(qkv, lengths, d**-0.5)
        size, outer = f"{N:,} patches of {len(lengths)}, {h} heads of {d}", 4.0 * N * h * d
        yield Case(f"frames, {size}", patch_attention_forward, (qkv, lengths, d**-0.5), 4 * outer, 4 * h * d * pairs)
        if not stats:
            continue
        arguments = qkv, out, stats, dy, lengths, d**-0.5
        yield Case(f"frames backward, {size}", patch_attention_backward, arguments, 8 * outer, 10 * h * d * pairs)


def bias() -> Iterator[Case]:
    import paddle
    from erniecore_ops.bias import add_bias_, sum_rows

    y, row, size = paddle.randn([4096, 4096]), paddle.randn([4096]), 4.0 * 4096**2
    yield Case("bias on rows, 4096²", add_bias_, (y, row), 2 * size, size / 4)
    yield Case("sum of rows, 4096²", sum_rows, (y,), size, size / 4)


def gelu() -> Iterator[Case]:
    import paddle
    from erniecore_ops.gelu import gelu_backward, gelu_forward

    x, dy, size = paddle.randn([4096, 4096]), paddle.randn([4096, 4096]), 4.0 * 4096**2
    for variant in ("erf", "tanh", "quick"):
        yield Case(f"gelu {variant}, 4096²", gelu_forward, (x, variant), 2 * size, 5 * size / 4)
        yield Case(f"gelu {variant} backward, 4096²", gelu_backward, (x, dy, variant), 3 * size, 10 * size / 4)


def layer_norm() -> Iterator[Case]:
    import paddle
    from erniecore_ops.layer_norm import layer_norm_backward, layer_norm_forward

    x, dy, weight, size = paddle.randn([4096, 4096]), paddle.randn([4096, 4096]), paddle.ones([4096]), 4.0 * 4096**2
    _, mean, inverse = layer_norm_forward(x, weight, weight, 1e-5)
    yield Case("layer norm, 4096²", layer_norm_forward, (x, weight, weight, 1e-5), 2 * size, 7 * size / 4)
    arguments = x, weight, mean, inverse, dy, (True, True)
    yield Case("layer norm backward, 4096²", layer_norm_backward, arguments, 3 * size, 14 * size / 4)
