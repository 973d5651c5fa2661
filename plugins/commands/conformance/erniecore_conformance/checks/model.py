"""Checks for what a model computes, on a tiny architecture. Weights in files: ``model_state.py``.

Letters: B batch, S sequence, H hidden, V vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from erniecore_conformance.architectures import architecture_of
from erniecore_conformance.check import Check
from erniecore_conformance.expect import NotApplicable, ensure, ensure_bits, ensure_close, ensure_equal
from erniecore_conformance.subjects import Subject

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias

    from erniecore.api import Json
    from erniecore.api.testing import Layer

    #: ids of a row, and what the model gets of its images
    Row: TypeAlias = tuple[Sequence[int], Mapping[str, Any]]


def build(subject: Subject, seed: int = 0, dtype: str = "float32") -> tuple[Layer, Json]:
    """The tiny model with weights of ``seed``, and its architecture."""
    import paddle

    config, architecture = architecture_of(subject)
    paddle.seed(seed)
    model = subject.call("ernie_build_model", config=config, architecture=architecture, dtype=dtype)
    return model, architecture


def _ids(architecture: Json, B: int, S: int, seed: int = 0) -> Any:
    from erniecore_conformance.toys.compute import random_ids

    return random_ids(B, S, int(architecture["vocab_size"]), seed)


def rows_with_media(subject: Subject, architecture: Json) -> list[Row]:
    """Rows of a model that reads images, from its optional ``conformance_media``; none of others."""
    make = getattr(subject.plugin, "conformance_media", None)
    return [] if make is None else list(make(architecture))


def joined_rows(rows: Sequence[Row]) -> tuple[Any, dict[str, Any]]:
    """Ids [B, S] of these rows, and their further inputs one after the other."""
    import numpy as np

    inputs = {name: np.concatenate([row[1][name] for row in rows]) for name in rows[0][1]}
    return np.array([row[0] for row in rows], np.int64), inputs


def check_model_shapes(subject: Subject) -> None:
    """[B, S] ids give float32 logits [B, S, V] and hidden [B, S, H], for (1, 1), (2, 7) and (3, 16)."""
    import paddle

    model, architecture = build(subject)
    model.eval()
    for B, S in ((1, 1), (2, 7), (3, 16)):
        features = model.features(paddle.to_tensor(_ids(architecture, B, S)))
        ensure_equal(list(features.hidden.shape), [B, S, int(architecture["hidden_size"])], f"hidden of ({B}, {S})")
        found = model.logits(features.hidden)
        ensure_equal(list(found.shape), [B, S, int(architecture["vocab_size"])], f"logits of ({B}, {S})")
        ensure(found.dtype == paddle.float32, f"logits are {found.dtype}, not float32")
        ensure(bool(paddle.isfinite(found).all()), f"logits of ({B}, {S}) are not finite")


def check_model_is_callable(subject: Subject) -> None:
    """Calling the model on ids gives its logits, bit for bit."""
    import paddle

    from erniecore_conformance.toys.compute import evaluating, logits

    model, architecture = build(subject)
    ids = _ids(architecture, 2, 7)
    with evaluating(model):
        called = model(paddle.to_tensor(ids)).numpy()
    ensure_bits(called, logits(model, ids), "model(ids)")


def check_model_head_is_the_last_product(subject: Subject) -> None:
    """``logits(hidden)`` is ``hidden`` times the matrix of ``head()`` plus its bias (<= 1e-5)."""
    import paddle

    model, architecture = build(subject)
    model.eval()
    with paddle.no_grad():
        hidden = model.features(paddle.to_tensor(_ids(architecture, 2, 5))).hidden
        weight, transposed, bias = model.head()
        product = paddle.matmul(hidden, weight, transpose_y=transposed)
        product = product if bias is None else product + bias
        ensure_close(product.numpy(), model.logits(hidden).numpy(), 1e-5, "hidden times head()")


def check_model_is_causal(subject: Subject) -> None:
    """Changing a token leaves all logits before it (<= 1e-6), and changes some after it."""
    import numpy as np

    from erniecore_conformance.toys.compute import logits

    model, architecture = build(subject)
    ids = _ids(architecture, 2, 12)
    changed = ids.copy()
    changed[:, 7] = np.where(ids[:, 7] == 5, 6, 5)
    before, after = logits(model, ids), logits(model, changed)
    ensure_close(after[:, :7], before[:, :7], 1e-6, "logits before a changed token")
    ensure(bool(np.any(after[:, 7:] != before[:, 7:])), "logits do not depend on the token")


def check_model_ignores_padding(subject: Subject) -> None:
    """Padding on either side under ``attention_mask`` leaves the logits of real tokens (<= 1e-5)."""
    import numpy as np

    from erniecore_conformance.toys.compute import logits

    model, architecture = build(subject)
    ids = _ids(architecture, 2, 9)
    expected = logits(model, ids)
    pad, mask = np.zeros((2, 4), np.int64), np.ones((2, 9), np.int64)
    positions = np.broadcast_to(np.arange(9), (2, 9))
    for side, real in (("right", slice(0, 9)), ("left", slice(4, 13))):
        parts = [(x, pad) if side == "right" else (pad, x) for x in (ids, mask, positions)]
        padded, padded_mask, padded_positions = (np.concatenate(pair, axis=1) for pair in parts)
        found = logits(model, padded, attention_mask=padded_mask, position_ids=padded_positions)
        ensure_close(found[:, real], expected, 1e-5, f"logits with padding on the {side}")


def check_model_isolates_packed_samples(subject: Subject) -> None:
    """Two samples packed in a row under ``startend_row_indices`` give their own logits (<= 1e-5)."""
    import numpy as np

    from erniecore_conformance.toys.compute import logits

    model, architecture = build(subject)
    first, second = _ids(architecture, 1, 6, seed=1), _ids(architecture, 1, 9, seed=2)
    ends = np.repeat([6, 15], [6, 9]).astype(np.int32).reshape(1, 1, 15, 1)
    positions = np.concatenate([np.arange(6), np.arange(9)])[None]
    packed = logits(model, np.concatenate([first, second], axis=1), startend_row_indices=ends, position_ids=positions)
    ensure_close(packed[:, :6], logits(model, first), 1e-5, "logits of the first packed sample")
    ensure_close(packed[:, 6:], logits(model, second), 1e-5, "logits of the second packed sample")


def check_model_rows_are_independent(subject: Subject) -> None:
    """The order of rows, and other rows in the batch, leave a row's logits (<= 1e-5)."""
    from erniecore_conformance.toys.compute import logits

    model, architecture = build(subject)
    ids = _ids(architecture, 4, 8)
    expected, order = logits(model, ids), [2, 0, 3, 1]
    ensure_close(logits(model, ids[order]), expected[order], 1e-5, "logits of rows in another order")
    ensure_close(logits(model, ids[1:2]), expected[1:2], 1e-5, "logits of a row alone")


