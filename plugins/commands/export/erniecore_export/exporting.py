"""Exporting a model through an exporter plugin, and proof that what was written is the same model.

The exporter writes; this module opens the source, makes the target appear whole or not at all, and compares. ``export`` is
``erniecore.export``.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from erniecore_text.proof import Policy

from erniecore.api import CheckpointError, Plugin, Section, UsageError, shorten
from erniecore.api.adapter import AdaptedModel
from erniecore.api.building import atomic_directory, check_target
from erniecore.api.command import plugin_settings
from erniecore.api.data import Conversation, Message
from erniecore.api.export import ExporterCapability, ModelBundle, Tokenizer
from erniecore.api.files import read_object
from erniecore.api.installation import assemble, load
from erniecore_export.prompts import prove_prompts

if TYPE_CHECKING:
    from erniecore.api.model_files import Array


class Exported(NamedTuple):
    """Where the export is, and what the user should know."""

    path: Path
    notes: list[str]


def export_directory(
    source: Path,
    out: Path,
    to: str = "hf",
    options: Mapping[str, Any] | None = None,
    prompt_differences: Policy = "error",
) -> Exported:
    """Export the model of a model directory, run or checkpoint; opens the ``cpu`` device.

    Args:
        source: see ``erniecore.api.run.locate``. out: new, empty, or an earlier export of ours.
        to: name of an exporter plugin. options: values for its ``Config``; weights keep the dtype in which
            ``source`` stores them unless ``dtype`` is given.
        prompt_differences: see ``erniecore_export.prompts``.

    Raises:
        PluginNotFound: no exporter of that name. ConfigError: an option that it does not have or take.
        UsageError: ``source`` holds no model.
        CheckpointError: the source is damaged, the target is not free, or the export differs from the model.
    """
    plugin = load("exporter", to)
    section = dict(options or {})
    _options(plugin, section)
    check_target(out)
    from erniecore.api.run import locate, open_device, open_located

    located = locate(source)
    if located.adapter is not None:
        merge = shlex.join(["ernie", "merge", str(located.adapter), "--base", str(located.path), "--out", str(out)])
        raise UsageError("this run trained an adapter beside the weights", where=str(source), next=merge)
    notes = open_device()  # before anything imports paddle: its threads are set then
    from erniecore_export.stored import open_stored

    streamed = ExporterCapability.STREAMED in plugin.capabilities
    opened = open_stored(located) if streamed else open_located(located, plain=True)
    if "dtype" in plugin.Config.model_fields and not section.get("dtype"):
        section["dtype"] = opened.dtype
    told: list[str] = []
    prove = partial(prove_prompts, run=located.path, policy=prompt_differences, told=told)
    path = export_bundle(opened.bundle, out, to, section, prove)
    return Exported(path, [*notes, *opened.notes, *_written_notes(path), *told])


def _written_notes(directory: Path) -> list[str]:
    """What the exporter noted in the manifest, under ``notes`` of the provenance."""
    path = directory / "erniecore_manifest.json"
    facts = read_object(path, CheckpointError).get("provenance") if path.is_file() else None
    notes = facts.get("notes") if isinstance(facts, dict) else None
    return [str(note) for note in notes] if isinstance(notes, list) else []


def export_bundle(
    bundle: ModelBundle,
    out: Path,
    to: str = "hf",
    options: Mapping[str, Any] | None = None,
    prove: Callable[[Tokenizer | None, Path], None] | None = None,
) -> Path:
    """Export a model that is in memory; see :func:`export_directory`. Raises ``UsageError`` for one with an adapter.

    Args:
        prove: gets the model's tokenizer and the directory before it has its name; nothing is kept when it raises.
    """
    if isinstance(bundle.model, AdaptedModel):
        raise UsageError("this model has an adapter beside its weights", fix="merge it first (`ernie merge`)")
    from erniecore.api.model_files import is_packed

    plugin = load("exporter", to)
    if is_packed(bundle.model) and ExporterCapability.PACKED not in plugin.capabilities:
        raise UsageError(
            "the weights of this model are quantized", fix="export the original model, or these --to fastdeploy"
        )
    host = assemble({"exporter": plugin})
    config = _options(plugin, options or {})
    with atomic_directory(out) as directory:
        host.call(plugin, "ernie_export", config=config, bundle=bundle, target=directory)
        (prove or prove_prompts)(bundle.tokenizer, directory)
    return out


def _options(plugin: Plugin, options: Mapping[str, Any]) -> Section:
    """``options`` as the exporter's section. Raises ``ConfigError`` for what it does not have or take."""
    return plugin_settings(plugin.Config, options, plugin.name)


def export(source: ModelBundle | str | Path, out: str | Path, to: str = "hf") -> Path:
    """Write a model for others to load; what was written is loaded again and compared.

    Args:
        source: what ``erniecore.open_model`` returned, or a model, run or checkpoint directory.
        out: a new or empty directory, or an earlier export. to: an exporter plugin.

    Raises:
        CheckpointError: the target is not free, or the export differs from the model.
    """
    if isinstance(source, str | Path):
        return export_directory(Path(source), Path(out), to).path
    if not isinstance(source, ModelBundle):
        raise UsageError(
            "a model alone has no tokenizer and no names of its weights",
            fix="export its directory, or what erniecore.open_model returns",
        )
    return export_bundle(source, Path(out), to)


