"""Columns under other names."""

import pytest
from erniecore_formats.plugin import alpaca, messages, preference

from erniecore.api import RowError
from erniecore.api.data import Origin
from erniecore.data.parsing import RowParser

HERE = Origin("f.jsonl", 1)


def parser(plugin, **columns):
    return RowParser(plugin, plugin.Config(columns=columns))


def test_fields_are_read_from_the_columns_that_are_named():
    parse = parser(alpaca, instruction="question", output="answer")
    record = parse({"question": "q", "answer": "a", "instruction": "other", "output": "other", "input": "i"}, HERE)
    assert [m.content for m in record.messages] == ["q\ni", "a"]


def test_a_column_that_is_used_under_another_name_is_not_used_under_its_own():
    record = parser(preference, chosen="output", rejected="chosen")({"prompt": "q", "output": "g", "chosen": "b"}, HERE)
    assert (record.chosen[0].content, record.rejected[0].content) == ("g", "b")


def test_errors_name_the_column_of_the_file():
    with pytest.raises(RowError, match="'answer' is missing") as e:
        parser(alpaca, output="answer")({"instruction": "q"}, HERE)
    assert e.value.where == "$.answer"
    with pytest.raises(RowError) as e:
        parser(messages, messages="talk")({"talk": [{"role": "usr", "content": "q"}]}, HERE)
    assert e.value.where == "$.talk[0].role"


def test_rows_are_written_under_the_names_of_the_file():
    config = alpaca.Config(columns={"instruction": "question"})
    record = parser(alpaca, instruction="question")({"question": "q", "output": "a"}, HERE)
    assert alpaca.ernie_write_record(config=config, record=record) == {"question": "q", "output": "a"}


def test_only_fields_of_the_format_can_be_named():
    with pytest.raises(ValueError, match="prompt"):
        alpaca.Config(columns={"prompt": "question"})
