"""The same tokenizer as ``tokenizer.json``: a SentencePiece BPE model written as vocabulary and merges.

transformers and servers read this file without the sentencepiece and protobuf packages. It is written only for models
that it can express: BPE, nothing normalized. Reading stays with ``tokenizer.model``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

SPACE_SYMBOL = "\u2581"
#: A text that normalization, whitespace clean-up or a dummy prefix would change.
_PROBE = " a  b\t\uff21\u2460e\u0301 "


def express(model: Any, added: Mapping[int, Mapping[str, Any]]) -> str | None:
    """The file's text, or ``None`` for a model that it cannot express.

    Args:
        model: a ``SentencePieceProcessor``.
        added: id -> entry of ``added_tokens_decoder``.
    """
    vocabulary = {model.id_to_piece(i): i for i in range(model.get_piece_size())}
    normal = [i for i in vocabulary.values() if _is_normal(model, i)]
    scores = [model.get_score(i) for i in normal]
    ranked = all(a > b for a, b in pairwise(scores))
    if not ranked or model.normalize(_PROBE) != _PROBE.replace(" ", SPACE_SYMBOL):
        return None
    merges = list(_merges([model.id_to_piece(i) for i in normal]))
    bytes_known = any(model.is_byte(i) for i in vocabulary.values())
    metaspace = {"type": "Metaspace", "replacement": SPACE_SYMBOL, "prepend_scheme": "never", "split": False}
    steps = [
        {"type": "Replace", "pattern": {"String": SPACE_SYMBOL}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    value = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, **entry} for i, entry in sorted(added.items())],
        "normalizer": None,
        "pre_tokenizer": metaspace,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": model.id_to_piece(model.unk_id()),
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": bytes_known,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": merges,
        },
    }
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def _is_normal(model: Any, token: int) -> bool:
    return not (model.is_control(token) or model.is_unknown(token) or model.is_byte(token) or model.is_unused(token))


def _merges(pieces: Iterable[str]) -> Iterable[list[str]]:
    """Pairs in the order in which they merge: that of the piece which they form (its rank is its score)."""
    ordered = list(pieces)
    known = set(ordered)
    for piece in ordered:
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in known and right in known:
                yield [left, right]
