"""What is trained is what is served: for every template and kind of row, the tokens in front of a learned turn are those
that our generator and transformers give the model. ``test_rows_by_heart.py`` asks models that have learned their rows.
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from erniecore_ernie45.templating import choose_template
from erniecore_ernie45_vl.templating import TEMPLATES as VL
from erniecore_generation.completions import parse_completion, prompt_ids
from erniecore_paddleocr_vl.templating import TEMPLATES as OCR
from erniecore_sft.encoder import SftEncoder
from erniecore_text import SentencePieceTokenizer

from erniecore.errors import RowError
from erniecore.types.records import Conversation, Message, ToolCall

pytestmark = pytest.mark.slow

FIXTURES = Path(__file__).parents[1] / "fixtures"
GOLDEN = FIXTURES / "prompts" / "transformers.json"
SYSTEM, Q1, Q2 = Message("system", "Be brief."), Message("user", "2 plus 2"), Message("user", "and 3 more")
TOOL = {
    "name": "weather",
    "description": "of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL, RESULT = ToolCall("weather", '{"city": "Oslo"}'), Message("tool", '{"t": 3}')


def answer(text, reasoning="", calls=()):
    return Message("assistant", text, reasoning, tuple(calls))


ROWS = {
    "one turn": ((Q1, answer("4")), ()),
    "system text": ((SYSTEM, Q1, answer("it is 4")), ()),
    "two turns": ((Q1, answer("4"), Q2, answer("7")), ()),
    "reasoning": ((Q1, answer("4", "two and two")), ()),
    "reasoning in both turns": ((Q1, answer("4", "two and two"), Q2, answer("7", "four and three")), ()),
    "reasoning in the last turn": ((Q1, answer("4"), Q2, answer("7", "four and three")), ()),
    "reasoning in the first turn": ((Q1, answer("4", "two and two"), Q2, answer("7")), ()),
    "call": ((Q1, answer("", "I ask", [CALL]), RESULT, answer("it is 3", "3")), (TOOL,)),
    "call without reasoning": ((Q1, answer("", "", [CALL]), RESULT, answer("it is 3")), (TOOL,)),
}
TEMPLATES = {**VL, **OCR}
#: templates without a place for reasoning, and for tools
SILENT, TOOLLESS = {"ernie45", "paddleocr-vl"}, {"ernie45", "ernie45-vl", "ernie45-vl-thinking", "paddleocr-vl"}
#: templates whose usual prompt closes reasoning before it has begun
SWITCHED = {"ernie45-vl"}


def tokenizer_of(name):
    template = choose_template(name, FIXTURES, TEMPLATES)
    return SentencePieceTokenizer.from_directory(FIXTURES / "run_v0.1" / "base", template)


def refused(name, row, tools):
    return bool(tools and name in TOOLLESS) or (name in SILENT and any(m.reasoning for m in row))


def switch(name, message):
    return True if name in SWITCHED and message.reasoning else None


CASES = [(name, kind) for name in TEMPLATES for kind, row in ROWS.items() if not refused(name, *row)]


@pytest.fixture(scope="module")
def golden():
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_what_stands_before_a_learned_turn_is_what_the_model_gets(name, kind, golden):
    tokenizer, (row, tools) = tokenizer_of(name), ROWS[kind]
    turns = [i for i, message in enumerate(row) if message.role == "assistant"]
    found = []
    for sample in SftEncoder(tokenizer, 1000).encode(Conversation(row, tools=tools)):
        learned = np.flatnonzero(sample.labels >= 0)
        for span in np.split(learned, np.flatnonzero(np.diff(learned) > 1) + 1):
            turn = row[turns[len(found)]]
            found.append(sample.input_ids[: span[0] + 1].tolist())
            served, inside = prompt_ids(
                tokenizer, tokenizer.chat_template, row[: turns[len(found) - 1]], tools, switch(name, turn)
            )
            assert found[-1] == served
            written = tokenizer.decode(sample.labels[span[:-1]], skip_special=False)
            parsed = parse_completion(written, thinking=inside)
            assert (parsed.content.strip(), parsed.reasoning) == (turn.content, turn.reasoning)
            assert [(c.name, json.loads(c.arguments)) for c in parsed.tool_calls] == [
                (c.name, json.loads(c.arguments)) for c in turn.tool_calls
            ]
    assert found == [golden[name][kind][str(turn)] for turn in turns]


@pytest.mark.parametrize(("name", "kind"), [(n, k) for n in TEMPLATES for k in ROWS if (n, k) not in CASES])
def test_what_a_template_has_no_place_for_is_refused(name, kind):
    row, tools = ROWS[kind]
    with pytest.raises(RowError) as caught:
        SftEncoder(tokenizer_of(name), 1000).encode(Conversation(row, tools=tools))
    assert caught.value.code == "ERN-D041"


# ---- transformers

THEIRS = """
import json, sys
from transformers import AutoTokenizer
found = {}
for name, rows in json.load(open(sys.argv[1])).items():
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[2] + "/" + name)
    for kind, (messages, tools, switches) in rows.items():
        for turn, thinking in switches.items():
            options = {} if thinking is None else {"enable_thinking": thinking}
            found.setdefault(name, {}).setdefault(kind, {})[turn] = tokenizer.apply_chat_template(
                messages[: int(turn)], tools=tools or None, add_generation_prompt=True, return_dict=False, **options
            )
json.dump(found, sys.stdout)
"""


def plain(message):
    row = {"role": message.role, "content": message.content}
    if message.reasoning:
        row["reasoning_content"] = message.reasoning
    if message.tool_calls:
        calls = [{"name": c.name, "arguments": json.loads(c.arguments)} for c in message.tool_calls]
        row["tool_calls"] = [{"type": "function", "function": call} for call in calls]
    return row


@pytest.mark.skipif(
    not os.environ.get("ERNIE_HF_PYTHON"), reason="$ERNIE_HF_PYTHON names no interpreter with transformers"
)
def test_the_golden_tokens_are_those_of_transformers(tmp_path, golden):
    asked = {}
    for name, kind in CASES:
        row, tools = ROWS[kind]
        switches = {i: switch(name, m) for i, m in enumerate(row) if m.role == "assistant"}
        asked.setdefault(name, {})[kind] = ([plain(m) for m in row], tools, switches)
    for name in asked:
        tokenizer_of(name).save(tmp_path / name)
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    command = [os.environ["ERNIE_HF_PYTHON"], "-c", THEIRS, str(tmp_path / "asked.json"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    if os.environ.get("ERNIE_WRITE_GOLDEN"):
        GOLDEN.write_text(json.dumps(json.loads(done.stdout), separators=(",", ":")) + "\n")
    assert json.loads(done.stdout) == golden
