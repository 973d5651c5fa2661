"""The objectives over models: one shared prompt equals two rows, packing, splitting into micro-batches, metrics."""

import json
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_conformance.toys.compute import clear_gradients, gradients
from erniecore_conformance.toys.data import collate
from erniecore_conformance.toys.paddle_lm import toy_model
from erniecore_conformance.toys.tokenizer import ToyTokenizer
from erniecore_ernie45.plugin import plugin as ernie45
from erniecore_preference import config as sections
from erniecore_preference.encoder import PairEncoder, RatedEncoder
from erniecore_preference.grouping import completions_of, mismatched
from erniecore_preference.kto import KtoObjective
from erniecore_preference.losses import LOSSES
from erniecore_preference.objective import PairObjective
from erniecore_preference.plugin import PairPlugin
from safetensors.numpy import load_file

from erniecore.api.data import Message, Preference, UnpairedPreference
from erniecore.api.method import IGNORE, Batch
from erniecore.engine.scoring.differences import with_differences

CONFIGS = {plugin.name: plugin.Config for plugin in PairPlugin.__subclasses__()}
ENCODER, RATED = PairEncoder(ToyTokenizer(), 100), RatedEncoder(ToyTokenizer(), 100)
WORDS = ("ant", "beetle", "cat", "d", "eel", "foxes")


def pair_samples(count=6):
    made = []
    for i in range(count):
        good, bad = (Message("assistant", WORDS[j % len(WORDS)] * (1 + j % 2)) for j in (i, i + 1))
        made += ENCODER.encode(Preference((Message("user", "Q" * (1 + i)),), (good,), (bad,)))
    return made


def rated_samples(count=6):
    made = []
    for i in range(count):
        messages = (Message("user", "Q" * (1 + i)), Message("assistant", WORDS[i]))
        made += RATED.encode(UnpairedPreference(messages, desirable=i % 2 == 0))
    return made


def frozen(seed):
    model = toy_model(seed)
    for parameter in model.parameters():
        parameter.stop_gradient = True
    return model


def build(name="dpo", policy=None, reference=None, **settings):
    policy = policy or toy_model()
    if name == "kto":
        return KtoObjective(sections.KtoConfig(**settings), policy, reference or frozen(1))
    return PairObjective(LOSSES[name], CONFIGS[name](**settings), policy, reference or frozen(1))


def step(objective, batches):
    """Loss, mean metrics and gradients of one step over micro-batches."""
    batches = objective.prepare(batches, step=1, seed=0)
    totals, sums = {}, {}
    for part in batches:
        for name, value in objective.normalizers(part).items():
            totals[name] = totals.get(name, 0) + value
    clear_gradients(objective.policy)
    loss = 0.0
    for part in batches:
        output = objective(part, totals)
        output.loss.backward()
        loss += float(output.loss)
        for name, (value, weight) in output.metrics.items():
            old = sums.get(name, (0.0, 0.0))
            sums[name] = old[0] + float(value), old[1] + weight
    return SimpleNamespace(
        loss=loss,
        metrics=with_differences({n: v / w for n, (v, w) in sums.items() if w}),
        gradients={n: g for n, g in gradients(objective.policy).items() if g is not None},
    )


def assert_same(found, expected, tolerance):
    assert found.loss == pytest.approx(expected.loss, rel=tolerance, abs=tolerance)
    assert found.metrics == pytest.approx(expected.metrics, rel=tolerance, abs=tolerance)
    scale = max(1.0, *(float(np.abs(g).max()) for g in expected.gradients.values()))
    for name, value in expected.gradients.items():
        np.testing.assert_allclose(found.gradients[name] / scale, value / scale, atol=tolerance, err_msg=name)


# ---- one row with both completions


def split_rows(sample):
    """The same pair as two plain causal rows, prompt and one completion each: (ids, labels)."""
    side = sample.fields["completion"]
    return [(sample.input_ids[mine], sample.labels[mine]) for mine in ((side == 0) | (side == k) for k in (1, 2))]


