"""The loss over an ERNIE 3.0 model: what it is in float64, what it depends on, and what it does not."""

from __future__ import annotations

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_conformance.toys.paddle_lm import toy_model
from erniecore_conformance.toys.tokenizer import ToyTokenizer
from erniecore_ernie3.architecture import Architecture
from erniecore_ernie3.model import Ernie3
from erniecore_ernie3_pretrain.config import TASKS, Ernie3PretrainConfig
from erniecore_ernie3_pretrain.drawing import examples_of, seeded
from erniecore_ernie3_pretrain.encoder import Ernie3Encoder
from erniecore_ernie3_pretrain.objective import Ernie3Objective, num_targets
from erniecore_ernie3_pretrain.rows import parse

from erniecore.api import ConfigError, PluginError
from erniecore.api.method import IGNORE, Origin
from erniecore.api.training import collate

TOKENIZER = ToyTokenizer()
#: of a step in which every objective is drawn
SEED = 5
MASK = next(text for text, token in TOKENIZER.special_tokens.items() if token == 0)
SOURCE = {
    "model_type": "ernie3",
    "vocab_size": 260,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "num_task_layers": 1,
    "task_hidden_size": 8,
    "task_intermediate_size": 12,
    "task_num_attention_heads": 2,
    "memory_length": 8,
    "layer_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "initializer_range": 0.2,
}
TOWNS = ("Milltown", "Eastbay", "Kingsport", "Northfield")
ROWS = [
    {"passage": f"Ada was born in {town}. It rained.", "triple": {"head": "Ada", "relation": "born in", "tail": town}}
    for town in TOWNS
] + [{"passage": f"{town} has a mill. It is old. Ben likes the mill. He goes to {town}."} for town in TOWNS]


def build(dtype="float32", **changes):
    paddle.seed(1)
    return Ernie3(Architecture.parse({**SOURCE, **changes}), dtype=dtype)


def objective(model, **chosen):
    made = Ernie3Objective(
        Ernie3PretrainConfig(**{"mask_token": MASK, "segment_length": 32, **chosen}), model, TOKENIZER
    )
    made.begin(iter([batch()]), step=0, out=None)
    return made


def samples(rows=ROWS):
    encoder = Ernie3Encoder(TOKENIZER, 128, dict.fromkeys(TASKS, 1.0))
    return [encoder.encode(parse(row, Origin("k", i)))[0] for i, row in enumerate(rows)]


def batch(rows=None, seed=SEED):
    return seeded(collate([[one] for one in samples()] if rows is None else rows, pad_id=0), seed)


def step(made, batches):
    """Loss, metrics and gradients of one step over some micro-batches."""
    made.policy.clear_gradients()
    totals = {}
    for one in batches:
        for name, value in made.normalizers(one).items():
            totals[name] = totals.get(name, 0.0) + value
    loss, metrics = 0.0, {}
    for one in batches:
        out = made(one, totals)
        out.loss.backward()
        loss += float(out.loss)
        for name, (total, weight) in out.metrics.items():
            before = metrics.get(name, (0.0, 0.0))
            metrics[name] = before[0] + float(total), before[1] + weight
    return (
        loss,
        metrics,
        {n: None if p.grad is None else p.grad.numpy().copy() for n, p in made.policy.named_parameters()},
    )


@pytest.fixture(scope="module")
def whole():
    made = objective(build())
    return made, step(made, [batch()])


def test_the_loss_is_the_sum_of_the_means_of_its_objectives_in_float64():
    """Example by example through the model's passes, log-probabilities by numpy."""
    model = build("float64")
    model.eval()
    made = objective(model)
    sums, counts = dict.fromkeys(TASKS, 0.0), dict.fromkeys(TASKS, 0.0)
    for one in examples_of(batch(), made.draw):
        ids = paddle.to_tensor(one.ids[None])
        if one.task == "document":
            memory, parts = None, []
            for start in range(0, len(one.ids), 32):
                out = model.recur(ids[:, start : start + 32], memory=memory, start=start)
                memory = out.memory
                parts.append(out.hidden.numpy()[0])
            hidden = np.concatenate(parts)
        else:
            hidden = model.understand(ids).numpy()[0]
        if one.choice >= 0:
            head = model.heads.reorder if one.task == "reorder" else model.heads.distance
            scores, targets = hidden[:1] @ head.weight.numpy() + head.bias.numpy(), np.array([one.choice])
        else:
            where = one.labels != IGNORE
            scores, targets = hidden[where] @ model.model.embed_tokens.weight.numpy().T, one.labels[where]
        log_sum = np.log(np.exp(scores - scores.max(1, keepdims=True)).sum(1)) + scores.max(1)
        sums[one.task] += float((log_sum - scores[np.arange(len(targets)), targets]).sum())
        counts[one.task] += num_targets(one)
    loss, metrics, _ = step(made, [batch()])
    assert loss == pytest.approx(sum(sums[task] / counts[task] for task in TASKS), abs=1e-5)
    assert min(counts.values()) > 0
    for task in TASKS:
        assert metrics[f"{task}/loss"] == pytest.approx((sums[task], counts[task]), rel=1e-5)


