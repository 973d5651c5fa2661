"""Checks for a model's weights as data: public names, shapes, the parallel layout, and directories on disk."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.api import EnvironmentFault
from erniecore_conformance.architectures import architecture_of
from erniecore_conformance.check import Check
from erniecore_conformance.checks.model import build
from erniecore_conformance.expect import NotApplicable, ensure, ensure_bits, ensure_equal, ensure_raises
from erniecore_conformance.subjects import Subject

if TYPE_CHECKING:
    from erniecore.api.model import TensorMap

#: style -> ranks of the parameters that it fits
_STYLES = {"column": (1, 2), "row": (2,), "vocab": (1, 2), "expert": (2, 3), "replicate": (0, 1, 2, 3, 4)}


def _maps(subject: Subject) -> tuple[list[TensorMap], Any]:
    _, architecture = architecture_of(subject)
    adapter = subject.call("ernie_state_adapter", architecture=architecture)
    return list(adapter.maps("pt")), adapter


def _array(shape: tuple[int, ...], seed: int) -> Any:
    import numpy as np

    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def check_model_layout_covers_every_parameter(subject: Subject) -> None:
    """Every parameter matches a rule of the layout, whose style is known and fits its rank."""
    model, architecture = build(subject)
    layout = subject.call("ernie_model_layout", architecture=architecture)
    for name, parameter in model.named_parameters():
        style = layout.style(name)
        ensure(style is not None, f"no rule of the layout matches {name}")
        ensure(style in _STYLES, f"{name}: unknown style {style!r}; known: {', '.join(_STYLES)}")
        rank = len(parameter.shape)
        ensure(rank in _STYLES[str(style)], f"{name} of shape {list(parameter.shape)} cannot be split as {style!r}")


def check_model_state_is_complete(subject: Subject) -> None:
    """The ``pt`` maps name every tensor of the state dict exactly once, with its shape."""
    maps, _ = _maps(subject)
    state = {name: tuple(value.shape) for name, value in build(subject)[0].state_dict().items()}
    ensure_equal(sorted(m.name for m in maps), sorted(state), "names in the maps against the state dict")
    for m in maps:
        ensure_equal(tuple(m.shape), state[m.name], f"shape of {m.name}")


def check_model_maps_tell_what_is_trained(subject: Subject) -> None:
    """A map's ``trained`` is whether its tensor is a trainable parameter, and ``active_share`` is in [0, 1]."""
    trainable = {name for name, parameter in build(subject)[0].named_parameters() if not parameter.stop_gradient}
    for m in _maps(subject)[0]:
        ensure_equal(m.trained, m.name in trainable, f"`trained` of {m.name}")
        ensure(0 <= m.active_share <= 1, f"`active_share` of {m.name} is {m.active_share}; expected 0 to 1")


def check_model_public_names_are_unique(subject: Subject) -> None:
    """No public tensor is stored twice, none that is stored is ignored, and files of these names are known as ``pt``."""
    maps, adapter = _maps(subject)
    sources = [source for m in maps for source in m.sources]
    twice = sorted({s for s in sources if sources.count(s) > 1})
    ensure(not twice, f"public tensors stored twice: {', '.join(twice[:5])}")
    dropped = [s for s in sources if adapter.ignored(s)]
    ensure(not dropped, f"stored but ignored when read: {', '.join(dropped[:5])}")
    ensure_equal(adapter.layout_of(sources), "pt", "layout_of the public names")


def check_model_maps_round_trip(subject: Subject) -> None:
    """For every map ``load(store(x))`` is ``x`` bit for bit, and ``store(x)`` has the shapes it promises; of a
    ``stacked`` one each source gives its own matrix."""
    for seed, m in enumerate(_maps(subject)[0]):
        if m.store is None:
            continue
        ours = _array(tuple(m.shape), seed)
        public = list(m.store(ours))
        shapes = [tuple(a.shape) for a in public]
        ensure_equal(shapes, [tuple(s) for s in m.source_shapes], f"shapes that {m.name} is stored with")
        ensure_bits(m.load(public), ours, f"{m.name} stored and loaded")
        for number, one in enumerate(public if m.stacked else ()):
            ensure_bits(
                m.load([one]), ours[number : number + 1], f"{m.name} (`stacked`), loaded from {m.sources[number]}"
            )


def check_model_every_weight_is_stored(subject: Subject) -> None:
    """Every ``pt`` map can be written."""
    missing = [m.name for m in _maps(subject)[0] if m.store is None]
    ensure(not missing, f"cannot be stored: {', '.join(missing[:5])}")


def check_model_reloads_bit_for_bit(subject: Subject) -> None:
    """Weights stored under public names and loaded into a model of another seed give bit-equal logits."""
    import paddle

    from erniecore_conformance.toys.compute import logits, random_ids, weights

    model, architecture = build(subject, seed=0)
    other, _ = build(subject, seed=1)
    state, maps = weights(model), _maps(subject)[0]
    target = other.state_dict()
    for m in maps:
        if m.store is None or m.name not in state:
            raise NotApplicable(f"{m.name} cannot be stored (see the other checks of the state)")
        target[m.name].set_value(paddle.to_tensor(m.load(list(m.store(state[m.name])))))
    ids = random_ids(2, 8, int(architecture["vocab_size"]))
    ensure_bits(logits(other, ids), logits(model, ids), "logits after loading")


def check_model_reads_architecture_of_directory(subject: Subject) -> None:
    """``config.json`` in ``config.path`` is read as it is, unknown keys included."""
    if "path" not in subject.plugin.Config.model_fields:
        raise NotApplicable("Config has no field `path`")
    _, architecture = architecture_of(subject)
    written = {**architecture, "a_key_of_tomorrow": {"x": [1, 2]}}
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(written), encoding="utf-8")
        found = subject.call("ernie_read_architecture", config=subject.config(path=directory))
    ensure_equal(found.get("a_key_of_tomorrow"), {"x": [1, 2]}, "an unknown key of config.json")
    for key, value in json.loads(json.dumps(dict(architecture))).items():
        ensure_equal(found.get(key), value, f"config.json[{key!r}]")


def check_model_refuses_missing_tokenizer(subject: Subject) -> None:
    """A directory without tokenizer files raises ``EnvironmentFault``."""
    config, _ = architecture_of(subject)
    with tempfile.TemporaryDirectory() as directory:
        ensure_raises(
            EnvironmentFault,
            lambda: subject.call("ernie_build_tokenizer", config=config, directory=Path(directory)),
            "the tokenizer of an empty directory",
        )


CHECKS = (
    Check(check_model_layout_covers_every_parameter),
    Check(check_model_state_is_complete),
    Check(check_model_maps_tell_what_is_trained),
    Check(check_model_public_names_are_unique),
    Check(check_model_maps_round_trip),
    Check(check_model_every_weight_is_stored),
    Check(check_model_reloads_bit_for_bit),
    Check(check_model_reads_architecture_of_directory),
    Check(check_model_refuses_missing_tokenizer),
)
