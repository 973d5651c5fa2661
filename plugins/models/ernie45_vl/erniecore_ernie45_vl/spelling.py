"""The nested config.json of newer libraries (``text_config`` beside ``vision_config``) in the flat form of the published
checkpoints, which is the one that is read, kept and written. No paddle, no numpy; values are checked by the reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from erniecore_ernie45.architecture import MOST_LAYERS, Keys

from erniecore.api import CheckpointError, Json

FLAT_TYPE, NESTED_TYPE = "ernie4_5_moe_vl", "ernie4_5_vl_moe"
#: how each layer's MLP is called where layers are listed one by one
KINDS = ("dense", "sparse")


def flat(source: Json, where: str) -> dict[str, Any]:
    """``source`` without ``text_config``; a flat one as it is. Unknown keys of both levels are kept.

    Raises ``CheckpointError`` for a ``text_config`` that is no mapping or that contradicts the level above, and for placed
    experts that no (start, end, interval) describes.
    """
    merged, keys = one_level(source, where)
    if keys is None:
        return merged
    return {**merged, **_placement(keys), **_both_kinds(keys), **_axes(keys), "model_type": FLAT_TYPE}


def one_level(source: Json, where: str) -> tuple[dict[str, Any], Keys | None]:
    """The keys of ``text_config`` beside those of the level above, and access to ``text_config``; a flat ``source`` as it
    is, and None.

    Raises ``CheckpointError`` for a ``text_config`` that is no mapping or that contradicts the level above."""
    inner = source.get("text_config")
    if inner is None:
        return dict(source), None
    outer = Keys(source, where)
    if not isinstance(inner, Mapping):
        raise outer.fault("text_config", "not a mapping", expected="the keys of the text part")
    others = {key: value for key, value in source.items() if key != "text_config"}
    keys = Keys(inner, f"{where}: text_config")
    text = {key: value for key, value in inner.items() if key != "model_type"}
    for key in text.keys() & others.keys():
        if text[key] != others[key]:
            raise keys.fault(key, f"contradicts the same key above: {others[key]!r}", fix="remove one of the two")
    return {**text, **others}, keys


def _both_kinds(keys: Keys) -> dict[str, Any]:
    """One number of experts stands for both kinds of tokens."""
    count = keys.source.get("moe_num_experts")
    return {"moe_num_experts": [count, count]} if isinstance(count, int) else {}


def _axes(keys: Keys) -> dict[str, Any]:
    """``mrope_section``: pairs of height, of width, of time."""
    rope = keys.source.get("rope_parameters")
    if not isinstance(rope, Mapping) or rope.get("mrope_section") is None:
        return {}
    section = rope["mrope_section"]
    if not isinstance(section, Sequence) or len(section) != 3 or section[0] != section[1]:
        expected = "three numbers: pairs of height, as many of width, pairs of time"
        raise Keys(rope, f"{keys.where}: rope_parameters").fault("mrope_section", "not supported", expected=expected)
    return {"rope_3d": True, "freq_allocation": section[2]}


def _placement(keys: Keys) -> dict[str, Any]:
    kinds = keys.source.get("mlp_layer_types")
    if kinds is None:
        return {}
    if not isinstance(kinds, Sequence) or not set(kinds) <= set(KINDS) or "sparse" not in kinds:
        raise keys.fault("mlp_layer_types", "not a list of layers with experts", expected=" or ".join(KINDS))
    if len(kinds) != keys.integer("num_hidden_layers", maximum=MOST_LAYERS):
        raise keys.fault("mlp_layer_types", f"{len(kinds)} layers, but num_hidden_layers says otherwise")
    start, end, interval = find_placement([kind == "sparse" for kind in kinds], keys)
    return {
        "moe_layer_start_index": [start, start],
        "moe_layer_end_index": [end, end],
        "moe_layer_interval": interval,
    }


def find_placement(routed: Sequence[bool], keys: Keys) -> tuple[int, int, int]:
    """(start, end, interval) such that layer i has experts where (i + 1) % interval == 0 and start <= i <= end."""
    places = [index for index, is_routed in enumerate(routed) if is_routed]
    start, end = places[0], places[-1]
    for interval in range(1, len(routed) + 1):
        if places == [index for index in range(start, end + 1) if (index + 1) % interval == 0]:
            return start, end, interval
    raise _irregular(keys)


def _irregular(keys: Keys) -> CheckpointError:
    expected = "every n-th layer of a range"
    return keys.fault("mlp_layer_types", "experts in places that this model cannot have", expected=expected)
