"""A whole ERNIEKit file: every key is mapped, dropped with a reason, unknown, or a problem. Reads no file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from erniecore.migration.erniekit import convert_data, convert_model, convert_pairs, convert_training, values
from erniecore.migration.erniekit.draft import Draft, Notice, Purpose, Setting, Surroundings
from erniecore.migration.erniekit.key import Left
from erniecore.migration.erniekit.keys_other import EXPORT, FP8, GENERATION, SERVING
from erniecore.migration.erniekit.table import KEYS, suggestion, top

#: in an order in which later steps may look at the settings of earlier ones
STEPS: tuple[Callable[[Draft], None], ...] = (
    convert_model.model,
    convert_model.method,
    convert_pairs.pairs,
    convert_model.adapter,
    convert_model.precision,
    convert_model.routers,
    convert_data.data,
    convert_data.packing,
    convert_training.run,
    convert_training.batches,
    convert_training.length,
    convert_training.optimizer,
    convert_training.schedule,
    convert_training.recompute,
    convert_training.parallel,
    convert_training.device,
)


@dataclass(frozen=True)
class Outcome:
    """What became of a file.

    Attributes:
        settings: ours by key, in the order of their sections. mapped: old key -> new ones. dropped: old key -> reason.
        unknown: keys that ERNIEKit does not have. suggestions: for some of them the nearest one that it has.
        notices: what the user should know. problems: old key -> what is wrong with its value.
        purpose: what the file is for.
    """

    settings: Mapping[str, Setting]
    mapped: Mapping[str, str]
    dropped: Mapping[str, str]
    unknown: tuple[str, ...]
    notices: tuple[Notice, ...]
    problems: Mapping[str, str]
    purpose: Purpose
    suggestions: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """``mapped``, ``dropped``, ``unknown``, and beside them ``notices``, ``suggestions``, ``settings``."""
        return {
            "mapped": dict(self.mapped),
            "dropped": dict(self.dropped),
            "unknown": list(self.unknown),
            "suggestions": dict(self.suggestions),
            "notices": [{"kind": n.kind, "keys": list(n.keys), "text": n.text} for n in self.notices],
            "settings": {key: setting.value for key, setting in self.settings.items()},
        }


def purpose_of(given: Mapping[str, Any]) -> Purpose:
    """Which command of ERNIEKit a file is for. One that trains names data, or says ``do_train``."""
    draft = Draft(given)
    if draft.get("do_train") or any(draft.has(old) for old in ("train_dataset_path", "text_dataset_path", "input_dir")):
        return "train" if not draft.has("do_train") or draft.get("do_train") else "eval"
    if draft.has("eval_dataset_path") or draft.get("do_eval"):
        return "eval"
    if any(key.old in given for key in EXPORT):
        return "export"
    if any(key.old in given for key in (*SERVING, *GENERATION)):
        return "chat"
    return "eval" if draft.has("do_train") else "train"


def convert(given: Mapping[str, Any], around: Surroundings | None = None) -> Outcome:
    """The outcome for a file's content (flat, dotted keys allowed); a pure function."""
    named, unknown = split(given)
    flat, problems = readable(named)
    draft = Draft(flat, around or Surroundings(), purpose_of(flat), problems=problems)
    for step in STEPS:
        step(draft)
    for old in flat:
        if not KEYS[old].together:
            _alone(draft, old)
    draft.drop(
        "`ernie run` does not read it",
        *(
            o
            for o in flat
            if o not in draft.mapped and o not in draft.dropped and draft.has(o) and o not in draft.problems
        ),
    )
    draft.finish(flat)
    order = {name: i for i, name in enumerate(SECTIONS)}
    settings = dict(sorted(draft.settings.items(), key=lambda item: order[item[0].partition(".")[0]]))
    close = {name: suggestion(name) for name in unknown if suggestion(name)}
    mapped = {old: draft.mapped[old] for old in flat if old in draft.mapped}
    dropped = {old: draft.dropped[old] for old in flat if old in draft.dropped}
    return Outcome(
        settings, mapped, dropped, tuple(unknown), tuple(draft.notices), draft.problems, draft.purpose, close
    )


#: sections in the order in which they are written
SECTIONS = (
    "model", "method", "adapter", "quantizer", "parallel", "device",
    "run", "data", "train", "eval", "checkpoint", "log", "callbacks", "formats",
)  # fmt: skip


def split(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Known keys with their values, and the unknown ones. ``a.b`` belongs to ``a`` where that is a group."""
    flat: dict[str, Any] = {}
    unknown = []
    for key, value in given.items():
        name = key if key in KEYS else top(key)
        if name not in KEYS or (name != key and KEYS[name].type != "any"):
            unknown.append(key)
        else:
            flat.setdefault(name, value)
    return flat, unknown


def readable(flat: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The values that are of the type of their key, and what is wrong with the others: they count as absent."""
    good: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for old, value in flat.items():
        try:
            if not values.is_empty(value):
                values.TYPES[KEYS[old].type](value)
            good[old] = value
        except ValueError as error:
            problems[old] = str(error)
    return good, problems


def _alone(draft: Draft, old: str) -> None:
    """A key whose meaning does not depend on others."""
    key = KEYS[old]
    if old in draft.mapped or old in draft.dropped:
        return
    value = draft.get(old)
    if old in draft.problems or (not draft.has(old) and key.new):
        return
    if key in FP8 and convert_model.compute_type(draft) != "fp8":
        draft.drop("only with `compute_type: fp8`", old)
        return
    result = key.convert(value) if key.convert else value
    if isinstance(result, Left):
        draft.leave(result, old)
    elif key.new:
        draft.set(key.new, result, old)
    else:
        draft.drop(key.note, old)
