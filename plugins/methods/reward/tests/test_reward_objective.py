"""Encoder, objective and scores: what is read where, and that one row with both completions equals two."""

import json

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_conformance.toys.data import collate
from erniecore_conformance.toys.paddle_lm import toy_model
from erniecore_conformance.toys.tokenizer import ToyTokenizer
from erniecore_reward.config import RewardModelingConfig
from erniecore_reward.encoder import RewardEncoder, RewardTurnEncoder, encode_completion
from erniecore_reward.objective import RewardObjective
from erniecore_reward.plugin import plugin
from erniecore_reward.scoring import RewardModel

from erniecore.api import DataError, PluginError, RowError, UsageError
from erniecore.api.building import add_score_head
from erniecore.api.data import Message, Preference
from erniecore.api.method import IGNORE, MethodCapability
from erniecore.api.model import ModelBundle

WORDS = ("ant", "beetle", "cat", "d", "eel", "foxes")


def pair(i, margin=None):
    good, bad = (Message("assistant", WORDS[j % len(WORDS)]) for j in (i, i + 1))
    return Preference((Message("user", "Q" * (1 + i)),), (good,), (bad,), margin)


def encoder(margin=False, max_length=100):
    return RewardEncoder(ToyTokenizer(), max_length, margin=margin)


def score_head_model(seed=0):
    model = toy_model(seed)
    return add_score_head(model)


def bundle(model, tokenizer=None):
    return ModelBundle(model, model.architecture, None, tokenizer or ToyTokenizer())


def step(config, batches, model=None):
    objective = RewardObjective(config, model or score_head_model())
    totals = {}
    for batch in batches:
        for name, value in objective.normalizers(batch).items():
            totals[name] = totals.get(name, 0) + value
    outputs = [objective(batch, totals) for batch in batches]
    return sum(float(o.loss) for o in outputs), outputs


def test_each_completion_is_read_once_at_its_end_token():
    (sample,) = encoder().encode(pair(1))
    turns = RewardTurnEncoder(ToyTokenizer())
    (where,) = np.nonzero(sample.labels != IGNORE)
    assert sample.input_ids[where].tolist() == [turns.turn_end] * 2
    assert sample.labels[where].tolist() == [turns.stop] * 2
    side = sample.fields["completion"]
    for which, message in ((1, pair(1).chosen[0]), (2, pair(1).rejected[0])):
        mine = sample.input_ids[(side == 0) | (side == which)]
        assert mine.tolist() == encode_completion(turns, pair(1).prompt, message)


def test_length_counts_the_end_tokens():
    size = len(encoder().encode(pair(0))[0])
    assert len(encoder(max_length=size).encode(pair(0))[0]) == size
    with pytest.raises(RowError, match="too long"):
        encoder(max_length=size - 1).encode(pair(0))


@pytest.mark.parametrize(("margin", "message"), [(None, "no margin"), (-1.0, "no usable"), (float("nan"), "no usable")])
def test_margins_that_cannot_be_used(margin, message):
    with pytest.raises(RowError, match=message):
        encoder(margin=True).encode(pair(0, margin))
    assert encoder(margin=True).encode(pair(0, 0.0))


def test_the_loss_is_that_of_separate_scores():
    records = [pair(i, float(i)) for i in range(4)]
    model = score_head_model()
    batch = collate([[s for r in records[:2] for s in encoder(margin=True).encode(r)],
                     [s for r in records[2:] for s in encoder(margin=True).encode(r)]])  # fmt: skip
    config = RewardModelingConfig(margin_weight=0.5, label_smoothing=0.1, center_weight=0.2)
    loss, (output,) = step(config, [batch], model)
    read = RewardModel(bundle(model), batch_size=3).scores(
        [[*r.prompt, *a] for r in records for a in (r.chosen, r.rejected)]
    )
    c, r = np.array(read[0::2]), np.array(read[1::2])
    x = c - r - 0.5 * np.arange(4)
    expected = 0.9 * np.logaddexp(0, -x) + 0.1 * np.logaddexp(0, x) + 0.2 * (c + r) ** 2
    assert loss == pytest.approx(expected.mean(), rel=1e-5)
    metrics = {n: float(v) / w for n, (v, w) in output.metrics.items()}
    assert metrics["rewards/accuracies"] == (c > r).mean()
    assert metrics["rewards/margins"] == pytest.approx((c - r).mean(), abs=1e-5)


