"""What a kernel refuses, that its bits do not depend on the number of threads, and what importing the package needs."""

import shutil
import subprocess
import sys

import numpy as np
import paddle  # noqa: TID253
import pytest
from ernie_third_party_kernels import library
from ernie_third_party_kernels.kernel_set import native
from ernie_third_party_kernels.sources import mark
from erniecore_conformance.runner import run_checks
from erniecore_conformance.subjects import Subject

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


@pytest.mark.parametrize("name", ["native", "triton"])
def test_the_plugin_objects_keep_the_rules_of_their_kind(name):
    outcomes = run_checks(Subject.installed("kernels", name))
    failed = {o.check: o.detail for o in outcomes if o.status == "failed"}
    # the package stands alone: it has no versions of erniecore that it needs
    assert failed.keys() <= {"every_core_has_upper_bound"}, failed
    assert any(o.check.startswith("kernels_") and o.status == "passed" for o in outcomes)


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
    runs = []
    for threads in (1, 2, 3, 5):
        kernels = load(threads)
        y, *kept = kernels["layer_norm_forward"].run(x, w, w, 1e-5)
        gradients = kernels["layer_norm_backward"].run(x, w, *kept, dy, (True, True))
        runs.append([y, *kept, *gradients, kernels["sum_rows"].run(dy), kernels["gelu_backward"].run(x, dy, "erf")])
    for other in runs[1:]:
        assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(runs[0], other, strict=True))


def refusals():
    """Kernel and arguments that it must leave to the reference: dtypes, gaps, and shapes that it would read beyond."""
    x, w, cos = paddle.ones([4, 8]), paddle.ones([8]), paddle.ones([1, 1, 2])
    q, k, experts = paddle.ones([1, 1, 2, 4]), paddle.ones([1, 3, 1, 4]), paddle.zeros([4, 2], "int64")
    gate, down, weights = paddle.ones([3, 8, 5]), paddle.ones([3, 5, 8]), paddle.ones([4, 2])
    yield (
        "rms_norm_forward",
        (x, w, 1e-5),
        {0: [x.astype("float64"), paddle.ones([4, 16])[:, :8]], 1: [paddle.ones([7])]},
    )
    yield "rms_norm_backward", (x, w, paddle.ones([4]), x, (True, True)), {2: [paddle.ones([3])], 3: [x[:3]]}
    yield (
        "layer_norm_forward",
        (x, w, w, 1e-5),
        {0: [x.astype("float64")], 1: [paddle.ones([7])], 2: [paddle.ones([7])]},
    )
    rows = paddle.ones([4])
    yield "layer_norm_backward", (x, w, rows, rows, x, (True, True)), {2: [rows[:3]], 3: [rows[:3]], 4: [x[:3]]}
    yield "gelu_forward", (x, "erf"), {0: [x.astype("bfloat16")], 1: ["relu"]}
    yield "gelu_backward", (x, x, "tanh"), {1: [x[:3]], 2: ["relu"]}
    yield "add_bias_", (x, w), {0: [paddle.ones([4, 16])[:, :8]], 1: [paddle.ones([7]), paddle.ones([1, 8])]}
    yield "sum_rows", (x,), {0: [w, x.astype("float64")]}
    qkv, seen, stats = paddle.ones([5, 3, 2, 4]), paddle.ones([5, 2, 4]), (paddle.ones([2, 5]),)
    lengths = {1: [(2, 2), (5, 0), ()]}
    yield "patch_attention_forward", (qkv, (2, 3), 1.0), {0: [qkv.astype("float64"), qkv[:, :2], qkv[:4]], **lengths}
    wrong = {1: [seen[:4]], 2: [(), (paddle.ones([5, 2]),)], 3: [seen.astype("float64")], 4: lengths[1]}
    yield "patch_attention_backward", (qkv, seen, stats, seen, (2, 3), 1.0), wrong
    yield (
        "swiglu_forward",
        (x, x, paddle.ones([4, 1])),
        {0: [x.astype("bfloat16")], 1: [x[:3]], 2: [paddle.ones([3, 1])]},
    )
    yield "swiglu_backward", (x, x, x), {2: [x[:3]]}
    yield "rotate", (q, cos, cos), {0: [paddle.ones([1, 2, 2, 4])], 1: [cos[:, :, :1]], 2: [cos[:, :, :1]]}
    yield (
        "softmax_rows_",
        (x, x, paddle.ones([4, 1])),
        {0: [paddle.zeros([0, 8])], 1: [x[:3]], 2: [paddle.ones([3, 1])]},
    )
    wrong_keys = [k[:, :, :, :2], paddle.ones([2, 3, 1, 4]), k.astype("float64")]
    yield (
        "decode_attention",
        (q, k, k, paddle.ones([1, 3]), 1.0),
        {1: wrong_keys, 2: [k[:, :2]], 3: [paddle.ones([1, 2])]},
    )
    wide = paddle.ones([1, 3, 2, 4])
    wrong = {0: [wide.astype("float64"), wide[..., ::2]], 1: [*wrong_keys, k[:, :, [0, 0, 0]]], 2: [k[:, :2]]}
    wrong |= {3: [paddle.ones([1, 1, 2, 1], "int32"), paddle.ones([1, 1, 3, 1])], 4: [paddle.ones([1, 2])]}
    masks = paddle.ones([1, 1, 3, 1], "int32"), paddle.ones([1, 3])
    yield "attention_forward", (wide, k, k, *masks, 1.0), wrong
    saved = {3: [wide[:, :2]], 4: [None], 5: [wide.astype("float64")]}
    yield "attention_backward", (wide, k, k, wide, paddle.ones([1, 2, 3]), wide, *masks, 1.0), saved
    wrong = {2: [gate[:2]], 3: [gate], 4: [experts[:3], experts.astype("int32")], 5: [weights[:, :1]]}
    yield "decode_experts", (x, gate, gate, down, experts, weights), wrong
    many = paddle.zeros([4, 17], "int64"), paddle.ones([4, 17])
    yield "decode_experts", (x, gate, gate, down, *many), {}


@LIBRARY
def test_it_refuses_what_it_cannot_take():
    kernels = load()
    for name, arguments, replacements in refusals():
        assert kernels[name].supports(*arguments) == bool(replacements), name
        for place, others in replacements.items():
            for other in others:
                changed = [other if i == place else a for i, a in enumerate(arguments)]
                assert not kernels[name].supports(*changed), (name, place)


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


def test_library_older_than_its_sources_is_not_used(tmp_path):
    sources = tmp_path / "package"
    shutil.copytree(library.FOLDER, sources, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in library.LIBRARIES:
        (sources / f"kernels_{name}.so").write_bytes(b"ELF " + mark(sources).encode() + b"\0")
    assert library.fault(sources) == ""
    with (sources / "swiglu" / "kernel.cpp").open("a") as file:
        file.write("\n")
    assert "older than its sources" in library.fault(sources)
