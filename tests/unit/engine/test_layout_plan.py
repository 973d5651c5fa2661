"""Layouts that are offered are layouts that run."""

import pytest

from erniecore.engine.preparation.layout_plan import runnable, settings_text
from erniecore.errors import ConfigError
from erniecore.planning.layouts import Degrees, Options
from erniecore.types import DecoderShape, LayerShape

pytest.importorskip("erniecore_hybrid_parallel")
SHAPE = DecoderShape(hidden=64, vocab=128, tied=True, layers=(LayerShape(4, 4, 16, 128),) * 4)


@pytest.mark.parametrize(
    ("degrees", "options", "runs"),
    [
        (Degrees(pipeline=2, sharding=2), Options(1, "none", False, False), True),
        (Degrees(pipeline=2, sharding=2), Options(3, "none", False, False), False),
        (Degrees(pipeline=2, context=2), Options(1, "none", False, False), False),
        (Degrees(tensor=2, pipeline=2), Options(1, "none", False, True), False),
        (Degrees(tensor=2, context=2), Options(1, "none", False, True), True),
    ],
)
def test_what_the_strategy_refuses_is_not_offered(degrees, options, runs):
    assert runnable(SHAPE)(degrees, options) is runs


def test_state_on_the_host_is_a_setting():
    class Layout:
        degrees, options = Degrees(sharding=2), Options(2, "full", True, False)

    words = settings_text(Layout)
    assert words.split() == [
        "parallel.sharding=2",
        "parallel.sharding_stage=2",
        "train.optimizer_offload=true",
        "train.recompute=full",
    ]


def test_a_processor_has_no_other_memory(maker):
    with pytest.raises(ConfigError, match=r"train\.optimizer_offload.*its memory is the host's"):
        maker.run(train={"optimizer_offload": True})
