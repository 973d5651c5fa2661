"""``python -m ernie_third_party_kernels.selftest --device cuda``: every GPU kernel against numpy, on tensors of torch or
Paddle. ``TRITON_INTERPRET=1 … --device interpreter`` runs them on the CPU in Triton's interpreter, on tensors of torch (slow).
``--compile`` compiles them for a card that need not be there (``--arch 90``: sm_90) and says how large they are."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Any

import numpy as np

from ernie_third_party_kernels import gpu
from ernie_third_party_kernels.gpu_cases import OPERATORS, Case, cases


def main(arguments: list[str] | None = None) -> int:
    """0 if all agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "interpreter"], default="cuda")
    parser.add_argument("--framework", choices=["", "torch", "paddle"], default="")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--arch", type=int, default=90)
    chosen = parser.parse_args(arguments)
    if chosen.compile:
        for name, size in compiled(chosen.arch):
            print(f"compiled for sm_{chosen.arch}: {name}, {size} bytes")
        return 0
    if chosen.device == "interpreter" and os.environ.get("TRITON_INTERPRET") != "1":
        print("--device interpreter needs TRITON_INTERPRET=1 in the environment")
        return 2
    lib = gpu.framework(chosen.framework)
    if chosen.device == "cuda" and not _has_card(lib):
        print(f"{lib.__name__} sees no CUDA device here; --device interpreter or --compile need none")
        return 3
    failed = 0
    for case in cases("cpu" if chosen.device == "interpreter" else "cuda"):
        error = difference(case, lib, "cpu" if chosen.device == "interpreter" else "cuda")
        good = error <= case.tolerance
        failed += not good
        print(
            f"{'ok' if good else 'WRONG':<6} {case.operator}: {case.what}: {error:.1e} (at most {case.tolerance:.0e})"
        )
    return int(failed > 0)


def difference(case: Case, lib: Any, device: str) -> float:
    """The largest difference over the largest expected number."""
    module = importlib.import_module(f"ernie_third_party_kernels.{case.operator}.triton")
    found = case.call(module, [gpu.from_array(lib, array.copy(), device) for array in case.arrays])
    pairs = zip(found, case.expected, strict=True) if isinstance(case.expected, tuple) else [(found, case.expected)]
    worst = 0.0
    for ours, wanted in pairs:
        kind = lib.float64
        wide = ours.to(kind).cpu().numpy() if lib.__name__ == "torch" else ours.astype("float32").numpy()
        gap = np.abs(wide - wanted).max() / max(1.0, np.abs(wanted).max())
        worst = max(worst, float(gap)) if np.isfinite(gap) else float("inf")
    return worst


def compiled(arch: int) -> list[tuple[str, int]]:
    """(kernel, bytes of its machine code) of every kernel, compiled ahead of time for ``arch``; needs triton alone."""
    triton = importlib.import_module("triton")
    compiler = importlib.import_module("triton.compiler")
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", arch, 32)
    found = []
    for operator in OPERATORS:
        module = importlib.import_module(f"ernie_third_party_kernels.{operator}.triton")
        for function, types, sizes in module.COMPILED:
            names = function.arg_names
            signature = {name: types.get(name, "constexpr") for name in names}
            constants = {(names.index(name),): value for name, value in sizes.items()}
            source = compiler.ASTSource(function, signature, constants)
            made = triton.compile(source, target=target)
            found.append((f"{operator}.{function.__name__}", len(made.asm["cubin"])))
    return found


def _has_card(lib: Any) -> bool:
    if lib.__name__ == "torch":
        return bool(lib.cuda.is_available())
    return bool(lib.is_compiled_with_cuda() and lib.device.cuda.device_count())


if __name__ == "__main__":
    sys.exit(main())
