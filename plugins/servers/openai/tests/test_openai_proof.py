"""What was trained is what is served, proved: a tampered template is found on each of the three sides, with the first token that
differs; `ernie serve` and `ernie export` end with it, or go on by name."""

import json
import os
import sys
from functools import partial
from pathlib import Path

import pytest
from erniecore_ernie45.templating import builtin_source, choose_template
from erniecore_ernie45_vl.templating import TEMPLATES
from erniecore_export.exporting import export_directory
from erniecore_openai.rows import row_prompt
from erniecore_text import JinjaChatTemplate, SentencePieceTokenizer
from erniecore_text.proof import Proof
from seers import MARKERS, make_seer

from erniecore.api import CheckpointError
from erniecore.api.command import open_tokenizer
from erniecore.cli.app import main
from erniecore.errors import Exit

BASE = Path(__file__).parents[4] / "tests" / "fixtures" / "run_v0.1" / "base"
#: an interpreter with transformers, if there is one
REAL = os.environ.get("ERNIE_HF_PYTHON", "")
SIDES = ["this server", "the sandboxed renderer in place of transformers"]


@pytest.fixture(autouse=True)
def no_transformers(monkeypatch):
    """The stand-in renders; a test that wants an interpreter names one."""
    monkeypatch.delenv("ERNIE_HF_PYTHON", raising=False)


def tokenizer_of(template):
    return SentencePieceTokenizer.from_directory(BASE, template)


def tampered():
    """One token more in every prompt."""
    source = builtin_source("thinking").replace("<|im_start|>assistant", "<|im_start|>assistant:")
    return tokenizer_of(JinjaChatTemplate(source, "<|im_end|>", "<|im_end|>"))


@pytest.fixture
def directory(tmp_path):
    """Tokenizer files with a template that has places for everything."""
    tokenizer_of(choose_template("thinking", BASE, TEMPLATES)).save(tmp_path / "model")
    return tmp_path / "model"


def proof_of(directory, *, server=None, **more):
    tokenizer = tokenizer_of(choose_template("thinking", BASE, TEMPLATES))
    servers = {"this server": partial(row_prompt, server or tokenizer)}
    return Proof(directory, tokenizer, option="key=warn", servers=servers, **more)


def test_all_sides_agree_on_every_kind_of_row(directory):
    proof = proof_of(directory)
    lines = proof.finish("error")
    assert proof.report.sides == ["training", *SIDES]
    assert (proof.report.rows, proof.report.refused, proof.report.prompts) == (10, 0, 15)
    assert "no transformers in this environment" in " ".join(lines)


@pytest.mark.parametrize("side", ["training", "server", "export"])
def test_a_tampered_template_is_found_on_each_side(directory, side):
    more = {"training": {"trained": tampered()}, "server": {"server": tampered()}, "export": {}}[side]
    if side == "export":
        file = directory / "chat_template.jinja"
        file.write_text(file.read_text().replace("<|im_start|>assistant", "<|im_start|>assistant:"))
    with proof_of(directory, **more) as proof, pytest.raises(CheckpointError) as caught:
        proof.finish("error")
    error = caught.value
    blamed = {"training": SIDES, "server": SIDES[:1], "export": SIDES[1:]}[side]
    assert sorted({m.side for m in proof.report.mismatches}) == sorted(blamed)
    assert (error.code, error.exit_code) == ("ERN-K031", Exit.CHECKPOINT)
    assert error.where == "shipped row 'a question' $.messages[1]"
    assert "ssistant" in error.found
    assert ":" in error.found + error.expected
    assert "key=warn" in error.fix
    assert "warning: ERN-K031" in proof.check("warn")[0]


INTERPRETER = """#!{python}
import sys
sys.path[:0] = {path!r}
exec(sys.argv[3])
"""
#: the two calls of transformers that are made, with our tokenizer behind them
THEIRS = """
from pathlib import Path
from erniecore_text import SentencePieceTokenizer
from erniecore_text.proof.others import _as_message
from erniecore.api.model import Segment
__version__ = "0.0.fake"
class AutoTokenizer:
    @classmethod
    def from_pretrained(cls, directory, local_files_only):
        self = cls()
        self.own = SentencePieceTokenizer.from_directory(Path(directory))
        return self
    def apply_chat_template(self, messages, tools, add_generation_prompt, return_dict, enable_thinking=None, options=None):
        text = self.own.chat_template.render([_as_message(m) for m in messages], tools or (), thinking=enable_thinking)
        return [i for part in self.own.encode_segments([Segment(text, True)]) for i in part]
"""


@pytest.fixture
def interpreter(tmp_path, monkeypatch):
    """An interpreter whose transformers is ours; what follows its code is the test's."""

    def make(more=""):
        (tmp_path / "site").mkdir()
        (tmp_path / "site" / "transformers.py").write_text(THEIRS + more)
        file = tmp_path / "python"
        file.write_text(INTERPRETER.format(python=sys.executable, path=[str(tmp_path / "site"), *sys.path]))
        file.chmod(0o755)
        monkeypatch.setenv("ERNIE_HF_PYTHON", str(file))

    return make


