"""Word by word: the very ids that the model gives for the whole text, or not at all."""

import io

import pytest
import sentencepiece
from erniecore_text import word_encoding
from erniecore_text.word_encoding import WordEncoder, splits_at_spaces, word_encoder
from hypothesis import given
from hypothesis import strategies as st

TEXTS = [
    *(
        "the quick brown  fox jumps over\tthe lazy dog, again and again.\n\n1. one\n2. two   three " * 9
        for _ in range(3)
    ),
    *(f"{a} {b}. " for a in ("the", "fox", "dog", "  if x:", "你好") for b in ("one", "two", "three", "世界")),
]
ALPHABET = st.text(alphabet="abcdefghijklmnopqrstuvwxyzTHE .,\n\t\r你好é🙂\u3000\u00a0", max_size=80)
ANY = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\u2581\0"), max_size=60)


def model(**options):
    out = io.BytesIO()
    given_ = {
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "allow_whitespace_only_pieces": True,
        "minloglevel": 2,
        "vocab_size": 330,
        "hard_vocab_limit": False,
        **options,
    }
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXTS), model_writer=out, **given_)
    return out.getvalue()


@pytest.fixture(scope="module", params=[False, True], ids=["bare", "prefix"])
def exact(request):
    """(processor, its words) of a model with and without a space in front of every text."""
    data = model(add_dummy_prefix=request.param)
    processor = sentencepiece.SentencePieceProcessor(model_proto=data)
    found = word_encoder(processor, data)
    assert found is not None
    return processor, found


@given(st.one_of(ALPHABET, ANY))
def test_words_give_the_ids_of_the_whole_text(exact, text):
    processor, found = exact
    assert found.encode(text) == processor.encode(text)


@pytest.mark.parametrize("text", ["", " ", "   ", "a", " a", "a ", "  a  b  ", "\n a\n", "fox fox fox", "你好" * 40])
def test_edges(exact, text):
    processor, found = exact
    assert found.encode(text) == processor.encode(text)


def test_words_that_are_remembered_are_bounded(exact, monkeypatch):
    processor, _ = exact
    monkeypatch.setattr(word_encoding, "_MAX_WORDS", 3)
    found = WordEncoder(processor, prefix=word_encoder(processor, processor.serialized_model_proto())._prefix)
    text = " ".join(f"fox{i}" for i in range(20))
    assert found.encode(text) == processor.encode(text)
    assert len(found._known) <= 3


@pytest.mark.parametrize(
    "options",
    [
        {"model_type": "unigram"},
        {"normalization_rule_name": "nmt_nfkc"},
        {"remove_extra_whitespaces": True},
        {"treat_whitespace_as_suffix": True},
        {"user_defined_symbols": ["the fox"]},
        {"split_by_whitespace": False, "vocab_size": 420},
    ],
    ids=str,
)
def test_models_that_could_join_across_spaces_are_not_cut(options):
    data = model(**options)
    assert word_encoder(sentencepiece.SentencePieceProcessor(model_proto=data), data) is None


def test_user_defined_symbols_within_a_word_are_fine():
    data = model(user_defined_symbols=["<tag>", "ox"])
    processor = sentencepiece.SentencePieceProcessor(model_proto=data)
    assert splits_at_spaces(processor)
    for text in ("the fox <tag>fox", "<tag> <tag>", "o x ox"):
        assert word_encoder(processor, data).encode(text) == processor.encode(text)


def test_tokenizer_encodes_by_words_and_alike(tokenizer):
    assert tokenizer._words is not None
    for text in ("the quick fox\u2581jumps </s> <|end_of_sentence|> 12", "天气很好 the dog", "a\u2581"):
        by_words = tokenizer.encode(text)
        plain = type(tokenizer)(tokenizer.model, tokenizer.files, tokenizer.chat_template)
        plain.__dict__["_words"] = None
        assert by_words == plain.encode(text)
