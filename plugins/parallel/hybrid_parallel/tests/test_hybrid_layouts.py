"""Layouts that are published are layouts that run, as they are published."""

from dataclasses import replace

import pytest
import yaml
from erniecore_hybrid_parallel.config import HybridConfig
from erniecore_hybrid_parallel.layouts import HybridLayouts
from erniecore_hybrid_parallel.plugin import plugin

from erniecore.api import ConfigError
from erniecore.api.parallel import Cluster, DecoderShape, LayerShape

DENSE = LayerShape(heads=8, kv_heads=4, head_dim=64, mlp=2048)
SPARSE = LayerShape(heads=8, kv_heads=4, head_dim=64, mlp=512, experts=16, selected=4, expert=512)
SHAPE = DecoderShape(hidden=512, vocab=32768, tied=False, layers=(DENSE, *(SPARSE,) * 7))


def settings(words):
    return {key.removeprefix("parallel."): yaml.safe_load(value) for key, _, value in (w.partition("=") for w in words)}


@pytest.mark.parametrize("own", [{}, {"context_attention": "ring"}])
@pytest.mark.parametrize("processes", [1, 2, 6, 8])
def test_published_layouts_run_as_they_are_published(processes, own):
    space = HybridLayouts(HybridConfig(**own), SHAPE)
    published = [variant for layout in space.layouts(processes) for variant in space.variants(layout)]
    assert len(set(published)) == len(published) > 0
    for layout in published:
        config = HybridConfig(**{**own, **settings(space.overrides(layout))})
        found = HybridLayouts(config, SHAPE).selected(processes)
        assert replace(found, split=()) == layout
        plan = plugin.ernie_plan_parallel(config=config, cluster=Cluster(world_size=processes), shape=SHAPE)
        assert dict(plan.degrees) == layout.degrees
        assert plan.split == found.split == space.split(layout)


def test_nothing_that_runs_is_left_out():
    """Against every product of degrees up to 4 on 4 processes."""
    space, degrees = HybridLayouts(HybridConfig(), SHAPE), (1, 2, 4)
    published = {tuple(layout.degrees.values()) for layout in space.layouts(4)}
    runs = set()
    for values in ((t, c, s, d, p, e) for t in degrees for c in degrees for s in degrees for d in degrees
                   for p in degrees for e in degrees):  # fmt: skip
        config = HybridConfig(
            **dict(zip(("tensor", "context", "sharding", "data", "pipeline", "expert"), values, strict=True))
        )
        try:
            runs.add(tuple(HybridLayouts(config, SHAPE).selected(4).degrees.values()))
        except ConfigError:
            continue
    assert published == runs
