"""One call of every operator that a kernel may replace, with the bytes that it must at least move and its FLOPs. Sizes are
those of dense-M (2 × 1,024 tokens, 8 and 2 heads of 64) or of a layer of the 21B model, and more than the caches hold.

A multiply-add is 2 FLOPs, anything else on one number 1, an exponential too. Masked scores and what is computed again do
not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.operator_case import Case as Case
from benchmarks.tower_cases import bias, gelu, layer_norm, patches


def adamw() -> Iterator[Case]:
    import paddle
    from erniecore_ops import adamw as core

    shapes = [[512, 512]] * 40 + [[2048, 512]] * 12 + [[512]] * 20 + [[8192, 512]]
    parameters = [[paddle.rand(shape) for shape in shapes] for _ in range(4)]
    count, total = len(shapes), sum(int(x.size) for x in parameters[0])
    rest = [1e-5] * count, [0.1] * count, core.Terms(0.9, 0.95, 1e-8, 0.5, 0.5, 0.9)
    yield Case("adamw, 27 M parameters, clipped", core.adamw_, (*parameters, *rest), 28.0 * total, 14.0 * total)
    halves = [[x.astype("bfloat16") for x in xs] for xs in parameters[2:]]
    arguments = (*parameters[:2], *halves, *rest)
    yield Case("adamw, moments in bfloat16", core.adamw_, arguments, 20.0 * total, 14.0 * total)
    yield Case("square_sum, 27 M", core.square_sum, (parameters[1],), 4.0 * total, 2.0 * total)


def attention() -> Iterator[Case]:
    import paddle
    from erniecore_ops.attention import attention_backward, attention_forward
    from erniecore_ops.matmul import EXACT, PARTS

    for B, S, hq, hk, d in ((2, 1024, 8, 2, 64), (1, 8192, 8, 2, 32), (1, 512, 16, 2, 128), (1, 2048, 20, 4, 128)):
        shapes = [B, S, hq, d], [B, S, hk, d], [B, S, hk, d], [B, S, hq, d]
        q, k, v, dy = (paddle.randn(shape) for shape in shapes)
        y, stats = attention_forward(q, k, v, None, None, d**-0.5)
        scores, size = B * hq * S * (S + 1) / 2, f"{B} × {S:,}, {hq} and {hk} heads of {d}"
        outer, inner = 4.0 * B * S * hq * d, 4.0 * B * S * hk * d
        for precision, parts in PARTS.items():
            arguments = q, k, v, None, None, d**-0.5, parts
            name = size if parts == EXACT else f"{size}, {precision}"
            yield Case(f"attention, {name}", attention_forward, arguments, 2 * outer + 2 * inner, 4 * d * scores)
            if stats is None:  # the two halves of one implementation belong together
                continue
            arguments = q, k, v, y, stats, dy, None, None, d**-0.5, parts
            moved = 4 * outer + 4 * inner
            yield Case(f"attention backward, {name}", attention_backward, arguments, moved, 10 * d * scores)
    yield from patches()


def cross_entropy() -> Iterator[Case]:
    import paddle
    from erniecore_ops.linear_cross_entropy import Piece, add_matmul_, cross_entropy_rows_

    T, V, H = 512, 32768, 512
    source, labels = paddle.randn([T, V]), paddle.randint(0, V, [T])
    logits, piece = source.clone(), Piece(slice(T), paddle.arange(T) * V + labels, labels)

    def fresh() -> None:
        paddle.assign(source, output=logits)

    size = 4.0 * T * V
    arguments = logits, piece, None, True
    yield Case("loss and slopes, 512 × 32,768", cross_entropy_rows_, arguments, 2 * size, 5.0 * T * V, fresh)
    total, hidden = paddle.zeros([V, H]), paddle.randn([T, H])
    moved = size + 4.0 * T * H + 8.0 * V * H
    yield Case("add_product, 32,768 × 512 over 512", add_matmul_, (total, source, hidden), moved, 2.0 * T * V * H)


def decode_attention() -> Iterator[Case]:
    import paddle
    from erniecore_ops.attention import decode_attention as attend

    for B, K, hq, hk, d in ((8, 8192, 8, 2, 64), (8, 4096, 20, 4, 128)):
        q, k, v = (paddle.randn(shape) for shape in ([B, 1, hq, d], [B, K, hk, d], [B, K, hk, d]))
        moved, flops = 8.0 * B * K * hk * d, 4.0 * B * K * hq * d
        yield Case(
            f"decode attention, {B} × {K:,} keys, {hq} and {hk} heads", attend, (q, k, v, None, d**-0.5), moved, flops
        )


def decoder_step() -> Iterator[Case]:
    """A new token of each row after 128 others, in a model of 226 MB; the reference is the model layer by layer."""
    import numpy as np
    from erniecore_ernie45.plugin import plugin
    from erniecore_generation.cache import StaticCache
    from erniecore_generation.passes import Passes

    from benchmarks.decoding import with_step

    sizes = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 4, "vocab_size": 8192, "head_dim": 64}
    sizes |= {"num_attention_heads": 16, "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "rope_theta": 5e5}
    architecture = {"model_type": "ernie4_5", "tie_word_embeddings": True, **sizes}
    model = plugin.ernie_build_model(architecture=architecture, dtype="float32").eval()
    weights = float(sum(int(parameter.size) for parameter in model.parameters()))
    for rows in (1, 8):
        layered, whole = (with_step(name, lambda: Passes(model)) for name in ("reference", ""))
        cache = StaticCache(4, 129)
        whole.last(np.full([rows, 128], 5), np.tile(np.arange(128), (rows, 1)), None, cache)
        ids, positions = np.full([rows, 1], 7), np.full([rows, 1], 128)

        def run(passes: Passes = whole, ids: Any = ids, positions: Any = positions, cache: Any = cache) -> Any:
            cache.truncate(128)
            return passes.last(ids, positions, None, cache)

        def reference(passes: Passes = layered, run: Any = run) -> Any:
            return run(passes)

        run.__wrapped__ = reference  # type: ignore[attr-defined]
        workspace_bytes = 2.0 * rows * 129 * 4 * 256
        yield Case(
            f"pass, {rows} rows", run, (), 4 * (weights + workspace_bytes), 2 * rows * weights + 8 * workspace_bytes
        )


def decode_experts() -> Iterator[Case]:
    import paddle
    from erniecore_ops.grouped_swiglu import decode_experts as run

    E, H, I, k = 32, 1024, 768, 6  # noqa: E741
    x, weights = paddle.randn([1, H]), paddle.rand([1, k])
    gate, up, down = paddle.randn([E, H, I]), paddle.randn([E, H, I]), paddle.randn([E, I, H])
    turn = iter(range(10**9))
    chosen = paddle.zeros([1, k], "int64")

    def others() -> None:
        """Experts that are not in the cache from the call before."""
        start = next(turn) * k
        paddle.assign((paddle.arange(k) + start).reshape([1, k]) % E, output=chosen)

    size = 3.0 * k * H * I
    yield Case("decode experts, 6 of 32", run, (x, gate, up, down, chosen, weights), 4 * size, 2 * size, others)


def embedding() -> Iterator[Case]:
    import paddle
    from erniecore_ops.embedding import embedding_backward

    ids, dy, rows = paddle.randint(0, 32000, [2, 1024]), paddle.randn([2, 1024, 512]), 32000
    moved = 4.0 * 512 * (rows + 2048)
    yield Case("embedding backward, 32,000 × 512", embedding_backward, (ids, dy, rows), moved, 2048.0 * 512)


def fp8_quantize() -> Iterator[Case]:
    import paddle
    from erniecore_ops import fp8

    x, one, rows, count = paddle.randn([4096, 4096]), paddle.ones([1]), paddle.rand([4096, 1]) + 0.5, 4096.0**2
    yield Case("fp8 e4m3, one scale, 4096²", fp8.fp8_quantize, (x, one, "e4m3"), 8 * count, 8 * count)
    yield Case("fp8 e5m2, a scale per row, 4096²", fp8.fp8_quantize, (x, rows, "e5m2"), 8 * count, 8 * count)


def grouped_swiglu() -> Iterator[Case]:
    """Layers of moe-S: 2,048 tokens to 4 experts each; gradients of everything."""
    import paddle
    from erniecore_ops.grouped_swiglu import grouped_swiglu_backward, grouped_swiglu_forward, make_routes

    T, k, H, I = 2048, 4, 256, 192  # noqa: E741
    for E in (16, 128):
        shapes = [T, H], [E, H, I], [E, H, I], [E, I, H], [T, k]
        inputs, dy = [paddle.randn(shape) * 0.1 for shape in shapes], paddle.randn([T, H])
        routes = make_routes(paddle.argsort(paddle.rand([T, E]))[:, :k].numpy(), E)
        kept = grouped_swiglu_forward(*inputs, routes)[1:]
        size = f"{E} experts, {T:,} × {k}, {H} × {I}"
        products, matrices = 2.0 * T * k * H * I, 12.0 * E * H * I
        moved = 8.0 * T * H + 8.0 * T * k * I
        yield Case(f"experts, {size}", grouped_swiglu_forward, (*inputs, routes), moved + matrices, 3 * products)
        arguments = *inputs, *kept, dy, routes, [True] * 5
        moved += 4.0 * T * H + 2 * matrices
        yield Case(f"experts backward, {size}", grouped_swiglu_backward, arguments, moved, 6 * products)


def hadamard() -> Iterator[Case]:
    import paddle
    from erniecore_ops import fp8

    count = 4096.0**2
    yield Case("hadamard, blocks of 32, 4096²", fp8.hadamard, (paddle.randn([4096, 4096]), 32), 8 * count, 5 * count)


def bfloat16_weights() -> Iterator[Case]:
    import paddle
    from erniecore_ops.bfloat16_weights import bfloat16_matmul

    weight = paddle.randn([8192, 8192]).astype("bfloat16")
    for N in (1, 512):
        for transposed, order in ((False, "[in, out]"), (True, "[out, in]")):
            arguments = paddle.randn([N, 8192]), weight, transposed
            yield Case(f"{order}, {N} × 8192²", bfloat16_matmul, arguments, 2.0 * 8192**2, 2.0 * N * 8192**2)


def grouped_linear() -> Iterator[Case]:
    import paddle
    from erniecore_ops.functions import dispatch
    from erniecore_ops.grouped_linear import grouped_weight_gradient

    T, E, k, H, r = 4096, 64, 6, 2560, 16
    rows, routes = dispatch(paddle.randn([T, H]), paddle.rand([T, E]).topk(k)[1], E)
    arguments, moved = (rows, paddle.randn([T * k, r]), routes.experts, E), 4.0 * T * k * (H + r) + 4.0 * E * H * r
    label = f"gradient of {E} experts, {T * k:,} rows, {H} × {r}"
    yield Case(label, grouped_weight_gradient, arguments, moved, 2.0 * T * k * H * r)


def matmul() -> Iterator[Case]:
    import paddle
    from erniecore_ops.matmul import parts_matmul

    for name, parts in (("high", 2), ("medium", 1)):
        for M, K, N in ((512, 1024, 3072), (2048, 1024, 3072)):
            arguments = paddle.randn([M, K]), paddle.randn([K, N]), False, False, parts, None
            moved, flops = 4.0 * (M * K + K * N + M * N), 2.0 * M * K * N
            yield Case(f"{name}, {M:,} × {K:,} × {N:,}", parts_matmul, arguments, moved, flops)


def packed_weights() -> Iterator[Case]:
    import paddle
    from erniecore_ops.functions import QuantizedMatrix
    from erniecore_ops.packed_weights import dequantize, quantized_matmul, quantized_matmul_backward

    I, O = 8192, 8192  # noqa: E741
    for quant_dtype, group, bits in (("int8", 0, 8), ("int4", 64, 4), ("nf4", 64, 4)):
        rows, groups = O * bits // 8, I // group if group else 1
        qweight = paddle.randint(-127, 128, [rows, I], "int32").astype("int8")
        weight = QuantizedMatrix(qweight, paddle.rand([O, groups] if group else [O]), quant_dtype, group, O)
        stored = float(rows * I + 4 * O * groups)
        name = f"{quant_dtype} in groups of {group}" if group else quant_dtype
        for N in (1, 8, 512):
            arguments = paddle.randn([N, I]), weight
            yield Case(f"{name}, {N} × 8192²", quantized_matmul, arguments, stored, 2.0 * N * I * O)
        arguments = paddle.randn([512, O]), weight
        yield Case(f"{name}, 512 × 8192² backward", quantized_matmul_backward, arguments, stored, 1024.0 * I * O)
        yield Case(f"{name} to numbers, 8192²", dequantize, (weight,), stored + 4.0 * I * O, 2.0 * I * O)


def quantizing() -> Iterator[Case]:
    import numpy as np
    from erniecore_ops.quantizing import quantize_matrix

    I, O = 8192, 8192  # noqa: E741
    rows = np.random.default_rng(0).standard_normal((O, I), np.float32)
    stored = (rows.view(np.uint32) >> 16).astype(np.uint16)
    for quant_dtype, group, bits in (("int8", 0, 8), ("int4", 64, 4), ("nf4", 64, 4)):
        values, scales = np.empty((O * bits // 8, I), np.int8), np.empty((O, I // group if group else 1), np.float32)
        arguments = stored.T, "bfloat16", quant_dtype, group, values, scales
        moved = float(stored.nbytes + values.nbytes + scales.nbytes)
        yield Case(f"bfloat16 to {quant_dtype}, 8192²", quantize_matrix, arguments, moved, 8.0 * I * O)


def random_values() -> Iterator[Case]:
    import numpy as np
    from erniecore_ops.random_values import draw_values

    table, out = np.arange(1 << 16).astype(np.uint16), np.empty(1 << 25, np.uint16)
    yield Case("32 M values of 2 bytes", draw_values, (5, table, 0, out), float(out.nbytes), 1.0 * len(out))


def rms_norm() -> Iterator[Case]:
    import paddle
    from erniecore_ops.rms_norm import rms_norm_backward, rms_norm_forward

    x, dy, weight, size = paddle.randn([4096, 4096]), paddle.randn([4096, 4096]), paddle.ones([4096]), 4.0 * 4096**2
    _, inverse = rms_norm_forward(x, weight, 1e-5)
    yield Case("rms norm, 4096²", rms_norm_forward, (x, weight, 1e-5), 2 * size, size)
    arguments = x, weight, inverse, dy, (True, True)
    yield Case("rms norm backward, 4096²", rms_norm_backward, arguments, 3 * size, 10 * size / 4)


def rope() -> Iterator[Case]:
    import paddle
    from erniecore_ops.rope import rotate

    x, angles, size = paddle.randn([4, 1024, 32, 128]), paddle.rand([1, 1024, 64]), 4.0 * 4096**2
    yield Case("rotate pairs, 4 × 1,024 × 32 × 128", rotate, (x, angles, angles), 2 * size, 3 * size / 4)
    yield Case("rotate halves, the same", rotate, (x, angles, angles, 1.0, True), 2 * size, 3 * size / 4)


def softmax() -> Iterator[Case]:
    import paddle
    from erniecore_ops._attention_plan import softmax_rows_

    x = paddle.randn([4096, 4096])
    yield Case("softmax in place, 4096²", softmax_rows_, (x,), 8.0 * 4096**2, 5.0 * 4096**2)


def swiglu() -> Iterator[Case]:
    import paddle
    from erniecore_ops.swiglu import swiglu_backward, swiglu_forward

    gate, up, dy, count = *(paddle.randn([4096, 4096]) for _ in range(3)), 4096.0**2
    yield Case("swiglu, 4096²", swiglu_forward, (gate, up), 12 * count, 5 * count)
    yield Case("swiglu backward, 4096²", swiglu_backward, (gate, up, dy), 20 * count, 11 * count)


def top_experts() -> Iterator[Case]:
    import paddle
    from erniecore_ops.top_experts import top_experts as choose

    T, E, k = 65536, 64, 6
    yield Case(
        "6 of 64 experts, 65,536 tokens", choose, (paddle.rand([T, E]), k), 4.0 * T * E + 8.0 * T * k, 1.0 * T * E
    )


#: operator (as in ``erniecore.kernels.OPERATORS``) -> its calls
CASES: Mapping[str, Callable[[], Iterator[Case]]] = {
    maker.__name__: maker
    for maker in (
        adamw,
        attention,
        bfloat16_weights,
        bias,
        cross_entropy,
        decode_attention,
        decode_experts,
        decoder_step,
        embedding,
        fp8_quantize,
        gelu,
        grouped_linear,
        grouped_swiglu,
        hadamard,
        layer_norm,
        matmul,
        packed_weights,
        quantizing,
        random_values,
        rms_norm,
        rope,
        softmax,
        swiglu,
        top_experts,
    )
}

#: operators of which there is no single call in plain Paddle -> what measures them
ELSEWHERE = {"decoder_step": "python -m benchmarks.decoding"}
