"""Router replay over a small mixture of experts: which experts learning goes to, and when routers are free again."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_conformance import toy_model
from erniecore_ernie45_moe.plugin import plugin
from erniecore_rl.batches import completions_of, from_arrays, to_arrays
from erniecore_rl.config import GrpoConfig
from erniecore_rl.objective import GrpoObjective
from erniecore_rl.replay import PREFIX, RouterReplay
from rl_rollouts import SMALL, TOKENIZER, by_bytes, conversation, encoded, learned

from erniecore.api import ConfigError
from erniecore.api.reward import RewardFunction

CONFIG = {
    "model_type": "ernie4_5_moe",
    "vocab_size": TOKENIZER.vocab_size,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "moe_num_experts": 6,
    "moe_k": 2,
    "moe_intermediate_size": 12,
    "moe_layer_start_index": 1,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "use_bias": False,
    "moe_num_shared_experts": 0,
    "moe_layer_end_index": -1,
    "moe_layer_interval": 1,
    "bos_token_id": TOKENIZER.bos_id,
    "pad_token_id": TOKENIZER.pad_id,
    "eos_token_id": TOKENIZER.eos_id,
}
GIVEN = [encoded([conversation(f"q{i}") for i in range(3)])]


def objective(**config):
    paddle.seed(3)
    section = plugin.Config(architecture=CONFIG)
    architecture = plugin.ernie_read_architecture(config=section)
    model = plugin.ernie_build_model(config=section, architecture=architecture, dtype="float32")
    model.train()
    made = GrpoObjective(GrpoConfig(**SMALL, updates_per_rollout=2, **config), model, None, TOKENIZER)
    made.reward_functions = [RewardFunction("toy", 1.0, by_bytes)]
    return made


def gates(made):
    return [parameter for name, parameter in made.policy.named_parameters() if name.endswith("gate.weight")]


def move_gates(made):
    random = np.random.default_rng(0)
    for gate in gates(made):
        gate.set_value(gate + paddle.to_tensor(random.normal(0, 0.3, gate.shape).astype(np.float32)))


def chosen(made, batch):
    """What the routers choose in the pass that learns, by field."""
    found = {}
    log_probs = made._log_probs

    def watched(*arguments):
        given = {i: router.choices for i, router in enumerate(made._replay.routers)}
        values = log_probs(*arguments)
        found.update({f"{PREFIX}{i}": choices.taken.numpy() for i, choices in given.items() if choices is not None})
        return values

    made._log_probs = watched
    made(batch, made.normalizers(batch))
    return found


def test_replay_changes_nothing_while_the_weights_are_the_same():
    free, replayed = objective(), objective(router_replay="learner")
    expected, found = (learned(m, m.prepare(GIVEN, step=1, seed=9)) for m in (free, replayed))
    assert found[:2] == expected[:2]
    np.testing.assert_array_equal(found[2], expected[2])


def test_later_updates_go_to_the_experts_of_the_rollout():
    made = objective(router_replay="learner")
    (batch,) = made.prepare(GIVEN, step=1, seed=9)
    fields = {name: values for name, values in batch.fields.items() if name.startswith(PREFIX)}
    assert sorted(fields) == [f"{PREFIX}0", f"{PREFIX}1"]  # the first layer has no experts
    assert all(values.shape == (*batch.input_ids.shape, 2) for values in fields.values())
    move_gates(made)
    (again,) = made.prepare(GIVEN, step=2, seed=10)
    for name, taken in chosen(made, again).items():
        np.testing.assert_array_equal(taken, fields[name].reshape([-1, 2]))
    made.after_step(step=2, rate=0.1)
    freely = made._replay.recorded(
        lambda: made._log_probs(made.policy, again, completions_of(again)), (again.input_ids.shape)
    )
    assert any((freely[name] != fields[name]).any() for name in fields)
    assert all(router.choices is None for router in made._replay.routers)


def test_the_ratio_is_that_of_one_network():
    """Only the gates moved; with the same experts the log-probabilities move far less than with others."""
    gaps = {}
    for how in ("none", "learner"):
        made = objective(router_replay=how)
        made.prepare(GIVEN, step=1, seed=9)
        move_gates(made)
        (batch,) = made.prepare(GIVEN, step=2, seed=10)
        total, n = made(batch, made.normalizers(batch)).metrics["log_ratio"]
        gaps[how] = float(total) / n
    assert 0 < gaps["learner"] < gaps["none"]


def test_the_experts_of_the_sampler_are_those_of_its_weights():
    learner, sampler = (objective(router_replay=how, rollout_noise=0.8) for how in ("learner", "sampler"))
    (one,), (two,) = (m.prepare(GIVEN, step=1, seed=9) for m in (learner, sampler))
    np.testing.assert_array_equal(one.input_ids, two.input_ids)
    names = [name for name in one.fields if name.startswith(PREFIX)]
    assert any((one.fields[name] != two.fields[name]).any() for name in names)
    # the first update has the ratio 1: "old" is of the same experts
    total, _ = sampler(two, sampler.normalizers(two)).metrics["log_ratio"]
    assert float(total) == pytest.approx(0, abs=1e-4)
    sampler.after_step(step=1, rate=0.1)


def test_choices_are_part_of_a_checkpoint():
    made = objective(router_replay="learner")
    batches = made.prepare(GIVEN, step=1, seed=9)
    for one, two in zip(batches, from_arrays(to_arrays({"one": batches}))["one"], strict=True):
        assert one.fields.keys() == two.fields.keys()
        for name in one.fields:
            np.testing.assert_array_equal(one.fields[name], two.fields[name])


def test_models_without_routers_are_refused():
    with pytest.raises(ConfigError, match="one router per layer"):
        RouterReplay(toy_model())
