"""Whole passes of a decoder on Paddle's tensors. ``DecoderPlan`` and ``NewTokens`` are erniecore's; only their attributes
are read here. Nothing is copied: addresses are asked for anew before every pass, so weights that move are followed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from ctypes import CDLL
from typing import Any, TypeAlias

import numpy as np
import paddle  # noqa: TID253
from numpy.typing import NDArray
from paddle import Tensor  # noqa: TID253

from ernie_third_party_kernels.library import COUNT, POINTER, SIZE, function
from ernie_third_party_kernels.tensors import Kernel, Threads, plain, pointer, team

#: see ``Form`` in plan.h
COLUMNS, OUTPUTS_FIRST, BFLOAT = 1, 2, 5
#: see ``Table`` in plan.h
TABLES = {paddle.float32: 0, paddle.bfloat16: 1, paddle.int8: 2}
PACKED = {"int8": 3, "int4": 4, "nf4": 5}
MATRIX_WORDS = 11
#: tokens and columns beyond which matrix products of BLAS and attention by blocks are faster
MOST_TOKENS, MOST_COLUMNS = 512, 128
#: see ``Layer`` in plan.h: where the addresses of keys and values stand
LAYER_WORDS = 2 + 10 * MATRIX_WORDS + 5 + 2
MODEL_WORDS = 11 + MATRIX_WORDS

Word: TypeAlias = Any  # a number, a tensor whose address it is, or None


class Step:
    """A plan as the library reads it. See ``erniecore_ops.DecoderStep``."""

    def __init__(self, library: CDLL, threads: Threads, plan: Any) -> None:
        self._run = function(library, "decoder_step", [POINTER] * 4 + [COUNT], COUNT)
        self._floats = function(library, "decoder_step_floats", [POINTER] * 3 + [COUNT], SIZE)
        self._threads, self.plan = threads, plan
        words = [*_model(plan), *(word for block in plan.blocks for word in _block(block))]
        self._words = np.array([0 if word is None or isinstance(word, Tensor) else word for word in words], np.int64)
        self._places = np.array([i for i, word in enumerate(words) if isinstance(word, Tensor)])
        self._tensors = [word for word in words if isinstance(word, Tensor)]
        layers = MODEL_WORDS + LAYER_WORDS * np.arange(len(plan.blocks))
        self._caches = np.concatenate([layers + LAYER_WORDS - 2, layers + LAYER_WORDS - 1])
        norm_min = next((block.experts.norm_min for block in plan.blocks if block.experts), 0.0)
        self._constants = np.array([plan.epsilon, norm_min, plan.head_dim**-0.5], np.float32)
        self._weights = sum(int(tensor.size) for tensor in self._tensors)
        self._workspace: NDArray[np.float32] = np.empty(0, np.float32)

    def takes(self, rows: int, columns: int) -> bool:
        """Whether so many new tokens are few enough."""
        return columns <= MOST_COLUMNS and rows * columns <= MOST_TOKENS

    def run(self, tokens: Any) -> NDArray[np.float32]:
        """One decoding step; logits [n, V]."""
        (b, w), n, vocabulary = tokens.ids.shape, len(tokens.places), self.plan.head.outputs
        logits = np.empty((n, vocabulary), np.float32)
        arrays = [np.ascontiguousarray(array, np.int64) for array in (tokens.ids, tokens.positions, tokens.places)]
        mask = None if tokens.mask is None else np.ascontiguousarray(tokens.mask != 0)
        self._words[self._places] = [tensor.data_ptr() for tensor in self._tensors]
        self._words[self._caches] = [tensor.data_ptr() for tensor in (*tokens.keys, *tokens.values)]
        asked = [b, w, tokens.start, tokens.keys[0].shape[1], n, arrays[0].ctypes.data, arrays[1].ctypes.data]
        asked += [0 if mask is None else mask.ctypes.data, arrays[2].ctypes.data]
        asked += [logits.ctypes.data, pointer(tokens.residual), 0]
        passed, model = np.array(asked, np.int64), self._words.ctypes.data
        parts = model, model + 8 * MODEL_WORDS, passed.ctypes.data
        threads = team(self._threads, self._weights)
        passed[-1] = self._memory(int(self._floats(*parts, threads)))
        if self._run(*parts, self._constants.ctypes.data, threads):
            raise ValueError(
                f"token ids must be in 0 .. {self.plan.embedding.shape[0] - 1}, found {tokens.ids.tolist()}"
            )
        return logits

    def _memory(self, floats: int) -> int:
        """Address of so many floats, on a line of the cache."""
        if len(self._workspace) < floats + 16:
            self._workspace = np.empty(floats + floats // 4 + 16, np.float32)
        address: int = self._workspace.ctypes.data
        return (address + 63) // 64 * 64


def _model(plan: Any) -> Iterator[Word]:
    hidden, first = plan.embedding.shape[1], plan.blocks[0]
    yield from (len(plan.blocks), hidden, first.q.outputs // plan.head_dim, first.k.outputs // plan.head_dim)
    yield from (plan.head_dim, plan.embedding.shape[0], TABLES[plan.embedding.dtype])
    yield from (plan.embedding, plan.embedding_scales, plan.frequencies, plan.norm)
    yield from _matrix(plan.head)


def _block(block: Any) -> Iterator[Word]:
    yield from (block.norm, block.mlp_norm)
    for projection in (block.q, block.k, block.v, block.o, *(block.mlp or (None, None, None))):
        yield from _matrix(projection)
    routed = block.experts
    if routed is None:
        yield from (0,) * (5 + 3 * MATRIX_WORDS)
    else:
        yield from (routed.router.shape[1], routed.num_selected, int(routed.scoring == "sigmoid"))
        yield from (routed.router, routed.selection_bias)
        for projection in (routed.gate, routed.up, routed.down):
            yield from _matrix(projection)
    yield from (0, 0)


def _matrix(projection: Any) -> Iterator[Word]:
    """Of one projection; zeros for None."""
    if projection is None:
        yield from (0,) * MATRIX_WORDS
        return
    weight, update = projection.weight, projection.update
    if isinstance(weight, Tensor):
        layout, inputs, group = COLUMNS, weight.shape[-2], 0
        if projection.transposed:
            layout, inputs = OUTPUTS_FIRST, weight.shape[-1]
        layout += BFLOAT * int(weight.dtype == paddle.bfloat16)
        data, scales = weight, None
    else:
        layout, inputs, group = PACKED[weight.quant_dtype], weight.qweight.shape[-1], weight.group
        data, scales = weight.qweight, weight.scales
    yield from (layout, inputs, projection.outputs, group, data, scales, projection.bias)
    if update is None:
        yield from (0,) * 4
    else:
        scale = struct.unpack("q", struct.pack("d", update.scale))[0]
        yield from (update.first.shape[-1], update.first, update.second, scale)


def _fits(projection: Any, inputs: int, outputs: int, stack: tuple[int, ...] = ()) -> bool:
    """Whether a projection [*stack, inputs, outputs] lies as the library reads it."""
    weight, update, rest = projection.weight, projection.update, [projection.bias]
    if isinstance(weight, Tensor):
        turned, halves = projection.transposed, weight.dtype == paddle.bfloat16
        good = weight.shape == [*stack, *((outputs, inputs) if turned else (inputs, outputs))] and _stored(weight)
        good = good and (halves or not (turned and stack))
    else:
        rows = outputs if weight.quant_dtype == "int8" else (outputs + 1) // 2
        groups = [-(-inputs // weight.group)] if weight.group else []
        good = weight.quant_dtype in PACKED and weight.qweight.shape == [*stack, rows, inputs] and plain(weight.scales)
        good = good and weight.scales.shape == [*stack, outputs, *groups] and not projection.transposed
        good = good and weight.qweight.dtype == paddle.int8 and weight.qweight.is_contiguous()
    if update is not None:
        good = good and not stack and plain(update.first, update.second)
        good = good and [update.first.shape[0], update.second.shape[-1]] == [inputs, outputs]
        good = good and update.first.shape[-1] == update.second.shape[0]
    if projection.bias is not None:
        good = good and projection.bias.shape == [outputs] and not stack
    return good and projection.outputs == outputs and plain(*rest)


def _stored(weight: Tensor) -> bool:
    """Whether values lie without gaps, in float32 or bfloat16."""
    return plain(weight) or bool(weight.dtype == paddle.bfloat16 and weight.is_contiguous())


def _table_fits(plan: Any) -> bool:
    """Whether the embedding lies as the library reads it."""
    if plan.embedding_scales is None:
        return _stored(plan.embedding)
    scales, values = plan.embedding_scales, plan.embedding
    return values.dtype == paddle.int8 and values.is_contiguous() and plain(scales) and scales.shape == values.shape[:1]


def _supported(plan: Any) -> bool:
    """Whether the library can run a plan."""
    V, H = plan.embedding.shape
    d, scorings = plan.head_dim, {"softmax", "sigmoid"}
    good = bool(plan.blocks) and d % 2 == 0 and plan.frequencies.shape == [d // 2] and plan.norm.shape == [H]
    good = good and _table_fits(plan) and plain(plan.frequencies, plan.norm) and _fits(plan.head, H, V)
    if not good:
        return False
    wide, narrow = plan.blocks[0].q.outputs, plan.blocks[0].k.outputs
    if wide % d or not narrow or narrow % d or (wide // d) % (narrow // d):
        return False
    least = {block.experts.norm_min for block in plan.blocks if block.experts}
    return len(least) < 2 and all(_block_fits(block, H, wide, narrow, scorings) for block in plan.blocks)


def _block_fits(block: Any, H: int, wide: int, narrow: int, scorings: set[str]) -> bool:
    good = plain(block.norm, block.mlp_norm) and block.norm.shape == block.mlp_norm.shape == [H]
    good = good and _fits(block.q, H, wide) and _fits(block.k, H, narrow) and _fits(block.v, H, narrow)
    good = good and _fits(block.o, wide, H) and (block.mlp is not None or block.experts is not None)
    if good and block.mlp is not None:
        gate, up, down = block.mlp
        good = _fits(gate, H, gate.outputs) and _fits(up, H, gate.outputs) and _fits(down, gate.outputs, H)
    routed = block.experts
    if not good or routed is None:
        return good
    E, I = routed.router.shape[-1], routed.gate.outputs  # noqa: E741
    good = plain(routed.router, routed.selection_bias) and routed.router.shape == [H, E] and routed.scoring in scorings
    good = good and routed.selection_bias.size == E and 0 < routed.num_selected <= E
    return good and _fits(routed.gate, H, I, (E,)) and _fits(routed.up, H, I, (E,)) and _fits(routed.down, I, H, (E,))


def kernels(library: CDLL, threads: Threads) -> Mapping[str, Kernel]:
    """Kernels that replace ``decoder_step`` of ``erniecore_ops``."""
    return {"decoder_step": Kernel(lambda plan: Step(library, threads, plan), _supported)}