def check_model_default_positions_count_from_zero(subject: Subject) -> None:
    """Without ``position_ids`` positions are 0, 1, 2, … (<= 1e-6)."""
    import numpy as np

    from erniecore_conformance.toys.compute import logits

    model, architecture = build(subject)
    ids = _ids(architecture, 2, 8)
    positions = np.broadcast_to(np.arange(8), (2, 8)).copy()
    ensure_close(logits(model, ids, position_ids=positions), logits(model, ids), 1e-6, "logits with positions given")


def check_model_cached_decode_equals_full(subject: Subject) -> None:
    """Prefill of 5 and one token at a time with a cache give the logits of the full forward pass (<= 1e-5)."""
    import numpy as np
    import paddle
    from erniecore_generation.cache import StaticCache

    from erniecore_conformance.toys.compute import evaluating, logits

    model, architecture = build(subject)
    ids = _ids(architecture, 2, 11)
    cache, found = StaticCache(int(architecture["num_hidden_layers"]), 11), []
    with evaluating(model):
        for start, stop in ((0, 5), *((i, i + 1) for i in range(5, 11))):
            hidden = model.features(paddle.to_tensor(ids[:, start:stop]), cache=cache).hidden
            found.append(model.logits(hidden).numpy())
    ensure_close(np.concatenate(found, axis=1), logits(model, ids), 1e-5, "logits with a cache")


