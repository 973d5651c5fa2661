"""Checks for quantizers, over the toy model. Capabilities ``train`` and ``export`` name the phases that a plugin has,
``calibrate`` the hook of that name; its class attribute ``min_sqnr_db`` (default 20) is the least signal-to-noise ratio of
the logits that it promises."""

from __future__ import annotations

from functools import partial
from typing import Any, get_args

from erniecore.api import ErnieError
from erniecore.api.quantizer import QuantizerCapability
from erniecore_conformance.check import Check
from erniecore_conformance.expect import ensure, ensure_bits, ensure_close, ensure_raises
from erniecore_conformance.subjects import Subject
from erniecore_conformance.toys.compute import (
    gradients,
    logits,
    missing_gradients,
    next_token_loss,
    random_ids,
    sgd_steps,
    sqnr,
    weights,
)

_VOCAB = 260


def _phases(subject: Subject) -> list[str]:
    phases = QuantizerCapability.TRAIN, QuantizerCapability.EXPORT
    return [str(phase) for phase in phases if phase in subject.plugin.capabilities]


def _quantized(subject: Subject, phase: str, model: Any = None) -> Any:
    from erniecore_conformance.toys.paddle_lm import toy_model

    return subject.call("ernie_quantize_model", config=subject.config(), model=model or toy_model(), phase=phase)


def _ensure_near(subject: Subject, found: Any, expected: Any, what: str) -> None:
    least = float(getattr(subject.plugin, "min_sqnr_db", 20.0))
    ratio = sqnr(expected, found)
    ensure(ratio >= least, f"{what}: {ratio:.1f} dB, promised {least:.1f} dB")


def check_quantizer_has_a_phase(subject: Subject) -> None:
    """``capabilities`` has ``train``, ``export`` or both."""
    ensure(bool(_phases(subject)), "capabilities names neither `train` nor `export`")


def check_quantizer_refuses_unknown_phases(subject: Subject) -> None:
    """A phase that the plugin does not have is an error with a remedy, not the model as it was."""
    for phase in sorted({"train", "export", "nonsense"} - set(_phases(subject))):
        ensure_raises(ErnieError, lambda p=phase: _quantized(subject, p), f"phase {phase!r}")  # type: ignore[misc]


def check_quantizer_keeps_the_interface(subject: Subject) -> None:
    """The quantized model is still a ``CausalLM``."""
    for phase in _phases(subject):
        model = _quantized(subject, phase)
        missing = [m for m in ("architecture", "features", "logits", "head", "after_step") if not hasattr(model, m)]
        ensure(not missing, f"phase {phase}: the model has no {', '.join(missing)}")


def check_quantizer_quantizes(subject: Subject) -> None:
    """Something changes: the logits are not those of the plain model, bit for bit."""
    from erniecore_conformance.toys.paddle_lm import toy_model

    ids = random_ids(2, 9, _VOCAB)
    plain = logits(toy_model(), ids)
    for phase in _phases(subject):
        found = logits(_quantized(subject, phase), ids)
        ensure(found.tobytes() != plain.tobytes(), f"phase {phase}: nothing is quantized")


def check_quantizer_is_near(subject: Subject) -> None:
    """The logits' signal-to-noise ratio is at least ``min_sqnr_db``."""
    from erniecore_conformance.toys.paddle_lm import toy_model

    ids = random_ids(4, 16, _VOCAB)
    plain = logits(toy_model(), ids)
    for phase in _phases(subject):
        _ensure_near(subject, logits(_quantized(subject, phase), ids), plain, f"logits in phase {phase}")


def check_quantizer_survives_zeros_and_outliers(subject: Subject) -> None:
    """A weight of zeros and one with a single value of 10,000 give finite logits."""
    import numpy as np

    from erniecore_conformance.toys.paddle_lm import toy_model

    for phase in _phases(subject):
        model = toy_model()
        first, second = model.layers[0].mlp, model.layers[1].mlp
        first.up_proj.weight.set_value(first.up_proj.weight * 0)
        spiked = second.up_proj.weight.numpy().copy()
        spiked[0, 0] = 1e4
        second.up_proj.weight.set_value(spiked)
        found = logits(_quantized(subject, phase, model), random_ids(2, 9, _VOCAB))
        ensure(bool(np.isfinite(found).all()), f"phase {phase}: logits are not finite")


