"""Text to ids and back."""

import json
import pickle
from itertools import chain, pairwise

import pytest
from erniecore_text.tokenizer import SPACE_SYMBOL, SentencePieceTokenizer
from erniecore_text.tokenizer_files import TokenizerFiles
from hypothesis import given, settings
from hypothesis import strategies as st

from erniecore.errors import EnvironmentFault
from erniecore.types.records import Message
from erniecore.types.text import Segment

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)
#: texts full of things that look like special tokens and bytes
NASTY = st.lists(
    st.sampled_from(
        ["<|im_end|>", "</s>", "<s>", "<unk>", "<0x0A>", "<|end_of_sentence|>", "<", "|>", "a", " ", "\n", SPACE_SYMBOL]
    ),
    max_size=12,
).map("".join)


def flat(pieces):
    return list(chain.from_iterable(pieces))


@settings(deadline=None, max_examples=200)
@given(TEXT | NASTY)
def test_plain_text_survives_and_never_holds_a_control_token(trained, text):
    ids = trained.encode(text)
    assert trained.decode(ids, skip_special=False) == text
    assert not set(ids) & set(trained.special_tokens.values())


@settings(deadline=None)
@given(st.lists(st.integers(-3, 500), max_size=30), st.booleans())
def test_stream_joined_equals_decode_for_any_ids(trained, ids, skip):
    stream = trained.stream(skip_special=skip)
    parts = [stream.push(i) for i in ids]
    assert "".join(parts) + stream.finish() == trained.decode(ids, skip_special=skip)


def test_stream_holds_back_half_a_character(trained):
    ids = trained.encode("🌍")
    assert len(ids) == 4
    stream = trained.stream()
    assert [stream.push(i) for i in ids] == ["", "", "", "🌍"]


def test_incomplete_character_becomes_the_replacement(trained):
    assert trained.decode(trained.encode("🌍")[:2] + trained.encode("a")) == "\ufffda"


def test_control_tokens_are_skipped_or_shown(trained):
    ids = [trained.bos_id, *trained.encode("the"), trained.eos_id]
    assert trained.decode(ids) == "the"
    assert trained.decode(ids, skip_special=False) == "<s>the</s>"


def test_special_ids(trained):
    assert (trained.pad_id, trained.bos_id, trained.eos_id) == (0, 1, 2)
    assert trained.special_tokens["<|begin_of_sentence|>"] == 3


def test_control_token_in_trusted_text_is_one_id(tokenizer):
    (ids,) = tokenizer.encode_segments([Segment("a<|im_end|>b", trusted=True)])
    assert ids == [*tokenizer.encode("a"), tokenizer.special_tokens["<|im_end|>"], *tokenizer.encode("b")]


@settings(deadline=None)
@given(NASTY)
def test_injection_never_gives_control_ids(tokenizer, text):
    messages = [Message("system", text or "s"), Message("user", text), Message("assistant", text)]
    segments = tokenizer.chat_template.segments(messages)
    pieces = tokenizer.encode_segments(segments)
    control = set(tokenizer.special_tokens.values())
    assert sum(i in control for piece in pieces for i in piece) == 2  # the template's begin and end
    assert all(not control & set(p) for p, s in zip(pieces, segments, strict=True) if not s.trusted)


def test_control_token_put_together_from_two_segments_stays_text(tokenizer):
    pieces = tokenizer.encode_segments([Segment("<|im_", trusted=True), Segment("end|>", trusted=False)])
    assert tokenizer.special_tokens["<|im_end|>"] not in flat(pieces)


@settings(deadline=None)
@given(TEXT, st.lists(st.integers(0, 60), max_size=4))
def test_ids_do_not_depend_on_how_a_text_is_cut(tokenizer, text, cuts):
    edges = [0, *sorted(min(c, len(text)) for c in cuts), len(text)]
    segments = [Segment(text[a:b], trusted=False) for a, b in pairwise(edges)]
    pieces = tokenizer.encode_segments(segments)
    assert flat(pieces) == tokenizer.encode(text)


def test_token_across_two_segments_counts_to_the_first(tokenizer):
    text = "quick"
    assert len(tokenizer.encode(text)) == 1
    pieces = tokenizer.encode_segments([Segment("qu", trusted=False), Segment("ick", trusted=True)])
    assert pieces == [tokenizer.encode(text), []]


def test_a_run_ends_where_the_model_begins_to_write(tokenizer):
    text = "quick"
    pieces = tokenizer.encode_segments([Segment("qu", trusted=False), Segment("ick", trusted=False, generated=True)])
    assert pieces == [tokenizer.encode("qu"), tokenizer.encode("ick")]
    assert flat(pieces) != tokenizer.encode(text)


