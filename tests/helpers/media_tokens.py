"""Sizes of a small model of text, images and audio, tokens for it, and a pass over them."""

import numpy as np
import paddle  # noqa: TID253
from erniecore_ernie5.audio_tokens import AudioTokens
from erniecore_ernie5.image_tokens import ImageTokens
from erniecore_ernie5.sequence import FIELDS, Markers, MediaTokens
from erniecore_generation.cache import StaticCache

SCALES = (1, 2, 4)
MEDIA = MediaTokens(ImageTokens(16, 4, SCALES), AudioTokens(), Markers(6, 7, 8, 9))
SIZES = {
    "model_type": "ernie5",
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "initializer_range": 0.2,
    "moe_num_experts": 4,
    "moe_k": 2,
    "moe_intermediate_size": 16,
    "moe_num_shared_experts": 1,
    "moe_layer_start_index": 1,
    "image_size": 16,
    "image_patch": 4,
    "image_scales": list(SCALES),
    "audio_sample_rate": 8000,
    "audio_frame": 640,
    "audio_levels": 3,
    "audio_notes": 36,
    "image_start_token": "<a>",
    "image_end_token": "<b>",
    "audio_start_token": "<c>",
    "audio_end_token": "<d>",
}


def image_tokens(seed=0, start=3.0):
    rng = np.random.default_rng(seed)
    values = MEDIA.image.values((rng.integers(2, size=(16, 16, 3)) * 255).astype(np.uint8))
    return [*MEDIA.drawn(values, start), MEDIA.read(values, start)]


def text(count, at):
    return MEDIA.text(np.arange(10, 10 + count), at, learned=False)


def run(model, tokens, cache=None, **changed):
    inputs = {name: paddle.to_tensor(getattr(tokens, name)[None]) for name in FIELDS if name != "bits"}
    inputs.update({name: paddle.to_tensor(value[None]) for name, value in changed.items()})
    with paddle.no_grad():
        return model.features(paddle.to_tensor(tokens.ids[None]), cache=cache, **inputs)


def run_by_parts(model, parts):
    """Hidden states of all positions, with keys and values of the parts before in a cache."""
    cache = StaticCache(4, 64)
    return np.concatenate([run(model, tokens, cache).hidden.numpy()[0] for tokens in parts])
