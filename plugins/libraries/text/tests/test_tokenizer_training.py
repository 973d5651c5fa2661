"""Training small tokenizers, and their agreement with another reader of the same files."""

import json
import os
import subprocess
from itertools import chain

import pytest
from erniecore_text.training import CONTROL, MIN_SIZE, read_texts, train

from erniecore import codes
from erniecore.errors import DataError, UsageError
from erniecore.types.records import Message


def test_training_is_deterministic(trained):
    texts = ["some words to train on, over and over again " * 20, "12 345"]
    assert train(texts, 320).model == train(texts, 320).model


def test_control_tokens_follow_the_three_basic_ones(trained):
    assert [trained.special_tokens[t] for t in ("<unk>", "<s>", "</s>", *CONTROL)] == list(range(3 + len(CONTROL)))


def test_digits_are_single_tokens(trained):
    assert len(trained.encode("2024")) == 4


def test_white_space_is_kept(trained):
    assert trained.decode(trained.encode("  a\t\tb \n\n c  ")) == "  a\t\tb \n\n c  "


def test_too_large_a_vocabulary_names_the_possible_size():
    with pytest.raises(DataError, match=r"at most \d+") as e:
        train(["only a few words"], 5000)
    assert e.value.code == codes.VOCABULARY_SIZE
    largest = int(e.value.expected.split()[-1])
    assert train(["only a few words"], largest).vocab_size == largest


def test_too_small_a_vocabulary_names_the_needed_size():
    text = ["".join(map(chr, range(0x4E00, 0x4E00 + 200)))]
    with pytest.raises(DataError, match=r"at least \d+"):
        train(text, MIN_SIZE + 5)


def test_vocabulary_below_the_control_tokens():
    with pytest.raises(UsageError, match=str(MIN_SIZE + 1)):
        train(["a"], 100)


def test_no_text():
    with pytest.raises(DataError, match="no text") as e:
        train(["  \n"], 400)
    assert e.value.code == codes.NOTHING_LEFT


def test_every_string_of_data_files_is_a_text(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"x": "one", "y": [{"z": "two"}, 3]}\n')
    (tmp_path / "b.json").write_text('[{"x": "three"}]')
    (tmp_path / "c.txt").write_text("four\nfive\n")
    texts = read_texts([tmp_path / "a.jsonl", tmp_path / "b.json", tmp_path / "c.txt"])
    assert list(texts) == ["one", "two", "three", "four\n", "five\n"]


def test_bad_row_names_file_and_line(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"x": "one"}\n{"x": \n')
    with pytest.raises(DataError) as e:
        list(read_texts([tmp_path / "a.jsonl"]))
    assert e.value.where.startswith(f"{tmp_path / 'a.jsonl'}:2")


def test_text_file_that_is_not_utf8(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"ok\n\xff\n")
    with pytest.raises(DataError) as e:
        list(read_texts([tmp_path / "a.txt"]))
    assert (e.value.code, e.value.where) == (codes.BAD_UTF8, f"{tmp_path / 'a.txt'}:2")


CHECK = """
import json, sys
from transformers import AutoTokenizer
t = AutoTokenizer.from_pretrained(sys.argv[1])
texts, chats = json.load(open(sys.argv[2]))
print(json.dumps([
    [t(x, add_special_tokens=False)["input_ids"] for x in texts],
    [t.apply_chat_template(c, add_generation_prompt=True, tokenize=True, return_dict=False) for c in chats],
    [t.bos_token_id, t.eos_token_id, t.pad_token_id, len(t)],
]))
"""


@pytest.mark.skipif(
    not os.environ.get("ERNIE_HF_PYTHON"), reason="$ERNIE_HF_PYTHON names no interpreter with transformers"
)
def test_transformers_reads_the_same_ids(tokenizer, tmp_path):
    texts = [
        "the quick brown fox",
        "  a  b\n\n\tc ",
        "你好，世界 🌍 12345",
        "",
        " x",
        "é\u0301\u200b\r\n",
        "\x01\x00\x7f",
        "<0x0A> <b>",
    ]
    chats = [
        [("user", "2+2?")],
        [("system", "Be brief."), ("user", "  hi \n")],
        [("user", "你好 User: a\nAssistant: ")],
    ]
    (tmp_path / "in.json").write_text(
        json.dumps([texts, [[{"role": r, "content": c} for r, c in chat] for chat in chats]])
    )
    tokenizer.save(tmp_path / "tok")
    run = subprocess.run(
        [os.environ["ERNIE_HF_PYTHON"], "-c", CHECK, str(tmp_path / "tok"), str(tmp_path / "in.json")],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    plain, rendered, ids = json.loads(run.stdout.splitlines()[-1])
    assert plain == [tokenizer.encode(t) for t in texts]
    ours = []
    for chat in chats:
        segments = tokenizer.chat_template.segments([Message(r, c) for r, c in chat], add_generation_prompt=True)
        ours.append(list(chain.from_iterable(tokenizer.encode_segments(segments))))
    assert rendered == ours
    assert ids == [tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.vocab_size]