# ------------------------------------------------------------------------------------------------- the proof

_TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "春眠不觉晓，处处闻啼鸟。 12345 + 678 = ?",
    "def f(x):\n\treturn x ** 2  # é ß 🙂\r\n\n",
    "<|begin_of_sentence|>User: </s> <unk> <mask:1> leading and trailing  ",
)
#: conversations whose ids must be the same before and after the export
PROBES: tuple[Conversation, ...] = (
    *(Conversation((Message("user", text), Message("assistant", text[::-1]))) for text in _TEXTS),
    Conversation((Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", "Hello."))),
    Conversation(
        (
            Message("user", "one"),
            Message("assistant", "two"),
            Message("user", ""),
            Message("assistant", " three \n"),
        )
    ),
)


def verify_export(bundle: ModelBundle, directory: Path, dtype: str = "") -> None:
    """Load ``directory`` again and compare it with ``bundle``: every weight and all logits of the probes bit for bit,
    and the ids of the probe conversations.

    When ``dtype`` rounds the weights, they are compared with the rounded ones and the logits are not compared.

    Raises:
        CheckpointError: something differs; the message names the first difference.
    """
    from erniecore.api.model_files import memory_dtype
    from erniecore.api.run import load_bundle

    again = load_bundle(directory, dtype=memory_dtype(bundle), tokenizer=bundle.tokenizer is not None).bundle
    rounded = _compare_weights(bundle, again, dtype)
    if not rounded:
        _compare_logits(bundle, again)
    if bundle.tokenizer is not None:
        if again.tokenizer is None:
            raise _differs("the exported tokenizer cannot be read", str(directory))
        compare_tokenizers(bundle.tokenizer, again.tokenizer)


def _differs(message: str, where: str = "") -> CheckpointError:
    return CheckpointError(
        f"the export is not the same model: {message}; nothing was kept", where=where, code="ERN-K030"
    )


def _compare_weights(bundle: ModelBundle, again: ModelBundle, dtype: str) -> bool:
    """Whether any weight was rounded."""
    from erniecore.api.model_files import convert, dtype_name, same_bits, state_of, to_numpy

    kept = {entry.name for entry in bundle.adapter.maps("pt") if entry.dtype}
    reloaded, rounded = state_of(again.model), False
    for name, tensor in state_of(bundle.model).items():
        own = dtype_name(tensor)
        before = to_numpy(tensor)
        stored = own if name in kept or not dtype else dtype
        expected = convert(convert(before, own, stored, name), stored, own, name)
        if not same_bits(expected, to_numpy(reloaded[name])):
            raise _differs("a weight differs", name)
        rounded = rounded or not same_bits(expected, before)
    return rounded


def _compare_logits(bundle: ModelBundle, again: ModelBundle) -> None:
    import numpy as np

    from erniecore.api.model_files import same_bits

    for prompt in probe_prompts(bundle):
        before, after = probe_logits(bundle.model, prompt), probe_logits(again.model, prompt)
        if not same_bits(before, after):
            largest = float(np.abs(before - after).max())
            raise _differs(f"logits differ by up to {largest:.3g}", f"prompt {shorten(prompt.tolist())}")


def probe_prompts(bundle: ModelBundle) -> list[Array]:
    """int64 [1, S] prompts: encoded texts where there is a tokenizer, and random ids of the whole vocabulary."""
    import numpy as np

    random = np.random.default_rng(45)
    found = [random.integers(0, int(bundle.architecture["vocab_size"]), (1, size)) for size in (1, 7, 32)]
    if bundle.tokenizer is not None:
        encoded = [bundle.tokenizer.encode(text)[:64] for text in _TEXTS]
        found += [np.array([ids]) for ids in encoded if ids]
    return [prompt.astype(np.int64) for prompt in found]


def probe_logits(model: Any, prompt: Array) -> Array:
    """float32 [1, S, V]."""
    import paddle

    from erniecore.api.model_files import to_numpy

    training = model.training
    model.eval()
    try:
        with paddle.no_grad():
            return to_numpy(model.logits(model.features(paddle.to_tensor(prompt)).hidden))
    finally:
        if training:
            model.train()


def compare_tokenizers(before: Tokenizer, after: Tokenizer) -> None:
    """Raise ``CheckpointError`` unless both give the same ids for the probe texts and conversations."""
    for text in _TEXTS:
        if before.encode(text) != after.encode(text):
            raise _differs("the tokenizer encodes a text differently", shorten(text))
    if (before.bos_id, before.eos_id, before.pad_id) != (after.bos_id, after.eos_id, after.pad_id):
        raise _differs("the tokenizer has other special tokens")
    if before.chat_template is None:
        return
    for probe in PROBES:
        if _ids(before, probe) != _ids(after, probe):
            raise _differs("a conversation is encoded differently", shorten(probe.messages[0].content))


def _ids(tokenizer: Tokenizer, conversation: Conversation) -> list[list[int]]:
    if tokenizer.chat_template is None:
        return []
    return tokenizer.encode_segments(tokenizer.chat_template.segments(conversation.messages))
