"""Presets and patterns over layer names, and the shortest way to say which were meant."""

import pytest
from erniecore_lora.plugin import lora, rslora
from erniecore_lora.shapes import new_sizes
from erniecore_lora.sizes import Size
from erniecore_lora.targets import choose, of_shapes, shortest_suffixes
from hypothesis import given
from hypothesis import strategies as st

from erniecore.api import ConfigError

SHAPES = {
    "model.embed_tokens.weight": (50, 8),
    "model.norm.weight": (8,),
    "lm_head.weight": (8, 50),
    **{f"model.layers.{i}.self_attn.{p}_proj.weight": (8, 8) for i in range(2) for p in "qkvo"},
    **{f"model.layers.0.mlp.{p}_proj.weight": (8, 8) for p in ("gate", "up", "down")},
    "model.layers.1.mlp.gate.weight": (8, 4),
    **{f"model.layers.1.mlp.experts.{p}_proj": (4, 8, 8) for p in ("gate", "up", "down")},
    **{f"model.layers.1.mlp.shared_experts.{p}_proj.weight": (8, 8) for p in ("gate", "up", "down")},
    "model.mtp_linear_proj.0.weight": (16, 8),
}
KNOWN = of_shapes(SHAPES)


def names(*patterns):
    return [target.name for target in choose(KNOWN, patterns)]


def test_presets():
    assert len(names("attention")) == 8
    assert len(names("mlp")) == 9
    assert names("all-linear") == names("mlp", "attention")
    assert not any("mtp" in name or "embed" in name or "head" in name for name in names("all-linear"))


def test_presets_of_a_vision_part():
    shapes = {
        "vision_model.blocks.0.attn.qkv.weight": (8, 24),
        "model.resampler_model.spatial_linear.0.weight": (8, 8),
        "model.layers.1.mlp.vision_experts.up_proj": (4, 8, 8),
        **SHAPES,
    }

    def chosen(*presets):
        return {target.name for target in choose(of_shapes(shapes), presets)}

    assert chosen("tower") == {"vision_model.blocks.0.attn.qkv"}
    assert chosen("resampler") == {"model.resampler_model.spatial_linear.0"}
    assert chosen("text") == set(names("all-linear"))
    with pytest.raises(ConfigError, match="'tower' matches no layer"):
        names("tower")


def test_presets_leave_a_vision_part_and_patterns_reach_it():
    stack = "model.layers.1.mlp.vision_experts"
    shapes = {"vision_model.attn.q_proj.weight": (8, 8), f"{stack}.up_proj": (4, 8, 8), **SHAPES}
    known = of_shapes(shapes)
    assert choose(known, ["all-linear"]) == choose(KNOWN, ["all-linear"])
    assert [target.name for target in choose(known, ["vision_experts.*"])] == [f"{stack}.up_proj"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("q_proj", ["model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"]),
        ("layers.1.*.v_proj", ["model.layers.1.self_attn.v_proj"]),
        ("mlp.experts.up_proj", ["model.layers.1.mlp.experts.up_proj"]),
        ("mtp_linear_proj.0", ["model.mtp_linear_proj.0"]),
    ],
)
def test_patterns(pattern, found):
    assert names(pattern) == found


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("qproj", "did you mean q_proj"),
        ("atention", "did you mean attention"),
        ("lm_head", "names end in"),
        ("mlp.gate", "names end in"),
    ],
)
def test_pattern_that_matches_nothing(pattern, hint):
    with pytest.raises(ConfigError, match=hint) as caught:
        names("q_proj", pattern)
    assert repr(pattern) in str(caught.value)
    assert caught.value.problems[0].key == "adapter.targets"


def test_rank_above_a_matrix_has_no_singular_values():
    with pytest.raises(ConfigError, match="at most 8"):
        new_sizes(lora.Config(rank=9, init="pissa"), lora.variant, KNOWN)


def test_default_alpha():
    assert new_sizes(lora.Config(rank=8), lora.variant, KNOWN)[KNOWN[0]].scale == 2
    assert new_sizes(rslora.Config(rank=16), rslora.variant, KNOWN)[KNOWN[0]].scale == 1


@given(st.integers(1, 64), st.floats(0.1, 100), st.booleans())
def test_twice_the_rank_at_the_same_scale(rank, alpha, stabilized):
    size = Size(rank, alpha, stabilized)
    assert size.doubled().rank == 2 * rank
    assert size.doubled().scale == pytest.approx(size.scale)


@given(
    st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(".".join), unique=True, min_size=1), st.data()
)
def test_suffixes_name_exactly_what_is_meant(modules, data):
    # every name has the same first part, as all modules of a model have
    modules = [f"model.{i}.{name}" for i, name in enumerate(modules)]
    adapted = data.draw(st.lists(st.sampled_from(modules), unique=True, min_size=1))
    others = [name for name in modules if name not in adapted]
    endings = shortest_suffixes(adapted, others)
    assert [m for m in modules if any(m == e or m.endswith(f".{e}") for e in endings)] == [
        m for m in modules if m in adapted
    ]


def test_words_of_the_command_line():
    assert lora.Config(targets="q_proj, v_proj").targets == ("q_proj", "v_proj")
    assert lora.Config.model_validate_json('{"targets": ["q_proj"]}', strict=True).targets == ("q_proj",)
    with pytest.raises(ValueError, match="at least one"):
        lora.Config(targets="")
