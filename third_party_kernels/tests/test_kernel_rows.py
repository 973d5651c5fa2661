"""Many rows with packed weights, forward and back, against numpy in float64: tails of everything, groups, stacks of experts;
the bound of rows that are rounded to whole numbers; rows beside a row and threads change no bit."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from ernie_third_party_kernels import library
from ernie_third_party_kernels.packed_rows.matmul import has_tiles, matmul_of, splits
from ernie_third_party_kernels.packed_weights import reference
from erniecore_ops.functions import QuantizedMatrix

#: (rows, inputs, outputs, group)
SHAPES = [(65, 1, 1, 0), (66, 64, 33, 0), (131, 130, 261, 0), (70, 50, 70, 24), (197, 300, 67, 32), (75, 270, 35, 128)]


#: a value of a row that is rounded to a whole number is off by at most so much of the largest one of its block
SPLIT = 1 / 65278
#: the same of up to 64 rows, which are split into three parts
FINE = 1 / 16710000


@pytest.mark.parametrize("quant_dtype", ["int8", "int4", "nf4"])
@pytest.mark.parametrize(("rows", "inputs", "outputs", "group"), SHAPES)
def test_many_rows(kernels, tensor, rng, packed, quant_dtype, rows, inputs, outputs, group):
    weight, w = packed(quant_dtype, inputs, outputs, group)
    x, dy = (rng.standard_normal((rows, n)).astype(np.float32) for n in (inputs, outputs))
    scales = weight.scales.numpy().astype(np.float64).reshape([outputs, -1])
    scales = np.repeat(scales, group or inputs, axis=1)[:, :inputs]
    split = SPLIT * np.abs(x).max(axis=1, keepdims=True) * np.abs(w).sum(axis=1)
    # on the way back rows are split when each value has been multiplied with the scale of its output
    split_back = SPLIT * (np.abs(dy)[:, :, None] * scales).max(axis=1) * np.abs(w / scales).sum(axis=0)
    for name, given, matrix, bound in (
        ("quantized_matmul", x, w.T, split),
        ("quantized_matmul_backward", dy, w, split_back),
    ):
        assert kernels[name].supports(tensor(given), weight)
        error = np.abs(kernels[name].run(tensor(given), weight).numpy() - given @ matrix)
        assert (error <= bound + 2e-6 * (np.abs(given) @ np.abs(matrix))).all(), name


@pytest.mark.parametrize("quant_dtype", ["int8", "int4", "nf4"])
@pytest.mark.parametrize("group", [0, 32])
def test_few_rows_back_are_not_rounded(kernels, tensor, rng, quant_dtype, group, packed):
    weight, dequantized = packed(quant_dtype, 77, 45, group)
    dy = rng.standard_normal((9, 45)).astype(np.float32)
    found = kernels["quantized_matmul_backward"].run(tensor(dy), weight).numpy()
    np.testing.assert_allclose(found, dy @ dequantized, rtol=1e-5, atol=1e-6 * np.abs(dequantized).max() * 45)


@pytest.mark.parametrize("quant_dtype", ["int8", "int4", "nf4"])
@pytest.mark.parametrize("group", [0, 32])
def test_experts_with_many_few_and_no_rows(kernels, tensor, rng, quant_dtype, group, packed, routes_of):
    weight, dequantized = packed(quant_dtype, 70, 45, group, stack=(4,))
    ends = [(0, 0, 150), (2, 150, 150), (1, 150, 201), (3, 201, 202)]
    x, dy = (rng.standard_normal((202, n)).astype(np.float32) for n in (70, 45))
    for name, given, turned in (
        ("quantized_grouped_matmul", x, True),
        ("quantized_grouped_matmul_backward", dy, False),
    ):
        call = kernels[name]
        assert call.supports(tensor(given), weight, routes_of(*ends))
        found = call.run(tensor(given), weight, routes_of(*ends)).numpy()
        for expert, start, stop in ends:
            w = dequantized[expert].T if turned else dequantized[expert]
            error, size = np.abs(found[start:stop] - given[start:stop] @ w), np.abs(given[start:stop]) @ np.abs(w)
            assert (error <= 2e-4 * size).all(), (name, expert)


@pytest.mark.parametrize("quant_dtype", ["int8", "int4", "nf4"])
@pytest.mark.parametrize("group", [0, 64])
@pytest.mark.parametrize("name", ["quantized_matmul", "quantized_matmul_backward"])
def test_a_row_has_the_same_bits_whatever_is_beside_it(kernels, tensor, rng, quant_dtype, group, name, packed):
    weight, _ = packed(quant_dtype, 200, 200, group)
    x = rng.standard_normal((150, 200)).astype(np.float32)
    whole = kernels[name].run(tensor(x), weight).numpy()
    x[80:] *= 1e6
    x[3] = np.nan
    x[5, 7] = np.inf
    changed = kernels[name].run(tensor(x), weight).numpy()
    same = [r for r in range(80) if r not in (3, 5)]
    assert np.array_equal(whole[same], changed[same])
    assert np.isnan(changed[3]).all()
    assert not np.isfinite(changed[5]).any()
    assert np.array_equal(whole[9:79], kernels[name].run(tensor(x[9:79]), weight).numpy())


def test_zeros_and_tiny_rows(kernels, tensor, rng, packed):
    weight, dequantized = packed("int8", 100, 40, 0)
    x = rng.standard_normal((80, 100)).astype(np.float32)
    x[1] = 0
    x[2] *= np.float32(1e-20)
    found = kernels["quantized_matmul"].run(tensor(x), weight).numpy()
    assert not found[1].any()
    np.testing.assert_allclose(found[2], x[2].astype(np.float64) @ dequantized.T, atol=1e-3 * np.abs(found[2]).max())


@pytest.mark.skipif("avx512" not in library.usable(library.processor_flags()), reason="no AVX-512")
def test_which_products_are_made_in_whole_numbers():
    best = library.load("avx512")
    there = "avx512_vnni" in library.processor_flags()
    for quant_dtype in ("int8", "int4"):
        assert [splits(best, quant_dtype, group, back=False) for group in (0, 64, 24, 6)] == [
            there,
            there,
            there,
            False,
        ]
        assert [splits(best, quant_dtype, group, back=True) for group in (0, 64, 24, 6)] == [there, there, False, False]
        assert splits(best, quant_dtype, 64, back=False, fine=True) == there
    assert not splits(best, "nf4", 0, back=False)


@pytest.mark.skipif("avx2" not in library.usable(library.processor_flags()), reason="no AVX2")
def test_which_products_are_made_in_whole_numbers_of_16_bits():
    found = library.load("avx2")
    for quant_dtype in ("int8", "int4"):
        assert [splits(found, quant_dtype, group, back=False) for group in (0, 64, 24, 6)] == [True, True, True, False]
        assert [splits(found, quant_dtype, group, back=True) for group in (0, 64, 24, 6)] == [True, True, False, False]
        assert not splits(found, quant_dtype, 64, back=False, fine=True)
    assert not splits(found, "nf4", 0, back=False)
    # what 32 bits hold
    assert [splits(found, "int8", group, back=False) for group in (512, 1024)] == [True, False]
    assert [splits(found, "int4", group, back=False) for group in (1024, 2048)] == [True, False]


@pytest.mark.parametrize(("quant_dtype", "group"), [("int8", 0), ("int8", 512), ("int4", 0), ("int4", 1024)])
def test_sums_of_the_largest_values_do_not_overflow(kernels, tensor, quant_dtype, group):
    inputs = 2048
    qweight = np.full((4 if quant_dtype == "int8" else 2, inputs), -128 if quant_dtype == "int8" else -120, np.int8)
    scales = np.ones([4, inputs // group] if group else [4], np.float32)
    weight = QuantizedMatrix(paddle.to_tensor(qweight), paddle.to_tensor(scales), quant_dtype, group, 4)
    w = reference.dequantize(qweight, scales.astype(np.float64), quant_dtype, group, 4)
    assert w.min() == (-128 if quant_dtype == "int8" else -8)
    for x in (np.ones((70, inputs)), -np.ones((70, inputs))):
        found = kernels["quantized_matmul"].run(tensor(x), weight).numpy()
        np.testing.assert_allclose(found, x @ w.T, rtol=1e-5)


AMX = pytest.mark.skipif(
    "avx512" not in library.usable(library.processor_flags()) or "amx_int8" not in library.processor_flags(),
    reason="no AMX",
)


@AMX
@pytest.mark.parametrize("quant_dtype", ["int8", "int4"])
@pytest.mark.parametrize(
    ("inputs", "outputs", "group"), [(300, 67, 0), (3, 35, 0), (1040, 96, 0), (256, 130, 64), (192, 64, 192)]
)
@pytest.mark.parametrize("fine", [True, False])
def test_tiles_of_the_processor_change_no_bit(tensor, rng, packed, quant_dtype, inputs, outputs, group, fine):
    best = library.load("avx512")
    assert has_tiles(best)
    weight, _ = packed(quant_dtype, inputs, outputs, group, stack=(3,))
    experts, starts = np.array([2, 0], np.int64), np.array([0, 37, 60], np.int64)
    for back, width in ((False, inputs), (True, outputs)):
        x = tensor(rng.standard_normal((60, width)))
        with_tiles, without = (
            matmul_of(best, lambda: 2, tiles)(x, weight, experts, starts, back=back, fine=fine).numpy()
            for tiles in (True, False)
        )
        assert np.isfinite(without).all()
        assert np.array_equal(with_tiles, without), back


@pytest.mark.parametrize("rows", [9, 25, 64])
@pytest.mark.parametrize("quant_dtype", ["int8", "int4"])
@pytest.mark.parametrize("group", [0, 64])
def test_up_to_64_rows_keep_what_float32_does(kernels, tensor, rng, packed, quant_dtype, group, rows):
    weight, w = packed(quant_dtype, 320, 50, group)
    for name, matrix in (
        ("quantized_matmul", w.T.astype(np.float64)),
        ("quantized_matmul_backward", w.astype(np.float64)),
    ):
        x = rng.standard_normal((rows, matrix.shape[0])).astype(np.float32)
        x[1] *= 1e-6
        x[2, 5] *= 1e3
        error = np.abs(kernels[name].run(tensor(x), weight).numpy() - x.astype(np.float64) @ matrix)
        # on the way back a row is split when its values have been multiplied with scales, which differ by less than 16 times
        split = 16 * FINE * np.abs(x).max(axis=1, keepdims=True) * np.abs(matrix).sum(axis=0)
        assert (error <= split + 1e-6 * (np.abs(x) @ np.abs(matrix))).all(), name


@pytest.mark.parametrize("rows", [7, 8, 9, 15, 16, 17, 63, 64, 65])
@pytest.mark.parametrize("quant_dtype", ["int8", "int4", "nf4"])
def test_numbers_of_rows_at_which_the_way_changes(kernels, tensor, rng, packed, quant_dtype, rows):
    weight, w = packed(quant_dtype, 96, 50, 0)
    x = rng.standard_normal((rows, 96)).astype(np.float32)
    error = np.abs(kernels["quantized_matmul"].run(tensor(x), weight).numpy() - x @ w.T)
    bound = SPLIT * np.abs(x).max(axis=1, keepdims=True) * np.abs(w).sum(axis=1) + 2e-6 * (np.abs(x) @ np.abs(w.T))
    assert (error <= bound).all()


def test_refused(kernels, tensor, rng, packed):
    weight, _ = packed("int8", 6, 4, 0)
    back = kernels["quantized_matmul_backward"]
    assert back.supports(paddle.ones([3, 4]), weight)
    assert not back.supports(paddle.ones([3, 6]), weight)
    assert not back.supports(paddle.ones([3, 4], "float64"), weight)
    assert not back.supports(paddle.ones([0, 4]), weight)