def plain_batch(rows):
    width = max(len(ids) for ids, _ in rows)
    ids, labels = np.zeros((len(rows), width), np.int64), np.full((len(rows), width), IGNORE, np.int64)
    for i, (row, targets) in enumerate(rows):
        ids[i, : len(row)], labels[i, : len(row)] = row, targets
    return ids, labels


def test_shared_prompt_gives_the_logits_of_two_rows():
    model = toy_model()
    for sample in pair_samples():
        batch = collate([[sample]])
        shared = model(
            paddle.to_tensor(batch.input_ids),
            position_ids=paddle.to_tensor(batch.position_ids),
            startend_row_indices=paddle.to_tensor(batch.startend_row_indices),
        )[0].numpy()
        for which, (ids, _) in zip((1, 2), split_rows(sample), strict=True):
            alone = model(paddle.to_tensor(ids[None]))[0].numpy()
            mine = (sample.fields["completion"] == 0) | (sample.fields["completion"] == which)
            np.testing.assert_allclose(shared[mine], alone, atol=1e-5)


def test_shared_prompt_gives_the_gradients_of_two_rows():
    samples, policy, reference = pair_samples(), toy_model(), frozen(1)
    found = step(build("dpo", policy, reference), [collate([[s] for s in samples])])
    ids, labels = plain_batch([row for s in samples for row in split_rows(s)])

    def sums(model):
        log_p = paddle.nn.functional.log_softmax(model(paddle.to_tensor(ids)), axis=-1)
        picked = paddle.take_along_axis(log_p, paddle.to_tensor(np.maximum(labels, 0))[..., None], -1)[..., 0]
        return (picked * paddle.to_tensor((labels != IGNORE).astype("float32"))).sum(-1)

    policy.clear_gradients()
    ratio = sums(policy) - sums(reference).detach()
    loss = -paddle.nn.functional.log_sigmoid(0.1 * (ratio[0::2] - ratio[1::2])).mean()
    loss.backward()
    assert found.loss == pytest.approx(float(loss), abs=1e-6)
    for name, value in gradients(policy).items():
        np.testing.assert_allclose(found.gradients[name], value, atol=1e-5, err_msg=name)


class Constant:
    """Stands for a reference whose log-probabilities are known: it predicts nothing."""


def test_dpo_end_to_end_equals_golden_numbers(golden, build, models_dir, public_gradients, monkeypatch):
    files = models_dir.parent / "losses"
    tensors, numbers = (
        load_file(files / "dpo_end_to_end.safetensors"),
        json.loads((files / "dpo_end_to_end.json").read_text()),
    )
    model = build(ernie45, golden("dense").config, golden("dense").weights)
    batch = end_to_end_batch(tensors)
    reference = paddle.to_tensor(tensors["reference_logps"].reshape(2, 2).T.reshape(-1).astype("float64"))
    monkeypatch.setattr("erniecore_preference.reference.without_gradient", lambda *_: reference)
    objective = PairObjective(LOSSES["dpo"], sections.DpoConfig(beta=numbers["beta"]), model, Constant())
    output = objective(batch, objective.normalizers(batch))
    output.loss.backward()
    assert float(output.loss) == pytest.approx(numbers["loss"], rel=1e-5)
    policy = tensors["policy_logps"]
    assert float(output.metrics["logps/chosen"][0]) == pytest.approx(policy[:2].sum(), rel=1e-6)
    assert float(output.metrics["logps/rejected"][0]) == pytest.approx(policy[2:].sum(), rel=1e-6)
    found = public_gradients(ernie45, model)
    for name, norm in numbers["grad_norm"].items():
        assert np.linalg.norm(found[name].astype("float64")) == pytest.approx(norm, rel=1e-4), name