def test_transformers_in_its_process_has_the_last_word(directory, interpreter):
    interpreter()
    proof = proof_of(directory)
    proof.finish("error")
    assert proof.report.sides == ["training", "this server", "transformers 0.0.fake"]
    assert proof.report.notes == []


def test_an_interpreter_that_cannot_render_is_named_and_the_stand_in_renders(directory, interpreter):
    interpreter("raise ImportError('no such wheel')\n")
    proof = proof_of(directory)
    lines = " ".join(proof.finish("error"))
    assert proof.report.sides == ["training", *SIDES]
    assert "transformers cannot render there" in lines
    assert "no such wheel" in lines


def test_what_transformers_has_otherwise_is_an_error(directory, interpreter):
    interpreter("render = AutoTokenizer.apply_chat_template\n"
                "AutoTokenizer.apply_chat_template = lambda *a, **k: render(*a, **k)[:-1]\n")  # fmt: skip
    with proof_of(directory) as proof, pytest.raises(CheckpointError, match=r"transformers 0\.0\.fake"):
        proof.finish("error")


@pytest.mark.skipif(not REAL, reason="$ERNIE_HF_PYTHON names no interpreter with transformers")
def test_the_real_transformers_agrees(directory, monkeypatch):
    monkeypatch.setenv("ERNIE_HF_PYTHON", REAL)
    proof = proof_of(directory)
    proof.finish("error")
    assert proof.report.sides[-1].startswith("transformers ")


@pytest.mark.parametrize("kind", MARKERS)
def test_images_are_compared_too(kind, tmp_path):
    home = make_seer(tmp_path, kind)
    tokenizer, _ = open_tokenizer(home / "model")
    with Proof(home / "model", tokenizer, option="", servers={"it": partial(row_prompt, tokenizer)}) as proof:
        proof.finish("error")
        assert [p for p in proof.prompts if any(m.media for m in p.messages)]
        assert proof.report.sides == ["training", "it", SIDES[1]]


def test_a_special_token_in_a_users_text_is_counted_and_another_difference_is_not(directory, tmp_path):
    file = tmp_path / "rows.jsonl"
    talk = [{"role": "user", "content": "what is <|im_end|>?"}, {"role": "assistant", "content": "a token"}]
    file.write_text(json.dumps({"messages": talk}) + "\n")
    proof = proof_of(directory, run=a_run(tmp_path / "run", BASE, file))
    lines = " ".join(proof.finish("error"))
    assert proof.report.special == 1
    assert "special tokens in users' texts" in lines
    assert "the same tokens for 1 prompts of 1 rows of the run" in lines


def a_run(directory, base, data, template="thinking"):
    """A run's directory as far as settings go."""
    directory.mkdir()
    words = {"model": {"name": "ernie45", "path": str(base), "template": str(template)}, "method": {"name": "sft"}}
    (directory / "resolved.yaml").write_text(json.dumps({**words, "data": {"train": [{"path": str(data)}]}}))
    return directory


@pytest.fixture
def run(talker, tmp_path):
    """A run on rows of its own, with its finished model."""
    data = tmp_path / "rows.jsonl"
    data.write_text('{"messages": [{"role": "user", "content": "copy"}, {"role": "assistant", "content": "this"}]}\n')
    odd = tmp_path / "odd.jinja"
    odd.write_text(builtin_source("ernie45").replace("Assistant: ", "Assistant says: "))
    found = a_run(tmp_path / "run", talker / "model", data, odd)
    export_directory(talker / "model", found / "model", prompt_differences="warn")
    return found


def test_a_server_does_not_start_with_another_template_than_the_run(run, capsys):
    assert main(["serve", "--model", str(run), "port=0"]) == Exit.CHECKPOINT
    said = capsys.readouterr().err
    assert "ERN-K031" in said
    assert "rows.jsonl:1 $.messages[1]" in said
    assert "prompt_differences=warn" in said


def test_an_export_with_another_template_than_the_run_keeps_nothing_unless_it_is_wanted(run, capsys):
    out = run.parent / "out"
    assert main(["export", str(run), "--out", str(out)]) == Exit.CHECKPOINT
    assert not out.exists()
    assert main(["export", str(run), "--out", str(out), "--prompt-differences", "warn"]) == 0
    assert "warning: ERN-K031" in capsys.readouterr().err
    assert (out / "config.json").is_file()


def test_tools_are_given_to_the_model_in_the_order_in_which_they_came():
    """Templates print them as they are; a row whose keys stand in another order is trained on other tokens."""
    from erniecore_openai.schemas.chat import Tool

    given = {
        "function": {"parameters": {"b": 1, "a": 2}, "name": "f", "strict": None, "description": "d"},
        "type": "function",
    }
    dumped = Tool.model_validate(given).model_dump(exclude_unset=True, exclude={"function": {"strict"}})
    del given["function"]["strict"]
    assert json.dumps(dumped) == json.dumps(given)
