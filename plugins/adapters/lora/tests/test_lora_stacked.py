"""Updates of experts side by side, as PEFT wraps stacked parameters, and apart again. numpy only."""

from pathlib import Path

import numpy as np
import pytest
from erniecore_lora.config import Variant
from erniecore_lora.saved import Description, Factors
from erniecore_lora.sizes import Size
from erniecore_lora.stacked import fuse, unfuse
from erniecore_lora.targets import Target

EXPERTS, HIDDEN, WIDTH = 3, 6, 5
OUTS = {"gate_proj": WIDTH, "up_proj": WIDTH, "down_proj": HIDDEN}
INS = {"gate_proj": HIDDEN, "up_proj": HIDDEN, "down_proj": WIDTH}
KNOWN = [Target("mlp.experts", name, (EXPERTS, INS[name], OUTS[name])) for name in OUTS]


def update(name, rank, alpha=4.0, seed=0):
    rng = np.random.default_rng([seed, len(name), rank])
    a = rng.standard_normal((EXPERTS, INS[name], rank)).astype(np.float32)
    b = rng.standard_normal((EXPERTS, rank, OUTS[name])).astype(np.float32)
    return Size(rank, alpha), Factors(a, b)


def peft_delta(wrapper, size, inputs):
    """What PEFT adds to the stacked parameter: [E, out, in], from its ``ParamWrapper``."""
    a = wrapper.a.T.reshape(EXPERTS, -1, inputs)
    b = wrapper.b.T.reshape(wrapper.b.shape[1], -1, EXPERTS)
    return np.einsum("ore,eri->eoi", b, a) * size.scale


def ours(size, factors):
    return np.einsum("eir,ero->eoi", factors.a, factors.b) * size.scale


@pytest.mark.parametrize(
    "ranks",
    [
        {"gate_proj": 2, "up_proj": 2, "down_proj": 2},
        {"gate_proj": 2, "up_proj": 3},
        {"gate_proj": 2},
        {"up_proj": 3, "down_proj": 1},
        {"down_proj": 2},
    ],
    ids=lambda ranks: ",".join(ranks),
)
def test_peft_adds_the_same_to_every_expert(ranks):
    updates = {name: update(name, rank, alpha=2.0 + rank) for name, rank in ranks.items()}
    fused = fuse("mlp.experts", updates, OUTS)
    assert [wrapper for wrapper, *_ in fused.values()][-1] == "mlp.experts"
    assert all(wrapper == "mlp.experts.base_layer" for wrapper, *_ in list(fused.values())[:-1])
    for parameter, (_, size, factors) in fused.items():
        names = ["down_proj"] if parameter == "down_proj" else ["gate_proj", "up_proj"]
        zero = {n: np.zeros((EXPERTS, OUTS[n], INS[n])) for n in names}
        wanted = np.concatenate([ours(*updates[n]) if n in updates else zero[n] for n in names], axis=1)
        np.testing.assert_allclose(peft_delta(factors, size, INS[names[0]]), wanted, atol=1e-5)


def description(fused, stabilized=False):
    pattern = {f"mlp.experts.{parameter}": size.alpha for parameter, (_, size, _) in fused.items()}
    return Description(Path("x"), "peft", "", Variant(stabilized), 1.0, pattern)


@pytest.mark.parametrize("names", [("gate_proj", "up_proj", "down_proj"), ("gate_proj",), ("up_proj", "down_proj")])
def test_what_is_put_together_comes_apart(names):
    updates = {name: update(name, 2) for name in names}
    fused = fuse("mlp.experts", updates, OUTS)
    apart = unfuse(description(fused), {wrapper: factors for wrapper, _, factors in fused.values()}, KNOWN)
    assert len(apart) == len(names) * EXPERTS
    for name, (size, factors) in updates.items():
        for expert in range(EXPERTS):
            found = apart[f"mlp.experts.{expert}.{name}"]
            np.testing.assert_array_equal(found.a, factors.a[expert])
            np.testing.assert_array_equal(found.b, factors.b[expert])
            assert found.alpha == size.alpha


def test_updates_that_have_not_learned_yet_come_apart_too():
    updates = {n: (s, f._replace(b=np.zeros_like(f.b))) for n in OUTS for s, f in (update(n, 2),)}
    fused = fuse("mlp.experts", updates, OUTS)
    apart = unfuse(description(fused), {wrapper: factors for wrapper, _, factors in fused.values()}, KNOWN)
    assert {found.a.shape[1] for found in apart.values()} == {2}


def test_a_full_update_of_gate_and_up_keeps_its_rank_and_rslora_its_scale():
    """As PEFT itself trains the fused parameter, where both share A."""
    rng = np.random.default_rng(1)
    a = rng.standard_normal((HIDDEN, EXPERTS * 4)).astype(np.float32)
    b = rng.standard_normal((4 * EXPERTS, 2 * WIDTH)).astype(np.float32)
    about = Description(Path("x"), "peft", "", Variant(True), 3.0)
    full = unfuse(about, {"mlp.experts": Factors(a, b)}, KNOWN)
    assert {(found.a.shape[1], found.alpha) for found in full.values()} == {(4, 3.0)}
    b = b.reshape(4, EXPERTS, 2 * WIDTH).copy()
    b[2:, :, :WIDTH] = b[:2, :, WIDTH:] = 0
    halves = unfuse(about, {"mlp.experts": Factors(a, b.reshape(-1, 2 * WIDTH))}, KNOWN)
    assert {found.a.shape[1] for found in halves.values()} == {2}
    assert all(found.alpha / 2**0.5 == pytest.approx(3.0 / 4**0.5) for found in halves.values())
