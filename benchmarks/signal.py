"""Signal to noise of normal weights under every stored form, beside theory: uniform rounding of step d has noise d² / 12, and
the step is the largest of the group's values over the largest code. ``python -m benchmarks.signal`` prints the table.

FP8 has no step: its theory is the rounding of ml_dtypes with the same scales, in float64. NF4 has that of its levels, by
numerical integration over the normal density at the mean largest value of a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

INPUTS, OUTPUTS = 4096, 512
Floats = NDArray[np.float64]


def decibels(signal: Floats, noisy: Floats) -> float:
    """10 log10 of the ratio of squares."""
    return float(10 * np.log10(np.square(signal).sum() / np.square(signal - noisy).sum()))


def uniform(weights: Floats, top: int, group: int) -> float:
    """From the mean square of the groups' largest values alone."""
    largest = np.abs(weights.T.reshape(-1, group)).max(axis=1)
    return 10 * math.log10(12 * top**2 / float(np.square(largest).mean()))


def lines() -> list[tuple[str, float, float]]:
    """Scheme, measured and theoretical SQNR in dB."""
    import ml_dtypes
    import paddle
    from erniecore_fp8_qat.recipes import BlockWise, TensorWise
    from erniecore_weight_only.codec import NF4, decode, encode
    from erniecore_weight_only.schemes import Scheme

    weights = np.random.default_rng(0).standard_normal((INPUTS, OUTPUTS)).astype(np.float32)
    wide, tensor = weights.astype(np.float64), paddle.to_tensor(weights)
    found = []
    for form, group, top in (("int8", 0, 127), ("int8", 128, 127), ("int4", 0, 7), ("int4", 128, 7), ("int4", 64, 7)):
        scheme = Scheme(form, group)
        numbers = decode(encode(tensor, scheme, "weights"), scheme, OUTPUTS).numpy().T.astype(np.float64)
        place = f"{group} inputs" if group else "output"
        found.append((f"{form}, scale per {place}", decibels(wide, numbers), uniform(wide, top, group or INPUTS)))
    numbers = decode(encode(tensor, Scheme("nf4", 64), "weights"), Scheme("nf4", 64), OUTPUTS).numpy().T
    found.append(
        ("nf4, scale per 64 inputs", decibels(wide, numbers.astype(np.float64)), levels(np.array(NF4), wide, 64))
    )
    for name, recipe in (("fp8, scale per tensor", TensorWise()), ("fp8, 128x128, powers of two", BlockWise())):
        turned = recipe.unpack(recipe.pack(tensor)).numpy().astype(np.float64)
        scale = np.float64(np.abs(wide).max() / 448)
        if isinstance(recipe, BlockWise):
            scale = 2.0 ** math.ceil(math.log2(scale))
        found.append(
            (name, decibels(wide, turned), decibels(wide, (wide / scale).astype(ml_dtypes.float8_e4m3fn) * scale))
        )
    return found


def levels(nf4: Floats, weights: Floats, group: int) -> float:
    """Noise of the nearest level over a normal density, cut at the mean largest value of a block."""
    largest = float(np.abs(weights.T.reshape(-1, group)).max(axis=1).mean())
    x = np.linspace(-largest, largest, 200_001)
    density = np.exp(-(x**2) / 2)
    nearest: Callable[[Floats], Floats] = lambda v: nf4[np.abs(v[:, None] / largest - nf4).argmin(axis=1)] * largest  # noqa: E731
    return float(10 * np.log10((density * x**2).sum() / (density * (x - nearest(x)) ** 2).sum()))


def main() -> None:
    """Print the results as a table."""
    print("| form | measured dB | theory dB |\n|---|---|---|")
    for name, measured, theory in lines():
        print(f"| {name} | {measured:.2f} | {theory:.2f} |")


if __name__ == "__main__":
    main()