def end_to_end_batch(tensors):
    """The rows [chosen0, chosen1, rejected0, rejected1] as two samples of two whole branches."""
    rows = []
    for pair in range(2):
        ids, labels, side, positions, ends = [], [], [], [], []
        for which, row in ((1, pair), (2, pair + 2)):
            n = int(tensors["attention_mask"][row].sum()) - 1
            completion = tensors["completion_mask"][row][1 : n + 1] > 0
            ids.append(tensors["input_ids"][row][:n])
            labels.append(np.where(completion, tensors["input_ids"][row][1 : n + 1], IGNORE))
            side.append(np.full(n, which))
            positions.append(np.arange(n))
            ends.append(np.full(n, n + (len(ids[0]) if which == 2 else 0)))
        first = np.zeros(sum(map(len, ids)))
        first[0] = 1
        rows.append([np.concatenate(x) for x in (ids, labels, positions, ends, side)] + [first])
    width = max(len(row[0]) for row in rows)
    fills = (0, IGNORE, 0, 0, 0, 0)
    ids, labels, positions, ends, side, first = (
        np.stack([np.pad(row[k], (0, width - len(row[k])), constant_values=fills[k]) for row in rows]) for k in range(6)
    )
    ends = np.where(ends == 0, np.arange(width), ends).astype(np.int32)
    return Batch(
        ids, labels, positions, ends[:, None, :, None], {"sample": first.astype(np.int8), "completion": side.astype(np.int8)},
        ids.size, 2,
    )  # fmt: skip


# ---- invariances


@pytest.mark.parametrize("name", [*LOSSES, "kto"])
def test_packing_changes_nothing(name):
    samples = rated_samples() if name == "kto" else pair_samples()
    objective = build(name, beta=0.5)
    rows = step(objective, [collate([[s] for s in samples])])
    packed = step(objective, [collate([samples[:4], samples[4:]], padding=3)])
    assert_same(packed, rows, 5e-6)


@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize("sizes", [[1, 1, 1, 1], [3, 1], [2, 2]])
def test_split_into_micro_batches_changes_nothing(name, sizes):
    samples, objective = pair_samples(4), build(name, beta=0.5, sft_weight=0.3)
    ends = np.cumsum(sizes)
    parts = [collate([[s] for s in samples[end - size : end]]) for size, end in zip(sizes, ends, strict=True)]
    assert_same(step(objective, parts), step(objective, [collate([[s] for s in samples])]), 1e-6)


@pytest.mark.parametrize("kl", ["mismatched", "none"])
@pytest.mark.parametrize("models", [(0, 1), (1, 0)])
def test_kto_is_exact_for_any_split(kl, models):
    samples, objective = rated_samples(4), build("kto", toy_model(models[0]), frozen(models[1]), beta=0.5, kl=kl)
    whole = step(objective, [collate([[s] for s in samples])])
    split = step(objective, [collate([[s]]) for s in samples])
    del whole.metrics["rewards/ranking"]  # pairs of rows within a micro-batch
    assert_same(split, whole, 2e-6)


def test_chunks_of_any_size_agree():
    losses = []
    for chunk in (0, 1, 5):
        objective = build()
        objective.loss_chunk = chunk
        losses.append(step(objective, [collate([[s] for s in pair_samples()])]).loss)
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)


def test_batch_of_padding_alone_costs_nothing():
    empty = collate([[pair_samples(1)[0]]])
    empty = Batch(
        empty.input_ids, np.full_like(empty.labels, IGNORE), empty.position_ids, empty.startend_row_indices,
        {name: np.zeros_like(value) for name, value in empty.fields.items()}, 0, 0,
    )  # fmt: skip
    for name in ("dpo", "kto"):
        found = step(build(name), [empty])
        assert (found.loss, found.metrics) == (0.0, {})


# ---- what is reported


