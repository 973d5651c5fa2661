"""What a kernel refuses, that its bits do not depend on the number of threads, and what importing the package needs."""

import subprocess
import sys

import numpy as np
import paddle  # noqa: TID253
import pytest
from ernie_third_party_kernels import library
from ernie_third_party_kernels.kernel_set import native

from erniecore.kernels import OPERATORS

LIBRARY = pytest.mark.skipif(bool(native.fault()), reason="the library was not built")


def load(threads=1, isa=""):
    found = {}
    for operator in sorted(native.operators):
        found |= native.load(operator, lambda: threads, isa)
    return found


def test_importing_it_needs_neither_paddle_nor_numpy_nor_erniecore():
    code = "import sys, ernie_third_party_kernels.kernel_set as k; k.native.fault(); print(sorted(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"'paddle'", "'numpy'", "'erniecore'", "'ctypes.wintypes'"} & set(out.strip("[]\n").split(", "))


@LIBRARY
def test_it_has_the_functions_of_its_operators():
    for operator in native.operators:
        assert set(native.load(operator, lambda: 1)) == set(OPERATORS[operator])


@LIBRARY
def test_the_same_bits_on_any_number_of_threads(monkeypatch):
    from ernie_third_party_kernels import tensors

    monkeypatch.setattr(tensors, "FEWEST_ELEMENTS", 0)
    rng = np.random.default_rng(1)
    x, w, dy = (paddle.to_tensor(rng.standard_normal(s).astype("float32")) for s in ((37, 150), (150,), (37, 150)))
    inverse = paddle.ones([37])
    first, *others = ([*load(n)["rms_norm_backward"].run(x, w, inverse, dy, (True, True))] for n in (1, 2, 3, 5))
    for other in others:
        for a, b in zip(first, other, strict=True):
            assert np.array_equal(a.numpy(), b.numpy())


@LIBRARY
def test_dtypes_and_gaps_that_it_cannot_take():
    kernels = load()
    x, w = paddle.ones([4, 8]), paddle.ones([8])
    assert kernels["rms_norm_forward"].supports(x, w, 1e-5)
    assert not kernels["rms_norm_forward"].supports(x.astype("float64"), w, 1e-5)
    assert not kernels["rms_norm_forward"].supports(x.astype("bfloat16"), w.astype("bfloat16"), 1e-5)
    assert not kernels["rms_norm_forward"].supports(paddle.ones([4, 16])[:, :8], w, 1e-5)
    assert not kernels["swiglu_forward"].supports(x, x.astype("float64"))
    assert not kernels["softmax_rows_"].supports(paddle.zeros([0, 4]))
    q = paddle.ones([1, 1, 2, 4])
    assert not kernels["decode_attention"].supports(q, q.transpose([0, 1, 3, 2]), q, None, 1.0)
    experts = paddle.zeros([65, 1], "int64")
    assert not kernels["decode_experts"].supports(x, x, x, x, experts, x)


def test_the_best_library_that_the_processor_can_run(tmp_path):
    for name in ("avx512", "avx2", "plain"):
        (tmp_path / f"kernels_{name}.so").touch()
    everything = frozenset().union(*library.LIBRARIES.values())
    assert library.usable(everything, tmp_path) == ["avx512", "avx2", "plain"]
    assert library.usable(frozenset({"avx2", "fma"}), tmp_path) == ["avx2", "plain"]
    assert library.usable(frozenset(), tmp_path) == ["plain"]
    (tmp_path / "kernels_avx2.so").unlink()
    assert library.usable(frozenset({"avx2", "fma"}), tmp_path) == ["plain"]


def test_a_folder_without_libraries_says_why(tmp_path):
    assert "compiler" in library.fault(tmp_path)
