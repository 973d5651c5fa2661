"""``python -m ernie_third_party_kernels.selftest --device cuda``: every GPU kernel against numpy, on tensors of torch or
Paddle. ``TRITON_INTERPRET=1 … --device interpreter`` runs them on the CPU in Triton's interpreter, on tensors of torch (slow).
``--compile`` compiles them for a GPU that need not be there (``--arch 90``: sm_90) and says how large they are. ``--bench``
measures them at the sizes of 21B-A3B against the GPU's own rates of copies and products."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Any

import numpy as np

from ernie_third_party_kernels import gpu
from ernie_third_party_kernels.gpu_cases import OPERATORS, Case, cases

#: architecture -> shared memory that a program may have (CUDA C++ Programming Guide, technical specifications)
SHARED_KIB = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227}


def main(arguments: list[str] | None = None) -> int:
    """0 if all agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "interpreter"], default="cuda")
    parser.add_argument("--framework", choices=["", "torch", "paddle"], default="")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--arch", type=int, default=90)
    parser.add_argument(
        "--bench", action="store_true", help="rates at the sizes of 21B-A3B; in the interpreter at tiny ones"
    )
    chosen = parser.parse_args(arguments)
    if chosen.compile:
        return show_compiled(chosen.arch)
    if chosen.device == "interpreter" and os.environ.get("TRITON_INTERPRET") != "1":
        print("--device interpreter needs TRITON_INTERPRET=1 in the environment")
        return 2
    lib = gpu.framework(chosen.framework)
    if chosen.device == "cuda" and not gpu.has_gpu(lib):
        print(f"{lib.__name__} sees no CUDA device here; --device interpreter or --compile need none")
        return 3
    if chosen.bench:
        importlib.import_module("ernie_third_party_kernels.gpu_bench").bench(lib, chosen.device)
        return 0
    return check(lib, "cpu" if chosen.device == "interpreter" else "cuda")


def show_compiled(arch: int) -> int:
    """0 if all fit."""
    failed = 0
    for name, size, shared in compiled(arch):
        if not size:
            print(f"not for sm_{arch}: {name}")
            continue
        large = shared > SHARED_KIB.get(arch, 1 << 20) * 1024
        failed += large
        print(
            f"compiled for sm_{arch}: {name}, {size} bytes, {shared} of shared memory{' (TOO MUCH)' if large else ''}"
        )
    return int(failed > 0)


def check(lib: Any, device: str) -> int:
    """Every case; 0 if all agree."""
    failed = 0
    for case in cases():
        error = difference(case, lib, device)
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


def compiled(arch: int) -> list[tuple[str, int, int]]:
    """(kernel, bytes of its machine code, bytes of shared memory) of every kernel, compiled ahead of time for ``arch``; 0
    where the architecture is too old for it. Needs triton alone."""
    triton = importlib.import_module("triton")
    compiler = importlib.import_module("triton.compiler")
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", arch, 32)
    found = []
    for operator in OPERATORS:
        module = importlib.import_module(f"ernie_third_party_kernels.{operator}.triton")
        if arch < getattr(module, "ARCH", 0):
            found.append((f"{operator} (needs sm_{module.ARCH})", 0, 0))
            continue
        for function, types, sizes, *options in module.COMPILED:
            names = function.arg_names
            signature = {name: types.get(name, "constexpr") for name in names}
            constants = {(names.index(name),): value for name, value in sizes.items()}
            # as at a launch with aligned memory and round sizes; without it loads are neither wide nor ahead of their use
            round_ = {
                (i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if types.get(name, "fp32") != "fp32"
            }
            source = compiler.ASTSource(function, signature, constants, round_)
            made = triton.compile(source, target=target, options=options[0] if options else None)
            found.append((f"{operator}.{function.__name__}", len(made.asm["cubin"]), made.metadata.shared))
    return found


if __name__ == "__main__":
    sys.exit(main())