def check_quantizer_leaves_vectors_alone(subject: Subject) -> None:
    """Norms, biases and other vectors keep their bits."""
    from erniecore_conformance.toys.paddle_lm import toy_model

    before = {n: v for n, v in weights(toy_model()).items() if v.ndim == 1}
    for phase in _phases(subject):
        after = weights(_quantized(subject, phase))
        for name, value in before.items():
            ensure(name in after, f"phase {phase}: {name} is gone")
            ensure_bits(after[name], value, f"{name} in phase {phase}")


def check_quantizer_is_idempotent(subject: Subject) -> None:
    """Quantizing a quantized model changes nothing more, bit for bit."""
    ids = random_ids(2, 9, _VOCAB)
    for phase in _phases(subject):
        once = _quantized(subject, phase)
        before = logits(once, ids)
        ensure_bits(logits(_quantized(subject, phase, once), ids), before, f"logits quantized twice in phase {phase}")


def check_quantizer_repeats(subject: Subject) -> None:
    """Two runs give the same logits, bit for bit."""
    ids = random_ids(2, 9, _VOCAB)
    for phase in _phases(subject):
        first, second = (logits(_quantized(subject, phase), ids) for _ in range(2))
        ensure_bits(second, first, f"logits of a second run in phase {phase}")


def check_quantizer_gradient_passes_straight_through(subject: Subject) -> None:
    """In phase ``train`` every trainable parameter gets a finite gradient that is not all zero."""
    model = _quantized(subject, "train")
    model.train()
    next_token_loss(model, random_ids(4, 24, _VOCAB)).backward()
    found = gradients(model)
    ensure(bool(found), "no parameter is trainable")
    bad = missing_gradients(found)
    ensure(not bad, f"gradients: {', '.join(bad[:5])}")


def check_quantizer_trains(subject: Subject) -> None:
    """In phase ``train`` twenty steps of gradient descent lower the loss."""
    losses = sgd_steps(_quantized(subject, "train"), random_ids(2, 12, _VOCAB), steps=20, learning_rate=0.1)
    ensure(losses[-1] < losses[0] - 0.01, f"loss {losses[0]:.5g} at the start, {losses[-1]:.5g} after 20 steps")


def check_quantizer_exports_what_was_trained(subject: Subject) -> None:
    """Phase ``export`` of a trained model has the logits of phase ``train`` within ``min_sqnr_db``."""
    if "train" not in _phases(subject):
        return
    model, ids = _quantized(subject, "train"), random_ids(2, 12, _VOCAB)
    sgd_steps(model, ids, steps=5, learning_rate=0.1)
    trained = logits(model, ids)
    _ensure_near(subject, logits(_quantized(subject, "export", model), ids), trained, "exported against trained logits")


def check_quantizer_refuses_weights_that_are_not_finite(subject: Subject) -> None:
    """A weight that holds NaN is refused, or still holds NaN afterwards; it never becomes a number."""
    import numpy as np

    from erniecore_conformance.toys.paddle_lm import toy_model

    for phase in _phases(subject):
        model = toy_model()
        weight = model.layers[0].mlp.up_proj.weight
        weight.set_value(np.where(np.arange(weight.size).reshape(weight.shape) == 3, np.nan, weight.numpy()))
        try:
            found = weights(_quantized(subject, phase, model))
        except ErnieError:
            continue
        kept = any(np.isnan(value.astype("float32")).any() for value in found.values() if value.dtype.kind == "f")
        ensure(kept, f"phase {phase}: NaN in a weight became something else, without an error")


def check_quantizer_refuses_patterns_that_match_nothing(subject: Subject) -> None:
    """A setting of patterns over layers (``layers``, ``int4``, ``int8``, ``ignore``) that names no layer is an error."""
    from erniecore_conformance.toys.paddle_lm import toy_model

    for key in sorted({"layers", "int4", "int8", "ignore"} & set(subject.plugin.Config.model_fields)):
        config = subject.plugin.Config(**{key: ("qqproj",)})
        for phase in _phases(subject):
            call = partial(subject.call, "ernie_quantize_model", config=config, model=toy_model(), phase=phase)
            ensure_raises(ErnieError, call, f"{key}=qqproj in phase {phase}")


