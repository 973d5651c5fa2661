"""The plan's exact numbers from shapes alone."""

import subprocess
import sys

import pytest
from erniecore_system.units import count_text

from erniecore.builtin.adamw import adamw_bytes
from erniecore.config.adamw import AdamWConfig
from erniecore.config.core import CheckpointSection, TrainSection
from erniecore.engine.optimizers.roles import trained_specs
from erniecore.engine.preparation.plan import count_parameters, estimate
from erniecore.types.model import Layout, TensorMap


def entry(name, shape, dtype="", **facts):
    return TensorMap(name, shape, (name,), (shape,), lambda a: a[0], lambda a: [a], dtype, **facts)


MAPS = [
    entry("model.embed_tokens.weight", (10, 4)),
    entry("model.layers.1.mlp.experts.gate_proj", (8, 4, 5), active_share=2 / 8),
    entry("model.layers.1.mlp.gate.weight", (4, 8), "float32"),
    entry("model.layers.1.mlp.moe_statics.e_score_correction_bias", (1, 8), "float32", trained=False),
]
NAMES = {"model": "ernie45-moe", "method": "sft", "device": "cpu"}


def plan(adapter=None, *, reference=False, optimizer=AdamWConfig(), **train):  # noqa: B008
    parameters = count_parameters(MAPS, adapter)
    section = TrainSection(**train)
    specs = trained_specs(MAPS, adapter, (), section.precision, Layout(()))
    rows, keep = section.batch_size * section.accumulation, CheckpointSection().keep
    return estimate(
        parameters,
        section,
        NAMES,
        state=adamw_bytes(optimizer, specs),
        offload=optimizer.offload,
        name="",
        rows_per_step=rows,
        max_seq_len=100,
        keep=keep,
        reference=reference,
    )


def test_counts():
    made = count_parameters(MAPS)
    assert made.total == 40 + 160 + 32 + 8
    assert made.trainable == 40 + 160 + 32
    assert made.active == 40 + 160 * 2 // 8 + 32 + 8
    assert made.low == 200


def test_float32_bytes():
    made = plan()
    assert (made.weights, made.gradients, made.optimizer_state, made.master_weights) == (240 * 4, 232 * 4, 232 * 8, 0)
    assert made.checkpoint == 240 * 4 + 232 * 8
    assert made.memory == 240 * 4 + 232 * 12


def test_bfloat16_bytes_keep_the_router_in_float32():
    made = plan(precision="bfloat16", optimizer=AdamWConfig(moments="bfloat16"), ema=0.9)
    assert made.weights == 200 * 2 + 40 * 4
    assert made.gradients == 200 * 2 + 32 * 4
    assert made.optimizer_state == 232 * 4
    assert made.master_weights == 200 * 4
    assert made.ema == 232 * 4


def test_state_in_the_hosts_memory_is_not_on_the_device():
    made = plan(precision="bfloat16", optimizer=AdamWConfig(offload=True))
    assert made.host_memory == made.optimizer_state + made.master_weights
    assert made.memory == made.weights + made.gradients
    assert dict(made.lines())["memory"].endswith("of them in host memory")


def test_a_frozen_copy_takes_the_weights_once_more_and_is_not_saved():
    made, plain = plan(reference=True), plan()
    assert (made.reference, plain.reference) == (240 * 4, 0)
    assert made.memory == plain.memory + 240 * 4
    assert made.checkpoint == plain.checkpoint


def test_tokens_per_step():
    assert plan(batch_size=3, accumulation=2).tokens_per_step == 600


ADAPTER = {"model.layers.1.mlp.experts.lora.A": (8, 4, 2), "model.layers.1.self_attn.q_proj.lora.A": (4, 2)}


def test_adapter_alone_is_trained_and_counted():
    made = count_parameters(MAPS, ADAPTER)
    assert made.trainable == 64 + 8
    assert made.total == 240 + 72
    assert made.active == 40 + 40 + 32 + 8 + 64 * 2 // 8 + 8


def test_checkpoint_of_an_adapter_leaves_the_base_out():
    made = plan(adapter=ADAPTER)
    assert made.weights == (240 + 72) * 4
    assert made.checkpoint == 72 * 4 * 3
    assert plan(adapter=ADAPTER, reference=True).reference == 72 * 4
    low = plan(adapter=ADAPTER, precision="bfloat16")
    assert low.checkpoint == 72 * (2 + 8 + 4)


def test_packed_weights_take_their_own_bytes_and_are_not_trained():
    made = count_parameters(MAPS, packed={"model.layers.1.mlp.experts.gate_proj": 90})
    assert (made.total, made.low, made.packed, made.packed_bytes) == (240, 40, 160, 90)
    assert made.trainable == 40 + 32
    train = TrainSection(precision="bfloat16")
    beside = count_parameters(MAPS, ADAPTER, {"model.layers.1.mlp.experts.gate_proj": 90})
    made = estimate(beside, train, NAMES, state=[], name="", rows_per_step=1, max_seq_len=100, keep=3)
    assert made.weights == (40 + 72) * 2 + 40 * 4 + 90


def test_adapter_of_unknown_size_is_frozen_base():
    assert count_parameters(MAPS, {}).trainable == 0


def test_json_is_plain():
    made = plan(max_steps=7).as_json()
    assert made["parameters"]["total"] == 240
    assert made["max_steps"] == 7


@pytest.mark.parametrize(
    ("number", "text"), [(999, "999"), (1500, "1.5 k"), (360_700_000, "360.7 M"), (21_800_000_000, "21.8 B")]
)
def test_counts_for_people(number, text):
    assert count_text(number) == text


def test_planning_needs_no_paddle():
    code = "import sys, erniecore.engine.preparation.prepare, erniecore.engine.entry; sys.exit('paddle' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
