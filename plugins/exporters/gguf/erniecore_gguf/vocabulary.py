"""The tokenizer and the chat template as llama.cpp reads them: pieces with scores and types, special tokens, flags."""

from __future__ import annotations

from typing import NamedTuple

import gguf
from erniecore_text import SentencePieceTokenizer
from erniecore_text.tokenizer_files import open_model
from erniecore_text.word_encoding import model_specs

from erniecore.api.model import Tokenizer
from erniecore_gguf.architecture import refused

#: scores of tokens that no text is joined into, and of ids without a token: below those of all pieces
_SPECIAL_SCORE, _UNUSED_SCORE = -1000.0, -10000.0


class Vocabulary(NamedTuple):
    """``tokens``, ``scores`` and ``types`` of all ids of a model."""

    tokens: list[bytes]
    scores: list[float]
    types: list[int]


def vocabulary_of(tokenizer: SentencePieceTokenizer, size: int) -> Vocabulary:
    """Entries for ``size`` ids; those that the tokenizer does not have are unused."""
    model = open_model(tokenizer.model)
    tokens = [b"[PAD%d]" % i for i in range(size)]
    scores, types = [_UNUSED_SCORE] * size, [int(gguf.TokenType.UNUSED)] * size
    for i in range(model.get_piece_size()):
        tokens[i], scores[i], types[i] = model.id_to_piece(i).encode(), model.get_score(i), _type_of(model, i)
    for text, i in tokenizer.special_tokens.items():
        special = gguf.TokenType.UNKNOWN if i == model.unk_id() else gguf.TokenType.CONTROL
        tokens[i], scores[i], types[i] = text.encode(), _SPECIAL_SCORE, int(special)
    for text, i in tokenizer.plain_tokens.items():
        tokens[i], scores[i], types[i] = text.encode(), _SPECIAL_SCORE, int(gguf.TokenType.USER_DEFINED)
    return Vocabulary(tokens, scores, types)


def _type_of(model: object, token: int) -> int:
    kinds = {"is_unused": gguf.TokenType.UNUSED, "is_byte": gguf.TokenType.BYTE}
    kind = next((kind for test, kind in kinds.items() if getattr(model, test)(token)), gguf.TokenType.NORMAL)
    return int(kind)


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer | None, size: int) -> list[str]:
    """Write the tokenizer and its chat template; returns notes.

    Args:
        size: ids of the model; with no tokenizer llama.cpp takes ids only.

    Raises:
        UsageError: a tokenizer that llama.cpp would read differently.
    """
    if tokenizer is None:
        writer.add_tokenizer_model("no_vocab")
        return ["the file has no tokenizer: the model has none"]
    if not isinstance(tokenizer, SentencePieceTokenizer):
        raise refused("only SentencePiece tokenizers are written", where="tokenizer", found=type(tokenizer).__name__)
    specs, notes = model_specs(tokenizer.model), []
    vocabulary = vocabulary_of(tokenizer, size)
    if not specs.bpe:
        raise refused(
            "llama.cpp would cut texts differently", where="tokenizer.model", found="no BPE model", expected="BPE"
        )
    if vocabulary.types.count(int(gguf.TokenType.BYTE)) < 256:
        raise refused("llama.cpp needs a token for each byte", where="tokenizer.model", expected="byte fallback")
    if not specs.verbatim:
        notes.append("this tokenizer rewrites texts before it cuts them, llama.cpp does not: ids can differ")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_scores(vocabulary.scores)
    writer.add_token_types(vocabulary.types)
    writer.add_add_space_prefix(specs.prefix)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    _add_special(writer, tokenizer)
    return notes


def _add_special(writer: gguf.GGUFWriter, tokenizer: SentencePieceTokenizer) -> None:
    writer.add_bos_token_id(tokenizer.bos_id)
    writer.add_eos_token_id(tokenizer.eos_id)
    writer.add_unk_token_id(open_model(tokenizer.model).unk_id())
    writer.add_pad_token_id(tokenizer.pad_id)
    for role, add in (("sep_token", writer.add_sep_token_id), ("mask_token", writer.add_mask_token_id)):
        token = tokenizer.special_tokens.get(tokenizer.files.named.get(role, ""))
        if token is not None:
            add(token)
    template = tokenizer.chat_template
    if template is not None:
        writer.add_chat_template(template.source)
        end = tokenizer.special_tokens.get(template.turn_end)
        if end is not None:
            writer.add_eot_token_id(end)