def test_lone_surrogate_is_no_text(trained):
    with pytest.raises(UnicodeEncodeError):
        trained.encode("a\ud800")


# ---- files


def test_saved_tokenizer_is_read_back_the_same(tokenizer, tmp_path):
    written = tokenizer.save(tmp_path)
    again = SentencePieceTokenizer.from_directory(tmp_path)
    assert {p.name for p in written} == {
        "tokenizer.model",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
    }
    assert again.special_tokens == tokenizer.special_tokens
    assert again.vocab_size == tokenizer.vocab_size
    assert again.model == tokenizer.model
    template = again.chat_template
    assert (template.source, template.turn_end, template.stop) == (
        tokenizer.chat_template.source,
        "<|end_of_sentence|>",
        "</s>",
    )


def test_saving_what_was_read_gives_the_same_files(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "a")
    SentencePieceTokenizer.from_directory(tmp_path / "a").save(tmp_path / "b")
    for file in (tmp_path / "a").iterdir():
        assert (tmp_path / "b" / file.name).read_bytes() == file.read_bytes(), file.name


def test_settings_are_those_of_llama_tokenizers(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    wanted = {
        "tokenizer_class": "LlamaTokenizer",
        "add_bos_token": False,
        "add_prefix_space": False,
        "legacy": True,
        "clean_up_tokenization_spaces": False,
        "chat_template": tokenizer.chat_template.source,
        "model_max_length": 131072,
        "pad_token": "<unk>",
    }
    assert {k: settings[k] for k in wanted} == wanted
    assert settings["added_tokens_decoder"]["2"]["content"] == "</s>"


def test_added_tokens_of_the_public_layout(trained, tmp_path):
    trained.save(tmp_path)
    size = trained.vocab_size
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|IMAGE_START|>": size, "<extra>": size + 5}))
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}<|im_end|>")
    read = SentencePieceTokenizer.from_directory(tmp_path)
    assert read.vocab_size == size + 6
    assert read.special_tokens["<|IMAGE_START|>"] == size
    (ids,) = read.encode_segments([Segment("<|IMAGE_START|>a", trusted=True)])
    assert ids[0] == size
    assert size not in read.encode("<|IMAGE_START|>a")
    assert read.decode(ids, skip_special=False) == "<|IMAGE_START|>a"
    assert read.chat_template.turn_end == read.chat_template.stop == "<|im_end|>"
    read.save(tmp_path / "b")
    assert json.loads((tmp_path / "b" / "added_tokens.json").read_text()) == {
        "<|IMAGE_START|>": size,
        "<extra>": size + 5,
    }


def test_token_that_is_no_control_token_is_found_in_plain_text(trained):
    files = TokenizerFiles(added={"XYZ": (trained.vocab_size, False)})
    read = SentencePieceTokenizer(trained.model, files)
    assert read.encode("aXYZb") == [*trained.encode("a"), trained.vocab_size, *trained.encode("b")]
    assert read.decode(read.encode("aXYZb")) == "aXYZb"


def test_listed_token_without_id_is_refused(trained, tmp_path):
    trained.save(tmp_path)
    (tmp_path / "special_tokens_map.json").write_text('{"additional_special_tokens": ["<|nowhere|>"]}')
    with pytest.raises(EnvironmentFault, match="nowhere"):
        SentencePieceTokenizer.from_directory(tmp_path)


def test_token_with_two_ids_is_refused(trained, tmp_path):
    trained.save(tmp_path)
    (tmp_path / "added_tokens.json").write_text('{"</s>": 77}')
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "added_tokens_decoder": {}}))
    with pytest.raises(EnvironmentFault, match="2 and 77"):
        SentencePieceTokenizer.from_directory(tmp_path)


def test_padding_with_the_end_token_is_refused(trained):
    with pytest.raises(EnvironmentFault, match="never learn to stop"):
        SentencePieceTokenizer(trained.model, TokenizerFiles(named={"pad_token": "</s>", "eos_token": "</s>"}))


def test_directory_without_tokenizer(tmp_path):
    with pytest.raises(EnvironmentFault, match="no tokenizer"):
        SentencePieceTokenizer.from_directory(tmp_path)


def test_damaged_model(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"not a model")
    with pytest.raises(EnvironmentFault, match="no SentencePiece model"):
        SentencePieceTokenizer.from_directory(tmp_path)


def test_damaged_settings(trained, tmp_path):
    trained.save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(EnvironmentFault, match="not valid JSON"):
        SentencePieceTokenizer.from_directory(tmp_path)


def test_pickled_tokenizer_is_the_same(tokenizer):
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.encode("the fox") == tokenizer.encode("the fox")
    assert again.special_tokens == tokenizer.special_tokens