def test_policy_equal_to_reference_gives_no_reward_and_ln_2():
    found = step(build("dpo", toy_model(0), frozen(0)), [collate([[s] for s in pair_samples()])])
    assert found.loss == pytest.approx(np.log(2), abs=1e-6)
    for name in ("chosen", "rejected", "margins", "accuracies"):
        assert found.metrics[f"rewards/{name}"] == pytest.approx(0, abs=1e-6)


def test_metrics_follow_from_the_log_probabilities():
    samples, policy = pair_samples(), toy_model()
    found = step(build("dpo", policy, frozen(1), beta=0.5), [collate([[s] for s in samples])]).metrics
    singles = [step(build("dpo", policy, frozen(1), beta=0.5), [collate([[s]])]).metrics for s in samples]
    for name in ("rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies", "logps/chosen"):
        assert found[name] == pytest.approx(np.mean([m[name] for m in singles]), rel=1e-5, abs=1e-6)
    assert found["rewards/margins"] == pytest.approx(found["rewards/chosen"] - found["rewards/rejected"], abs=1e-6)
    assert found["rewards/accuracies"] == np.mean([m["rewards/margins"] > 0 for m in singles])
    tokens = sum(int((s.labels[s.fields["completion"] == 1] != IGNORE).sum()) for s in samples)
    assert found["sft_loss"] == pytest.approx(-found["logps/chosen"] * len(samples) / tokens, rel=1e-6)


def test_sft_term_adds_the_mean_likelihood_of_preferred_tokens():
    batch = collate([[s] for s in pair_samples()])
    plain, mixed = (step(build("dpo", sft_weight=w), [batch]) for w in (0.0, 0.25))
    assert mixed.loss == pytest.approx(plain.loss + 0.25 * plain.metrics["sft_loss"], rel=1e-6)
    assert mixed.metrics["loss"] == pytest.approx(mixed.loss, rel=1e-6)


def test_reference_free_is_a_uniform_reference():
    batch = collate([[s] for s in pair_samples()])
    objective = PairObjective(LOSSES["dpo"], sections.DpoConfig(), toy_model(), None)
    found = step(objective, [batch]).metrics
    assert found["rewards/chosen"] == pytest.approx(0.1 * found["logps/chosen"], rel=1e-6)


def test_offset_reads_the_margin_of_each_row():
    encoder = PairEncoder(ToyTokenizer(), 100, margin=True)
    rows = [
        Preference((Message("user", "Q"),), *(((Message("assistant", w),)) for w in "ab"), margin=m) for m in (1, 4)
    ]
    samples = [s for row in rows for s in encoder.encode(row)]
    objective = build("dpo", toy_model(0), frozen(0), offset_alpha=0.5)
    for rows_of in ([[samples[0]], [samples[1]]], [samples]):
        loss = step(objective, [collate(rows_of)]).loss
        assert loss == pytest.approx((np.log(2) + np.log1p(np.exp(0.5 * np.log(4)))) / 2, rel=1e-6)


# ---- KTO's reference point


def test_mismatched_pairs_have_each_prompt_and_each_completion_once():
    samples = rated_samples()
    (batch,) = mismatched([collate([samples[:2], samples[2:]], padding=2)])
    starts = [*np.flatnonzero(batch.fields["sample"][0]), batch.input_ids.shape[1]]
    tokenizer = ToyTokenizer()
    found = []
    for a, b in pairwise(starts):
        labels = batch.labels[0, a:b]
        first = int((labels != IGNORE).argmax())
        assert (batch.input_ids[0, a + first + 1 : b] == labels[first:-1]).all()
        assert batch.startend_row_indices[0, 0, a:b, 0].tolist() == [b] * (b - a)
        completion = tokenizer.decode([i for i in labels if i != IGNORE])
        found.append((tokenizer.decode(batch.input_ids[0, a : a + first + 1]).count("Q"), completion))
    assert sorted(q for q, _ in found) == list(range(1, 7))
    assert sorted(a for _, a in found) == sorted(WORDS)
    assert all(WORDS[q - 1] != a for q, a in found)


