"""Images that are read through convolutions and a vision transformer, merged by attention (arXiv:2602.04705)."""

import numpy as np
import paddle  # noqa: TID253
import paddle.nn.functional as F  # noqa: TID253
import pytest
from erniecore_ernie5.architecture import Ernie5Architecture
from erniecore_ernie5.config import Ernie5Config
from erniecore_ernie5.model import Ernie5ForCausalLM
from erniecore_ernie5.sequence import FIELDS, READ, joined
from erniecore_ernie5.state import Ernie5StateAdapter
from media_tokens import MEDIA, SIZES, image_tokens, run, run_by_parts, text

from erniecore.api import CheckpointError


def built(**changes):
    paddle.seed(0)
    found = Ernie5ForCausalLM(Ernie5Architecture.parse({**SIZES, "image_read_layers": 2, **changes}), Ernie5Config())
    found.eval()
    return found


@pytest.fixture(scope="module")
def model():
    return built()


@pytest.fixture(scope="module")
def paths(model):
    return model.image.read


def some_values(n=2, seed=0):
    image = MEDIA.image
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, image.grid, image.grid, image.width)).astype(np.float32)


def pixels_of(values):
    """[n, 3, size, size], by the way back of the tokenizer itself."""
    parts = values.reshape(-1, 4, 4, 4, 4, 3)
    return parts.transpose(0, 5, 1, 3, 2, 4).reshape(-1, 3, 16, 16)


def test_the_convolutions_are_those_of_the_library(paths):
    pixels = pixels_of(some_values())
    width, hidden = paths.near.weight.shape[1], paths.far.weight.shape[1]
    near = paths.near.weight.reshape([3, 3, 3, width]).transpose([3, 2, 0, 1])
    far = paths.far.weight.reshape([2, 2, width, hidden]).transpose([3, 2, 0, 1])
    x = F.silu(F.conv2d(paddle.to_tensor(pixels), near, paths.near.bias, padding=1))
    expected = F.conv2d(x, far, paths.far.bias, stride=2).transpose([0, 2, 3, 1]).reshape([2, 64, hidden])
    found = paths._convolved(paddle.to_tensor(pixels.transpose(0, 2, 3, 1)))
    assert np.abs(found.numpy() - expected.numpy()).max() < 1e-5


def test_the_merger_is_a_mean_of_the_parts_of_a_patch_by_their_scores(paths):
    x = paddle.randn([1, 64, 32])
    squares = x.numpy().reshape(4, 2, 4, 2, 32).transpose(0, 2, 1, 3, 4).reshape(16, 4, 32)
    scores = squares @ paths.score.weight.numpy()
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected = (weights / weights.sum(axis=1, keepdims=True) * squares).sum(axis=1)
    assert np.abs(paths._merged(x).numpy()[0] - expected).max() < 1e-6


def test_every_patch_of_an_image_sees_all_of_it_and_no_other_image(paths):
    values = some_values()
    before, changed = paths(paddle.to_tensor(values)).numpy(), values.copy()
    changed[0, 3, 3, 0] += 1.0
    moved = np.abs(paths(paddle.to_tensor(changed)).numpy() - before).max(axis=-1)
    assert moved[0].min() > 0
    assert moved[1].max() == 0


def test_what_is_read_changes_what_follows_and_nothing_before(model):
    tokens = joined([text(3, 0.0), *image_tokens(), text(2, 7.0)])
    before, values = run(model, tokens).hidden.numpy()[0], tokens.values.copy()
    start = int(np.argmax(tokens.kinds == READ))
    values[start + 15] += 1.0
    moved = np.abs(run(model, tokens, values=values).hidden.numpy()[0] - before).max(axis=-1)
    assert moved[:start].max() == 0.0
    assert moved[start:].min() > 0.0


def test_a_cache_gives_what_a_whole_pass_gives_and_rows_of_a_batch_are_apart(model):
    parts = [text(3, 0.0), *image_tokens(), text(2, 7.0)]
    whole = run(model, joined(parts)).hidden.numpy()[0]
    assert np.abs(run_by_parts(model, parts) - whole).max() < 1e-5
    rows = [joined([text(3, 0.0), *image_tokens(seed), text(2, 7.0)]) for seed in (0, 1)]
    inputs = {
        name: paddle.to_tensor(np.stack([getattr(row, name) for row in rows])) for name in FIELDS if name != "bits"
    }
    with paddle.no_grad():
        both = model.features(paddle.to_tensor(np.stack([row.ids for row in rows])), **inputs).hidden.numpy()
    assert np.abs(both[0] - whole).max() < 1e-5
    assert np.abs(both[1] - whole).max() > 1e-2


def test_gradients_reach_both_paths_and_images_that_are_drawn_do_not_pass_them(model):
    tokens = joined([text(2, 0.0), *image_tokens(), text(2, 6.0)])
    inputs = {name: paddle.to_tensor(getattr(tokens, name)[None]) for name in FIELDS if name != "bits"}
    model.features(paddle.to_tensor(tokens.ids[None]), **inputs).hidden[0, -1].sum().backward()
    lacking = [n for n, p in model.image.read.named_parameters() if p.grad is None or not float(p.grad.abs().max())]
    model.clear_gradients()
    assert lacking == []
    drawn = joined([text(2, 0.0), *image_tokens()[:-1], text(2, 6.0)])
    inputs = {name: paddle.to_tensor(getattr(drawn, name)[None]) for name in FIELDS if name != "bits"}
    model.features(paddle.to_tensor(drawn.ids[None]), **inputs).hidden.sum().backward()
    assert not any(p.grad.numpy().any() for p in model.image.read.parameters())
    assert model.image.embed.weight.grad.numpy().any()
    model.clear_gradients()


def test_names_and_shapes_are_those_of_the_adapter(model):
    expected = {entry.name: list(entry.shape) for entry in Ernie5StateAdapter(model.media_arch).maps("pt")}
    found = {name: value.shape for name, value in model.state_dict().items()}
    assert found == expected
    assert any(name.startswith("image.read.") for name in found)


def test_without_layers_there_is_no_such_path():
    assert built(image_read_layers=0).image.read is None
    with pytest.raises(CheckpointError, match="multiple of 2"):
        Ernie5Architecture.parse(
            {**SIZES, "image_read_layers": 1, "image_size": 15, "image_patch": 5, "image_scales": [1, 3]}
        )