def test_gradient_in_float64_reaches_head_and_model():
    """Central differences along the gradient, in float64 throughout."""
    paddle.set_default_dtype("float64")
    try:
        model = score_head_model()
        model.to(dtype="float64")
    finally:
        paddle.set_default_dtype("float32")
    batch = collate([list(encoder().encode(pair(i))) for i in range(3)])
    objective = RewardObjective(RewardModelingConfig(center_weight=0.1), model)
    chosen = [p for n, p in model.named_parameters() if n in ("score.weight", "norm.weight")]

    def value():
        from erniecore_preference.grouping import completions_of
        from erniecore_reward.objective import rewards_of

        completions = completions_of(batch)
        rewards, _ = rewards_of(model, batch, completions)
        return objective._losses(rewards[0::2], rewards[1::2], batch, completions).sum()

    value().backward()
    for parameter in chosen:
        start, gradient = parameter.numpy().copy(), parameter.grad.numpy()
        sides = []
        for sign in (1, -1):
            parameter.set_value(start + sign * 1e-5 * gradient)
            sides.append(float(value()))
        parameter.set_value(start)
        assert (sides[0] - sides[1]) / 2e-5 == pytest.approx(float((gradient**2).sum()), rel=1e-7)
        assert (gradient != 0).any()


def test_a_model_without_head_is_refused():
    with pytest.raises(PluginError, match="no score head"):
        RewardObjective(RewardModelingConfig(), toy_model())
    with pytest.raises(UsageError, match="no reward model"):
        RewardModel(bundle(toy_model()))


def test_scores_do_not_depend_on_neighbors_or_order():
    rows = [[{"role": "user", "content": "Q" * i}, {"role": "assistant", "content": w}] for i, w in enumerate(WORDS, 1)]
    model = RewardModel(bundle(score_head_model()), batch_size=4)
    together = model.scores(rows)
    assert len(set(together)) == len(rows)
    np.testing.assert_allclose(model.scores(rows[::-1])[::-1], together, atol=1e-6)
    np.testing.assert_allclose([model.scores([row])[0] for row in rows], together, atol=1e-6)
    assert model.scores([]) == []


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "x"}],
        [{"role": "assistant", "content": "x"}],
        [{"role": "user"}, {"role": "assistant"}],
    ],
)
def test_what_cannot_be_judged(messages):
    with pytest.raises(DataError):
        RewardModel(bundle(score_head_model())).scores([messages])


def test_texts_of_a_rollout_are_scored_like_messages():
    tokenizer = ToyTokenizer()
    messages = [Message("user", "Q"), Message("assistant", "ant")]
    prompt = tokenizer.chat_template.render(messages[:1], add_generation_prompt=True)
    model = RewardModel(bundle(score_head_model()))
    assert model.scores_of_texts([(prompt, "ant")]) == pytest.approx(model.scores([messages]), abs=1e-6)


def test_the_head_is_asked_for_by_capability():
    assert MethodCapability.SCORE_HEAD in plugin.capabilities


def test_head_keeps_float32_in_a_model_of_lower_precision():
    model = toy_model()
    model.to(dtype="bfloat16")
    head = add_score_head(model).score.weight
    assert (head.dtype, head.shape) == (paddle.float32, [model.architecture["hidden_size"], 1])
    assert add_score_head(model).score.weight is head
    assert json.dumps(model.architecture["architectures"]).count("ForSequenceClassification") == 1
