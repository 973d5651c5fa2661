"""Identities of elastic training: a smaller model inside the model is the model that is extracted, whole passes are those of
ordinary training to the bit, and balance comes from whole passes alone.
"""

import json

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_elastic.config import ElasticPretrainConfig
from erniecore_elastic.extraction import Sizes, extract_directory
from erniecore_elastic.objective import ElasticPretrainObjective
from erniecore_elastic.pipeline import PipelineShape
from erniecore_elastic.sampling import WHOLE, Drawn
from erniecore_elastic.usage import read_usage, write_usage
from erniecore_model_init.new_model import init_model
from erniecore_pretrain.objective import PretrainObjective
from erniecore_text.training import train
from safetensors.numpy import load_file, save_file

import erniecore
from erniecore.api import UsageError
from erniecore.api.method import Batch
from erniecore.api.model import ElasticSizes
from erniecore.api.training import forward_backward

SMALL = (
    "vocab_size=320,hidden_size=32,intermediate_size=64,num_hidden_layers=5,num_attention_heads=4,num_key_value_heads=2"
)
MOE = f"{SMALL},moe_layer_end_index=4,moe_intermediate_size=16,moe_num_experts=8,moe_k=3"
IDS = np.random.default_rng(0).integers(30, 300, [2, 17])
PLACES = [0, 1, 3, 4]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Models ``dense`` and ``moe`` with selection biases, and the usage of the experts of the second one."""
    place = tmp_path_factory.mktemp("elastic")
    (place / "tok").mkdir()
    train(["the quick brown fox jumps over the lazy dog " * 20], 320).save(place / "tok")
    init_model("ernie45", f"{SMALL},head_dim=8", place / "tok", place / "dense", seed_value=1)
    init_model("ernie45-moe", MOE, place / "tok", place / "moe", seed_value=1)
    file = place / "moe" / "model.safetensors"
    tensors = load_file(file)
    for number, name in enumerate(sorted(name for name in tensors if "e_score" in name)):
        tensors[name] = np.random.default_rng(number).normal(0, 0.1, tensors[name].shape).astype("float32")
    save_file(tensors, file, {"format": "pt"})
    (place / "moe" / "erniecore_manifest.json").unlink()
    usage = np.random.default_rng(3).random([5, 8])
    write_usage(place, 4, usage.tolist())
    return place


def hidden(model, **part):
    given = {name: paddle.to_tensor(np.asarray(values, np.int64)) for name, values in part.items()}
    return model.features(paddle.to_tensor(IDS), **given).hidden.numpy()


def used(home, count):
    rows = read_usage(home, ElasticSizes(5, 8, 3, 5))
    return [sorted(sorted(range(8), key=lambda e, row=row: -row[e])[:count]) for row in rows]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("dense", Sizes(depth=4)),
        ("moe", Sizes(depth=4)),
        ("moe", Sizes(selected=1)),
        ("moe", Sizes(experts=4)),
        ("moe", Sizes(depth=3, experts=2, selected=2)),
    ],
)
def test_what_is_extracted_computes_what_the_masked_model_computes(home, tmp_path, name, wanted):
    done = extract_directory(home / name, tmp_path / "out", wanted)
    model, small = erniecore.load_model(home / name), erniecore.load_model(tmp_path / "out")
    part = {"layers": done.part.layers}
    if wanted.experts:
        assert [list(row) for row in done.part.experts][:5] == used(home, wanted.experts)
        part["experts"] = done.part.experts
    if wanted.selected:
        part["num_selected"] = [wanted.selected]
    masked = hidden(model, **part)
    assert np.array_equal(masked, hidden(small))
    assert np.abs(masked - hidden(model)).max() > 1e-3
    assert done.parameters == sum(parameter.size for parameter in small.parameters()) <= done.whole
    assert small.architecture["num_hidden_layers"] == len(done.part.layers)


def test_a_narrower_model_is_the_whole_one_without_the_logits_of_the_others(home):
    """Against the plain definition: logits of the others at minus infinity, no selection bias."""
    model, x = erniecore.load_model(home / "moe"), paddle.randn([12, 32])
    block = next(model.blocks())
    kept = [0, 2, 5, 7]
    logits = (x @ block.gate.weight).numpy()
    logits[:, [e for e in range(8) if e not in kept]] = -np.inf
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    scores /= scores.sum(axis=1, keepdims=True)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :3]
    weights = np.take_along_axis(scores, best, 1)
    from erniecore_ernie45_moe.layers import Reduced

    reduced = Reduced(paddle.to_tensor(kept), None)
    found = reduced.numbered(block.route_reduced(x, reduced))
    assert np.array_equal(found.experts.numpy(), best)
    np.testing.assert_allclose(found.weights.numpy(), weights / weights.sum(axis=1, keepdims=True), atol=1e-6)


def batch(seed, rows=2):
    ids = np.random.default_rng(seed).integers(30, 300, [rows, 17])
    ends = np.full((rows, 1, 16, 1), 16, np.int32)
    places = np.tile(np.arange(16), (rows, 1))
    return Batch(ids[:, :-1], ids[:, 1:], places, ends, {}, rows * 16, rows)


def gradients(objective, batches):
    output = forward_backward(objective, batches)
    found = {n: None if p.grad is None else p.grad.numpy() for n, p in objective.policy.named_parameters()}
    for parameter in objective.policy.parameters():
        parameter.grad = None
    return output, found


def trained(home, objective=ElasticPretrainObjective, name="moe", **elastic):
    model = erniecore.load_model(home / name)
    for parameter in model.parameters():
        parameter.stop_gradient = "e_score" in parameter.name
    for block in model.blocks() if name == "moe" else ():
        block.moe_statics.e_score_correction_bias.stop_gradient = True
    model.train()
    options = {"elastic": ElasticPretrainConfig(**elastic)} if objective is ElasticPretrainObjective else {}
    return objective(model, **options)


def test_probabilities_of_zero_are_ordinary_training_to_the_bit(home):
    never = {"depth_probability": 0, "width_probability": 0, "selected_probability": 0}
    elastic = trained(home, depths=[4], widths=[4], selected=[1], **never)
    plain = trained(home, PretrainObjective)
    for step in (1, 2):
        batches = [batch(10 * step), batch(10 * step + 1)]
        one, found = gradients(elastic, elastic.prepare(batches, step=step, seed=step))
        other, expected = gradients(plain, batches)
        assert float(one.metrics["loss"][0]) == float(other.metrics["loss"][0])
        assert all(np.array_equal(found[name], expected[name]) for name in expected)
        for objective in (elastic, plain):
            objective.policy.after_step()
    biases = [[b.moe_statics.e_score_correction_bias.numpy() for b in o.policy.blocks()] for o in (elastic, plain)]
    assert all(np.array_equal(a, b) for a, b in zip(*biases, strict=True))


def test_balance_and_usage_come_from_whole_passes_alone(home):
    always = trained(home, widths=[4], width_probability=1.0, whole=1)
    before = [block.moe_statics.e_score_correction_bias.numpy() for block in always.policy.blocks()]
    batches = always.prepare([batch(1), batch(2)], step=1, seed=5)
    assert [set(one.inputs) for one in batches] == [set(), {"experts"}]
    output, _ = gradients(always, batches)
    assert {"elastic/whole_loss", "elastic/reduced_loss"} <= output.metrics.keys()
    always.policy.after_step()
    always.after_step(step=1, rate=0.1)
    usage = always.usage.numpy()
    assert usage[0].tolist() == [0] * 8
    assert usage[1:].sum(axis=1).tolist() == [2 * 16 * 3] * 4  # of one micro-batch
    moved = [block.moe_statics.e_score_correction_bias.numpy() for block in always.policy.blocks()]
    for row, old, new in zip(usage[1:], before, moved, strict=True):
        np.testing.assert_allclose(new[0] - old[0], 1e-3 * np.sign(row.mean() - row), atol=1e-7)
    # a step without any whole pass leaves both as they are
    none = trained(home, selected=[1], selected_probability=1.0)
    gradients(none, none.prepare([batch(1)], step=1, seed=5))
    none.policy.after_step()
    none.after_step(step=1, rate=0.1)
    assert not none.usage.numpy().any()
    for old, block in zip(before, none.policy.blocks(), strict=True):
        assert np.array_equal(old, block.moe_statics.e_score_correction_bias.numpy())
    again = trained(home, selected=[1])
    again.load_state_arrays({name: tensor.numpy() for name, tensor in always.state_tensors().items()})
    assert np.array_equal(again.usage.numpy(), usage)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_layer_that_is_skipped_has_a_gradient_of_zero(home, recompute):
    objective = trained(home, name="dense", depths=[4], depth_probability=1.0)
    objective.policy.set_recompute(recompute)
    (one,) = objective.prepare([batch(1)], step=1, seed=2)
    (gone,) = set(range(5)) - set(one.inputs["layers"].tolist())
    _, found = gradients(objective, [one])
    for name, gradient in found.items():
        assert gradient is not None, name
        assert gradient.any() == (f"layers.{gone}." not in name), name


def test_a_checkpointed_layer_is_recomputed_with_the_same_experts(home):
    options = {"widths": [4], "width_probability": 1.0, "selected": [1], "selected_probability": 1.0}
    runs = {}
    for recompute in ("none", "full"):
        objective = trained(home, **options)
        objective.policy.set_recompute(recompute)
        runs[recompute] = gradients(objective, objective.prepare([batch(1), batch(2)], step=1, seed=2))[1]
    assert all(np.array_equal(runs["none"][name], runs["full"][name]) for name in runs["none"])


def test_what_does_not_fit_is_refused(home, tmp_path):
    objective = trained(home, depths=[4])
    assert objective.draws(1, 3) == [WHOLE, WHOLE, WHOLE] or all(
        isinstance(one, Drawn) for one in objective.draws(1, 3)
    )
    with pytest.raises(UsageError, match="cannot run a part of itself"):
        ElasticPretrainObjective(Unelastic(), elastic=ElasticPretrainConfig(depths=[4]))
    for wanted, message in (
        (Sizes(depth=1), "no such size"),
        (Sizes(experts=16), "no such size"),
        (Sizes(experts=2), "more experts than there are"),
        (Sizes(depth=5), "this is the whole model"),
    ):
        with pytest.raises(UsageError, match=message):
            extract_directory(home / "moe", tmp_path / "out", wanted)
    with pytest.raises(UsageError, match="no routed experts"):
        extract_directory(home / "dense", tmp_path / "out", Sizes(experts=2))
    with pytest.raises(UsageError, match="nothing says which experts"):
        extract_directory(moved(home, tmp_path), tmp_path / "out", Sizes(experts=4))
    assert not (tmp_path / "out").exists()


def moved(home, tmp_path):
    """The model where no usage is beside it."""
    place = tmp_path / "elsewhere"
    place.mkdir()
    (place / "moe").symlink_to(home / "moe")
    return place / "moe"


class Unelastic:
    """A policy without the protocol."""

    architecture = json.loads('{"model_type": "toy"}')


def test_in_a_pipeline_whole_groups_are_skipped(home):
    objective = trained(home, retain=0.3, whole=1)
    objective.pipeline = PipelineShape(2, 2, (1, 1, 2, 1))
    found = [objective.draws(seed, 8) for seed in range(8)]
    assert all(one[0] == WHOLE for one in found)
    kept = [one.layers for step in found for one in step if one.layers is not None]
    assert kept
    # of the first and the last chunk nothing can be spared, and a group skips as much everywhere
    assert all({0, 4} <= set(layers) for layers in kept)
    for step in found:
        batches = [batch(micro) for micro in range(8)]
        given = [one.inputs.get("layers") for one in objective.prepare(batches, step=1, seed=found.index(step))]
        assert [None if one is None else tuple(one.tolist()) for one in given] == [one.layers for one in step]
