"""Data files and rows that are endless, nested, no files, or that command a terminal: named errors, and every row counted."""

import json

import pytest
from hostile_files import DEEP, JSON_TEXTS, SPECIAL, WRONG, assert_refused, special

from erniecore.errors import Exit

pytestmark = pytest.mark.area("data files and rows")

GOOD = {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}
NESTED = "[" * DEEP + "]" * DEEP


def turns(**call):
    """A conversation with one call."""
    item = {"name": "f", "arguments": "{}", **call}
    return {"messages": [GOOD["messages"][0], {"role": "assistant", "tool_calls": [item]}, {"role": "tool", "content": "1"},
                         GOOD["messages"][1]]}  # fmt: skip


#: rows that a format must refuse or read, whatever is inside of their texts
ROWS = {
    "arguments nested deeply": turns(arguments=NESTED),
    "arguments of digits": turns(arguments="9" * 6000),
    "arguments cut": turns(arguments='{"a": '),
    "a call nested deeply": {"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": NESTED},
                                               {"from": "observation", "value": "1"}, {"from": "gpt", "value": "a"}]},
    "tools nested deeply": {**GOOD, "tools": NESTED},
    "tools of digits": {**GOOD, "tools": "9" * 6000},
    "a name that commands": {"\x1b[31m\x9b2J": 1, **GOOD},
    "a role that commands": {"messages": [{"role": "\x1b[31m", "content": "\x07"}]},
    "a long role": {"messages": [{"role": "r" * 100_000, "content": "x"}]},
    "many messages": {"messages": GOOD["messages"] * 1000},
    "many fields": {f"field{n}": n for n in range(20_000)},
}  # fmt: skip


@pytest.fixture
def check(ernie, box, talker):
    """``ernie data check`` of a file with one good row behind others, with a model; returns its report."""

    def run(*rows, model=True):
        file = box / "rows.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in (*rows, GOOD)))
        more = ["--model", talker / "model", "--method", "sft", "--max-seq-len", "96"] if model else []
        assert_refused(ernie("data", "check", file, *more), {0, Exit.DATA})
        code, out, err = ernie("data", "check", file, *more, "--json")
        assert code in (0, Exit.DATA), err
        report = json.loads(out)
        assert report["rows"] == report["kept"] + report["truncated"] + report["dropped"] == len(rows) + 1
        assert report["kept"] + report["truncated"] >= 1
        return report

    return run


@pytest.mark.parametrize("row", ROWS)
def test_a_hostile_row_costs_that_row_only(check, row):
    check(ROWS[row])


@pytest.mark.parametrize("key", ["messages", "tools", "system", "label", "chosen", "images"])
def test_values_of_another_type_cost_that_row_only(check, key):
    check(*({**GOOD, key: value} for value in WRONG), model=False)


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", ["d.jsonl", "d.json", "d.txt", "d.jsonl.gz", "d.parquet"])
def test_what_is_no_file_is_never_read(ernie, box, name, kind):
    special(box / name, kind)
    assert_refused(ernie("data", "check", box / name), {Exit.DATA})


@pytest.mark.parametrize("file", ["dataset_dict.json", "state.json"])
@pytest.mark.parametrize("text", JSON_TEXTS)
def test_a_saved_data_set_that_is_damaged_is_an_error(ernie, box, file, text):
    (box / file).write_bytes(JSON_TEXTS[text])
    assert_refused(ernie("data", "check", box), {Exit.DATA})


@pytest.mark.parametrize(
    "content",
    [
        *[{"splits": value} for value in WRONG],
        *[{"_data_files": value} for value in WRONG],
        {"_data_files": [{"filename": "../x.arrow"}]},
        {"_data_files": [{"filename": "x" * 5000}]},
        {"_split": ["\x1b[31m"], "_data_files": []},
    ],
    ids=lambda content: json.dumps(content)[:40],
)
def test_a_saved_data_set_of_other_types_is_an_error(ernie, box, content):
    for file in ("dataset_dict.json", "state.json"):
        (box / file).write_text(json.dumps(content))
        assert_refused(ernie("data", "check", f"{box}:train"), {Exit.DATA})
        assert_refused(ernie("data", "check", box), {Exit.DATA})


def test_an_endless_line_is_one_row_of_many(ernie, box):
    file = box / "d.jsonl"
    file.write_text(json.dumps(GOOD) + "\n")
    with file.open("ab") as stream:
        stream.truncate(200 << 20)  # a hole, read as NUL characters
    outcome = ernie("data", "check", file)
    assert_refused(outcome, {Exit.DATA})
    assert "2 rows = 1 kept + 0 truncated + 1 dropped" in outcome[1]