def check_model_gradients_reach_everything(subject: Subject) -> None:
    """Every trainable parameter gets a finite gradient that is not all zero, from a batch with media if the model reads any."""
    from erniecore_conformance.toys.compute import gradients, missing_gradients, next_token_loss

    model, architecture = build(subject)
    model.train()
    rows = rows_with_media(subject, architecture)
    ids, inputs = joined_rows(rows) if rows else (_ids(architecture, 4, 48), {})
    next_token_loss(model, ids, inputs).backward()
    found = gradients(model)
    ensure(bool(found), "no parameter is trainable")
    bad = missing_gradients(found)
    ensure(not bad, f"gradients: {', '.join(bad[:5])}" + (" …" if len(bad) > 5 else ""))


def check_model_seed_decides_weights(subject: Subject) -> None:
    """The same seed builds the same weights, bit for bit; another seed builds others."""
    import numpy as np

    from erniecore_conformance.toys.compute import weights

    first, again, other = (weights(build(subject, seed)[0]) for seed in (0, 0, 1))
    for name, value in first.items():
        ensure_bits(again[name], value, f"{name} built again")
    ensure(any(np.any(other[name] != value) for name, value in first.items()), "another seed builds the same weights")


def check_model_forward_repeats(subject: Subject) -> None:
    """Two forward passes in evaluation mode agree bit for bit and leave the weights alone."""
    from erniecore_conformance.toys.compute import logits, weights

    model, architecture = build(subject)
    ids, before = _ids(architecture, 2, 10), weights(model)
    ensure_bits(logits(model, ids), logits(model, ids), "logits of a second forward pass")
    for name, value in weights(model).items():
        ensure_bits(value, before[name], f"{name} after a forward pass")


def check_model_dtype_is_as_asked(subject: Subject) -> None:
    """Built in bfloat16, every parameter is bfloat16 but those that the state adapter keeps in float32."""
    model, architecture = build(subject, dtype="bfloat16")
    adapter = subject.call("ernie_state_adapter", architecture=architecture)
    kept = {m.name for m in adapter.maps("pt") if m.dtype == "float32"}
    for name, parameter in model.named_parameters():
        expected = "float32" if name in kept else "bfloat16"
        ensure(expected in str(parameter.dtype), f"{name} is {parameter.dtype}, expected {expected}")


def check_model_keeps_its_architecture(subject: Subject) -> None:
    """``model.architecture`` holds every key of the architecture that it was built from."""
    model, architecture = build(subject)
    for key, value in architecture.items():
        ensure_equal(model.architecture.get(key), value, f"architecture[{key!r}]")


def check_model_survives_after_step(subject: Subject) -> None:
    """``after_step(rate=…)`` can be called in training, also before any batch, and keeps all weights finite."""
    import numpy as np

    from erniecore_conformance.toys.compute import sgd_steps, weights

    model, architecture = build(subject)
    model.after_step(rate=0.01)
    sgd_steps(model, _ids(architecture, 2, 8), steps=1, learning_rate=0.01)
    model.after_step(rate=0.01)
    for name, value in weights(model).items():
        ensure(bool(np.isfinite(np.asarray(value, np.float64)).all()), f"{name} is not finite after after_step()")


def check_model_router_bias_only_selects(subject: Subject) -> None:
    """A constant added to all of a router's ``e_score_correction_bias`` leaves the logits (<= 1e-6): the bias decides
    which experts are chosen, not what they weigh (arXiv:2408.15664)."""
    from erniecore_conformance.toys.compute import logits

    model, architecture = build(subject)
    ids = _ids(architecture, 2, 12)
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    biases = [value for name, value in named.items() if name.endswith("e_score_correction_bias")]
    if not biases:
        raise NotApplicable("no parameter is called e_score_correction_bias")
    before = logits(model, ids)
    for bias in biases:
        bias.set_value(bias + 0.5)
    ensure_close(logits(model, ids), before, 1e-6, "logits with a constant added to the router's bias")


CHECKS = (
    Check(check_model_shapes),
    Check(check_model_is_callable),
    Check(check_model_head_is_the_last_product),
    Check(check_model_is_causal),
    Check(check_model_ignores_padding),
    Check(check_model_isolates_packed_samples),
    Check(check_model_rows_are_independent),
    Check(check_model_default_positions_count_from_zero),
    Check(check_model_cached_decode_equals_full),
    Check(check_model_gradients_reach_everything),
    Check(check_model_seed_decides_weights),
    Check(check_model_forward_repeats),
    Check(check_model_dtype_is_as_asked),
    Check(check_model_keeps_its_architecture),
    Check(check_model_survives_after_step),
    Check(check_model_router_bias_only_selects),
)