def test_every_parameter_has_a_gradient_and_the_reported_loss_is_that_of_the_step(whole):
    _, (loss, metrics, gradients) = whole
    assert [name for name, gradient in gradients.items() if gradient is None] == []
    assert metrics["loss"][0] / metrics["loss"][1] == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize("how", ["micro-batches", "packed", "order", "padding", "a rank without samples"])
def test_how_samples_are_batched_changes_nothing(whole, how):
    made, (loss, metrics, gradients) = whole
    rows = samples()
    batches = {
        "micro-batches": [batch([[one]]) for one in rows],
        "packed": [batch([rows[:5], rows[5:]])],
        "order": [batch([[one] for one in rows[::-1]])],
        "padding": [seeded(collate([[one] for one in rows], pad_id=0, length=140), SEED)],
        "a rank without samples": [batch(), seeded(collate([[]], pad_id=0, length=8), SEED)],
    }[how]
    found = step(made, batches)
    assert found[0] == pytest.approx(loss, rel=1e-5)
    assert found[1]["loss"][0] / found[1]["loss"][1] == pytest.approx(loss, rel=1e-5)
    assert found[1].keys() == metrics.keys()
    for name in metrics.keys() - {"loss"}:
        assert found[1][name] == pytest.approx(metrics[name], rel=1e-4), name
    for name, gradient in gradients.items():
        np.testing.assert_allclose(found[2][name], gradient, atol=2e-5, err_msg=name)


def test_a_step_of_documents_alone_leaves_gradients_of_zero_in_the_other_module():
    made = objective(build(), kmlm=0, reorder=0, distance=0, uktp=0)
    _, _, gradients = step(made, [batch([[one] for one in samples()[4:]])])
    assert made.is_nll
    for name, gradient in gradients.items():
        reached = not name.startswith(("nlu.", "heads."))
        assert bool(gradient.any()) is reached, name


def test_documents_behind_a_memory_of_the_layer_below_lose_as_whole_ones():
    """With room for the whole past, segments change the gradient of Transformer-XL's memory, and not its loss."""
    model = build("float64", recurrence="layer-below", memory_length=128)
    documents = batch([[one] for one in samples()[4:]])
    alone = {"kmlm": 0, "reorder": 0, "distance": 0, "uktp": 0}
    losses = [step(objective(model, segment_length=n, **alone), [documents])[0] for n in (0, 8, 16, 128)]
    assert losses == pytest.approx([losses[0]] * 4, abs=1e-6)
    same = build("float64", recurrence="same-layer", memory_length=128)
    assert abs(step(objective(same, segment_length=8, **alone), [documents])[0] - losses[0]) > 1e-3


def test_length_batch_and_dropout_grow_together_and_held_out_text_is_whole():
    from erniecore_progressive.schedule import Stage

    paddle.seed(1)
    model = Ernie3(Architecture.parse(SOURCE), dropout=0.2)
    made = objective(model, steps=4, start_length=16, start_batch=0.25, start_dropout=0.5)
    parts = [batch([[one]]) for one in samples()]
    found, drops = [], set()
    for number in range(1, 7):
        found.append((len(made.prepare(parts, step=number, seed=1)), made.stage))
        drops |= {(number, layer.p) for layer in made.growth.layers}
    expected = [(2, 16, 0.25, 0.1), (4, 20, 0.4375, 0.125), (5, 24, 0.625, 0.15), (7, 28, 0.8125, 0.175)]
    expected += [(8, 32, 1.0, 0.2)] * 2
    assert found == [(n, Stage(length, part, pytest.approx(drop))) for n, length, part, drop in expected]
    assert sorted(drops) == [(i + 1, pytest.approx(one[3])) for i, one in enumerate(expected)]
    made.prepare(parts, step=1, seed=SEED)

    def longest():
        return max(len(one.ids) for one in made._examples(batch()) if one.task in ("kmlm", "reorder", "distance"))

    assert longest() <= 16
    loss, metrics, _ = step(made, [batch()])
    assert np.isfinite(loss)
    assert metrics["progressive/length"] == (16.0, 1.0)
    model.eval()
    assert longest() > 16
    assert "progressive/length" not in step(made, [batch()])[1]


def test_nothing_grows_unless_it_is_set():
    made = objective(build())
    assert made.prepare([batch()] * 3, step=1, seed=1)
    assert (made.growth.grows, made.stage, len(made.prepare([batch()] * 3, step=1, seed=1))) == (
        False,
        made.growth.end,
        3,
    )


@pytest.mark.parametrize("start", [4, 33])
def test_growth_ends_above_where_it_begins(start):
    with pytest.raises(ValueError, match="start_length: from 8 tokens to segment_length"):
        Ernie3PretrainConfig(segment_length=32, start_length=start)


def test_every_model_learns_whole_documents_and_none_but_ernie3_more():
    alone = {"kmlm": 0, "reorder": 0, "distance": 0, "uktp": 0}
    assert step(objective(toy_model(), segment_length=0, **alone), [batch([[samples()[5]]])])[0] > 1
    with pytest.raises(PluginError, match="a recurrence memory"):
        objective(toy_model(), **alone)
    with pytest.raises(PluginError, match=r"a module for understanding \(kmlm, reorder, distance, uktp\)"):
        objective(build(task_modules=["nlg"]))
    with pytest.raises(ConfigError, match="no special token '<none>'"):
        objective(build(), mask_token="<none>")