def _calibrated(subject: Subject, config: Any = None, *, tokens: int = 64) -> Any:
    from erniecore_conformance.toys.paddle_lm import toy_model

    batches = [random_ids(4, tokens, _VOCAB, seed) for seed in range(2)] if tokens > 1 else [random_ids(1, 2, _VOCAB)]
    config = config or subject.config()
    return subject.call("ernie_calibrate_model", config=config, model=toy_model(), batches=batches)


def check_quantizer_calibration_needs_data(subject: Subject) -> None:
    """Two tokens are too few to learn from, and an error says so."""
    ensure_raises(ErnieError, lambda: _calibrated(subject, tokens=1), "calibration with two tokens")


def check_quantizer_decodes_what_it_evaluates(subject: Subject) -> None:
    """Decoding with a cache gives the logits of one pass without (<= 1e-4): a loss says what a server will compute. With what
    the model stores in its cache, and for every setting ``cache``, if there is one."""
    import numpy as np
    import paddle
    from erniecore_generation.cache import StaticCache

    from erniecore.api.model_files import codec_of

    kinds: Any = subject.plugin.Config
    dtypes = get_args(kinds.model_fields["cache"].annotation) if "cache" in kinds.model_fields else (None,)
    for dtype in dtypes:
        model = _calibrated(subject, None if dtype is None else kinds(cache=dtype))
        ids, found = random_ids(2, 7, _VOCAB), []
        cache = StaticCache(int(model.architecture["num_hidden_layers"]), 7, codec_of(model))
        with paddle.no_grad():
            for start, stop in [(0, 3), *((i, i + 1) for i in range(3, 7))]:
                hidden = model.features(paddle.to_tensor(ids[:, start:stop]), cache=cache).hidden
                found.append(model.logits(hidden).numpy())
        what = "logits with a cache" + (f" of {dtype}" if dtype else "")
        ensure_close(np.concatenate(found, axis=1), logits(model, ids), 1e-4, what)


def check_quantizer_calibrated_is_near(subject: Subject) -> None:
    """A model quantized with the help of data has logits within ``min_sqnr_db``, the same each time."""
    from erniecore_conformance.toys.paddle_lm import toy_model

    ids = random_ids(4, 16, _VOCAB)
    first, second = (logits(_calibrated(subject), ids) for _ in range(2))
    _ensure_near(subject, first, logits(toy_model(), ids), "logits of the calibrated model")
    ensure_bits(second, first, "logits of a second calibration")


def check_quantizer_calibrated_fits_its_export(subject: Subject) -> None:
    """Phase ``export`` builds the tensors of a calibrated model, name by name: they are read into it from a directory."""
    found, expected = (
        {name: (value.shape, value.dtype) for name, value in weights(model).items()}
        for model in (_calibrated(subject), _quantized(subject, "export"))
    )
    odd = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
    ensure(not odd, f"differ between calibration and phase export: {', '.join(odd[:5])}")


CHECKS = (
    Check(check_quantizer_has_a_phase),
    Check(check_quantizer_refuses_unknown_phases),
    Check(check_quantizer_keeps_the_interface),
    Check(check_quantizer_quantizes),
    Check(check_quantizer_is_near),
    Check(check_quantizer_survives_zeros_and_outliers),
    Check(check_quantizer_leaves_vectors_alone),
    Check(check_quantizer_is_idempotent),
    Check(check_quantizer_repeats),
    Check(check_quantizer_refuses_weights_that_are_not_finite),
    Check(check_quantizer_refuses_patterns_that_match_nothing),
    Check(check_quantizer_gradient_passes_straight_through, needs=QuantizerCapability.TRAIN),
    Check(check_quantizer_trains, needs=QuantizerCapability.TRAIN),
    Check(check_quantizer_exports_what_was_trained, needs=QuantizerCapability.EXPORT),
    Check(check_quantizer_calibrated_is_near, needs=QuantizerCapability.CALIBRATE),
    Check(check_quantizer_calibration_needs_data, needs=QuantizerCapability.CALIBRATE),
    Check(check_quantizer_decodes_what_it_evaluates, needs=QuantizerCapability.CALIBRATE),
    Check(check_quantizer_calibrated_fits_its_export, needs=QuantizerCapability.CALIBRATE),
)
