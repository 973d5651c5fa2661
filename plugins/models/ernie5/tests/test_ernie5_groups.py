"""What depends on what: groups of an image, frames of a video, levels of a frame (arXiv:2602.04705)."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ernie5.architecture import Ernie5Architecture
from erniecore_ernie5.balance import normalized_entropy, overlap
from erniecore_ernie5.config import Ernie5Config
from erniecore_ernie5.groups import grouped_attention, make_slots
from erniecore_ernie5.image_tokens import scale_slices
from erniecore_ernie5.model import Ernie5ForCausalLM
from erniecore_ernie5.sequence import FIELDS, joined
from media_tokens import MEDIA, SCALES, SIZES, image_tokens, run, run_by_parts, text


@pytest.fixture(scope="module")
def model():
    paddle.seed(0)
    found = Ernie5ForCausalLM(Ernie5Architecture.parse(SIZES), Ernie5Config())
    found.eval()
    return found


def dense(q, k, v, visible):
    scores = np.einsum("shd,khd->hsk", q, k) / np.sqrt(q.shape[-1])
    scores = np.where(visible[None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hsk,khd->shd", weights / weights.sum(-1, keepdims=True), v)


def test_attention_by_groups_is_the_dense_mask_also_packed_and_padded():
    rng, S = np.random.default_rng(0), 14
    flags = np.array([[0, 0, 0, 1, 1, 1, 0, 0, 1, 0, 0, 1, 1, 0], [0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]], np.int8)
    # the second row has two samples and two columns of padding
    ends = np.array([[S] * S, [5] * 5 + [12] * 7 + [12, 13]], np.int32)
    q, k, v = (rng.normal(size=(2, S, 2, 8)).astype(np.float32) for _ in range(3))
    slots = make_slots(flags, ends)
    tensors = [paddle.to_tensor(x, stop_gradient=False) for x in (q, k, v)]
    found = grouped_attention(*tensors, slots)
    found.sum().backward()
    assert all(np.isfinite(x.grad.numpy()).all() for x in tensors)
    for row in range(2):
        group = np.cumsum(flags[row] == 0)
        visible = (group[None, :] <= group[:, None]) & (np.arange(S)[:, None] < ends[row][None, :])
        visible &= (ends[row] > np.arange(S))[None, :]
        real = visible.any(axis=1)
        expected = dense(q[row], k[row], v[row], visible | ~real[:, None])
        assert np.abs(found.numpy()[row][real] - expected[real]).max() < 1e-5


def test_slots_are_fewer_than_two_per_token():
    flags = np.zeros((1, 64), np.int8)
    flags[0, 11:27] = 1
    slots = make_slots(flags, None)
    assert slots.shape == (1, 64 + 16)
    assert make_slots(np.zeros((2, 9), np.int8), None) is None


def test_a_token_of_a_scale_changes_its_scale_and_what_follows(model):
    tokens = joined([text(3, 0.0), *image_tokens(), text(2, 7.0)])
    parts = [slice(0, 3), *(slice(3 + s.start, 3 + s.stop) for s in scale_slices((*SCALES, 4))), slice(40, 42)]
    before = run(model, tokens).hidden.numpy()[0]
    for changed in range(1, 5):
        values = tokens.values.copy()
        values[parts[changed].start] += 1.0
        moved = np.abs(run(model, tokens, values=values).hidden.numpy()[0] - before).max(axis=-1)
        for index, where in enumerate(parts):
            if index < changed:
                assert moved[where].max() == 0.0
            else:
                assert moved[where].min() > 0.0


def test_frames_of_a_video_are_causal(model):
    tokens = joined([text(1, 0.0), *image_tokens(0, 1.0), text(1, 5.0), *image_tokens(1, 6.0)])
    before, values = run(model, tokens).hidden.numpy()[0], tokens.values.copy()
    values[39] += 1.0  # the first scale of the second frame
    moved = np.abs(run(model, tokens, values=values).hidden.numpy()[0] - before).max(axis=-1)
    assert moved[:39].max() == 0.0
    assert moved[39:].min() > 0.0


def test_levels_depend_on_codes_of_earlier_levels_alone(model):
    audio = MEDIA.audio
    codes = np.array([[audio.code(i), audio.code(i + 12), audio.code(i + 19)] for i in range(4)], np.int16)
    tokens = joined([text(2, 0.0), MEDIA.frames(codes, 2.0)])
    tokens.next_codes[2:5] = codes[1:] + 1

    def logits(changed):
        levels = run(model, tokens, next_codes=changed).levels
        return [model.code_logits(level, hidden).numpy()[0] for level, hidden in enumerate(levels)]

    before = logits(tokens.next_codes)
    for level in range(3):
        changed = tokens.next_codes.copy()
        changed[3, level] = 5
        moved = [np.abs(a - b).max(axis=-1) for a, b in zip(logits(changed), before, strict=True)]
        for other in range(3):
            assert moved[other][:3].max() == 0.0
            if other <= level:
                assert moved[other].max() == 0.0
            else:
                assert moved[other][3] > 0.0


def test_a_cache_gives_what_a_whole_pass_gives(model):
    parts = [text(3, 0.0), *image_tokens(), text(2, 7.0)]
    whole = run(model, joined(parts)).hidden.numpy()[0]
    assert np.abs(run_by_parts(model, parts) - whole).max() < 1e-5


def test_text_with_fields_is_the_text_model(model):
    tokens = text(9, 0.0)
    with paddle.no_grad():
        plain = model.features(paddle.to_tensor(tokens.ids[None])).hidden.numpy()
    assert np.abs(run(model, tokens).hidden.numpy() - plain).max() < 1e-6


def test_one_router_serves_all_and_its_loads_are_told_by_modality():
    paddle.seed(0)
    model = Ernie5ForCausalLM(Ernie5Architecture.parse(SIZES), Ernie5Config())
    model.train()
    codes = np.array([[MEDIA.audio.code(3), 0, 0]] * 4, np.int16)
    tokens = joined([text(5, 0.0), *image_tokens(0, 5.0), MEDIA.frames(codes, 10.0)])
    inputs = {name: paddle.to_tensor(getattr(tokens, name)[None]) for name in FIELDS if name != "bits"}
    model.features(paddle.to_tensor(tokens.ids[None]), **inputs)
    model.after_step(rate=0.0)
    assert all(len(block.routers()) == 1 for block in model.blocks())
    kinds, loads = (
        model.balancer._last_kinds.numpy(),
        np.stack([x.numpy()[0] for x in model.balancer.last_loads.values()]),
    )
    assert (kinds.sum(axis=1) == loads).all()
    assert (kinds.sum(axis=2) == np.array([5, 37, 4]) * SIZES["moe_k"]).all()
    metrics = model.router_metrics()
    assert {"moe/entropy_text", "moe/entropy_image", "moe/entropy_audio", "moe/overlap_text_image"} <= set(metrics)


def test_entropy_and_overlap_in_closed_form():
    assert normalized_entropy(np.array([5.0, 5, 5, 5])) == pytest.approx(1)
    assert normalized_entropy(np.array([7.0, 0, 0, 0])) == 0
    assert normalized_entropy(np.array([1.0, 1, 0, 0])) == pytest.approx(0.5)
    one, other = np.array([9.0, 8, 1, 1, 1, 1, 1, 1]), np.array([9.0, 1, 8, 1, 1, 1, 1, 1])
    assert overlap(one, one) == 1
    assert overlap(one, other) == pytest.approx(1 / 3)