def test_mismatched_pairs_do_not_depend_on_how_rows_are_dealt():
    samples = rated_samples()
    whole = mismatched([collate([[s] for s in samples])], size=2)
    shuffled = mismatched([collate([[s]]) for s in reversed(samples)], size=2)
    assert len(whole) == 3
    assert [b.input_ids.tolist() for b in shuffled] == [b.input_ids.tolist() for b in whole]


def test_one_row_has_no_mismatched_pair():
    batch = collate([rated_samples(1)])
    assert mismatched([batch]) == []
    assert step(build("kto"), [batch]).metrics["kl"] == 0


def test_reference_point_is_the_mean_log_ratio_of_mismatched_pairs():
    batch = collate([[s] for s in rated_samples()])
    for policy, reference in ((0, 1), (1, 0)):
        objective = build("kto", toy_model(policy), frozen(reference))
        (pairs,) = mismatched([batch])
        sums = [log_likelihood(m, pairs) for m in (objective.policy, objective.reference)]
        expected = max(0.0, (sums[0] - sums[1]) / len(completions_of(pairs)))
        assert objective.reference_point([batch]) == pytest.approx(expected, abs=1e-5)


def log_likelihood(model, batch):
    logits = model(
        paddle.to_tensor(batch.input_ids),
        position_ids=paddle.to_tensor(batch.position_ids),
        startend_row_indices=paddle.to_tensor(batch.startend_row_indices),
    ).numpy()[0].astype("float64")  # fmt: skip
    log_p = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
    log_p -= logits.max(-1, keepdims=True)
    learned = batch.labels[0] != IGNORE
    return log_p[learned, batch.labels[0][learned]].sum()


def test_kto_margin_is_the_difference_of_the_two_means():
    samples = rated_samples()
    whole = step(build("kto", kl="none"), [collate([[s] for s in samples])]).metrics
    assert whole["rewards/margins"] == pytest.approx(whole["rewards/chosen"] - whole["rewards/rejected"], abs=1e-9)
    desirable = step(build("kto"), [collate([[s] for s in samples[::2]])]).metrics
    assert "rewards/margins" not in desirable
    assert "rewards/rejected" not in desirable


def test_kto_ranks_pairs_of_a_good_and_a_bad_row():
    samples = rated_samples()
    found = step(build("kto", kl="none"), [collate([[s] for s in samples])]).metrics
    rewards = {}
    for s in samples:
        one = step(build("kto", kl="none"), [collate([[s]])]).metrics
        (name,) = {"rewards/chosen", "rewards/rejected"} & one.keys()
        rewards.setdefault(name, []).append(one[name])
    right = [good > bad for good in rewards["rewards/chosen"] for bad in rewards["rewards/rejected"]]
    assert found["rewards/ranking"] == pytest.approx(np.mean(right))


def test_policy_keeps_its_mode():
    policy = toy_model()
    policy.train()
    step(build("kto", policy), [collate([[s] for s in rated_samples()])])
    assert policy.training


@pytest.mark.parametrize("name", [*LOSSES, "kto"])
def test_eight_samples_are_learned(name):
    samples = rated_samples() if name == "kto" else pair_samples(8)
    batch, policy = collate([[s] for s in samples]), toy_model(0)
    objective = build(name, policy, frozen(0), **({"penalty": 1.0} if name == "dpop" else {}))
    optimizer = paddle.optimizer.AdamW(1e-2, parameters=policy.parameters(), weight_decay=0.0)
    for _ in range(60):
        metrics = step(objective, [batch]).metrics
        if metrics["rewards/margins"] > 0.3 * objective.config.beta and metrics["rewards/accuracies"] == 1:
            return
        optimizer.step()
    pytest.fail(f"not learned in 60 steps: {metrics}")
