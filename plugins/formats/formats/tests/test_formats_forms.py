"""The forms of rows and files that other toolkits write, one small file each: read, or refused with what to rename."""

from pathlib import Path

import pytest
from erniecore_data.reading import read_records, sources_of

from erniecore.config.core import Source
from erniecore.data.encode import encode
from erniecore.data.row_statistics import describe

ROWS = Path(__file__).with_name("rows")

#: file -> kinds of its records, and the roles of the first one with what the last of them says
READ = {
    "alpaca.jsonl": ("Conversation " * 3, "user assistant", "good day"),
    "alpaca_kto.jsonl": ("UnpairedPreference UnpairedPreference", "user assistant", "hi"),
    "alpaca_preference.jsonl": ("Preference", "user > assistant assistant", "no"),
    "array.jsonl": ("Conversation Conversation", "user assistant", "4"),
    "array_one_line.jsonl": ("Conversation Conversation", "user assistant", "4"),
    "dolly.jsonl": ("Conversation Conversation", "user assistant", "In 1822."),
    "hh_rlhf_prompt.jsonl": ("Preference", "user assistant user > assistant assistant", "7"),
    "lines.json": ("Conversation Conversation", "user assistant", "4"),
    "llamafactory_kto.jsonl": ("UnpairedPreference UnpairedPreference", "user assistant", "4"),
    "llamafactory_preference.jsonl": ("Preference", "user > assistant assistant", "5"),
    "object.json": ("Conversation", "user assistant", "4"),
    "object.jsonl": ("Conversation", "user assistant", "4"),
    "objects.jsonl": ("Conversation Conversation", "user assistant", "4"),
    "openai_developer.jsonl": ("Conversation", "system user assistant", "4"),
    "openai_preference.jsonl": ("Preference Preference", "user > assistant assistant", "5"),
    "openai_tools.jsonl": ("Conversation", "user assistant tool assistant", "3 degrees."),
    "parts_text.jsonl": ("Conversation", "user assistant", "4"),
    "parts_value.jsonl": ("Conversation", "user assistant", "4"),
    "prompt_completion.jsonl": ("Conversation Conversation", "user assistant", "4"),
    "prompt_response.jsonl": ("Conversation Conversation Preference", "user assistant", "4"),
    "query_response.jsonl": ("Conversation", "user assistant", "4"),
    "sharegpt.jsonl": ("Conversation " * 3, "user assistant", "4"),
    "sharegpt_calls.jsonl": ("Conversation Conversation", "user assistant tool assistant", "3 degrees."),
    "sharegpt_openai_names.jsonl": ("Conversation " * 6, "user assistant", "4"),
    "images_beside.jsonl": ("Conversation", "user assistant", "A cat."),
    "videos_beside.jsonl": ("Conversation", "user assistant", "A cat."),
    "parts_image.jsonl": ("Conversation", "user assistant", "A cat."),
    "parts_image_openai.jsonl": ("Conversation", "user assistant", "A cat."),
    "text.jsonl": ("Document", "", "Once there was a mill."),
    "tool_result_behind_text.jsonl": ("Conversation", "user assistant tool assistant", "3 degrees."),
    "trl_kto.jsonl": ("UnpairedPreference UnpairedPreference", "user assistant", "4"),
}

#: file -> the end of the one line that says what is wrong and what to do
REFUSED = {
    "alpaca_history_objects.jsonl": "$.history[0]: ERN-D031 a pair [question, answer] is needed, this is an object (got "
    "{'user': 'Say hi.', 'assistant': 'hi'}); expected a pair [question, answer]",
    "alpaca_ranked.jsonl": "$.output: ERN-D036 the answer is one text (got ['hi', 'no']); expected a text; give them as "
    "'chosen' and 'rejected'",
    "better_worse.jsonl": "rename 'better' to 'chosen' and 'worse' to 'rejected', or add --format preference "
    "formats.preference.columns.chosen=better formats.preference.columns.rejected=worse",
    "chosen_without_prompt.jsonl": "add 'prompt', the question that both answer",
    "content.jsonl": "rename 'content' to 'text', or add --format text formats.text.field=content",
    "dialog.jsonl": "rename 'dialog' to 'messages', or add --format messages formats.messages.columns.messages=dialog",
    "hh_rlhf.jsonl": "hh_rlhf.jsonl:3 $.rejected: ERN-D032 the text is empty (got ''); expected a text; fill it or remove "
    "the row",
    "inside.json": "the rows are inside of 'data': write that list alone into the file",
    "kto_number.jsonl": "write true or false to rate the conversation, or a list with 0 or 1 for each answer",
    "messages_misspelled.jsonl": "is 'mesages' meant to be 'messages'?",
    "object_cut.jsonl": "object_cut.jsonl:4: ERN-D011 the JSON object is broken: the object is not closed (got end of file); "
    "expected }; repair the file, or write one row per line and call it .jsonl",
    "openai_preference_no_messages.jsonl": "$.input.messages: ERN-D030 the field 'messages' is missing (got the fields "
    "'message'); expected 'messages'; is 'message' meant to be 'messages'?",
    "problem_solution.jsonl": "rename 'problem' to 'instruction' and 'solution' to 'output', or add --format alpaca "
    "formats.alpaca.columns.instruction=problem formats.alpaca.columns.output=solution",
    "prompt_list_response.jsonl": "rename 'response' to 'completion'",
    "question_answer.jsonl": "rename 'question' to 'instruction' and 'answer' to 'output', or add --format alpaca "
    "formats.alpaca.columns.instruction=question formats.alpaca.columns.output=answer",
    "sharegpt_starts_with_gpt.jsonl": "$.conversations[0]: ERN-D035 the first message has role assistant (got "
    "assistant); expected system or user; remove what stands before the first question",
    "sharegpt_unknown_role.jsonl": "map it to one of these roles",
    "user_assistant.jsonl": "rename 'user' to 'instruction' and 'assistant' to 'output', or add --format alpaca "
    "formats.alpaca.columns.instruction=user formats.alpaca.columns.output=assistant",
    "audios_beside.jsonl": "$.audios: ERN-D036 these media are not read here (got ['a.wav']); expected a text-only row; leave "
    "the media out, or write images and videos into messages (markers, `images` and `videos`); sounds are not read",
}


def test_every_file_is_in_the_table():
    assert {file.name for file in ROWS.iterdir()} == READ.keys() | REFUSED.keys()


@pytest.mark.parametrize("name", READ)
def test_form_is_read(name):
    kinds, roles, last = READ[name]
    records, errors = read_records([ROWS / name])
    assert errors == []
    assert [type(record).__name__ for record in records] == kinds.split()
    record = records[0]
    if kinds.startswith("Document"):
        assert record.text == last
    elif kinds.startswith("Preference"):
        sides = [*record.chosen, *record.rejected]
        said = [" ".join(m.role for m in side) for side in (record.prompt, sides)]
        assert (" > ".join(said), sides[-1].content) == (roles, last)
    else:
        assert (" ".join(m.role for m in record.messages), record.messages[-1].content) == (roles, last)


@pytest.mark.parametrize("name", REFUSED)
def test_form_is_refused_in_one_line_that_says_what_to_do(name):
    _, errors = read_records([ROWS / name])
    (line,) = map(describe, errors)
    assert line.endswith(REFUSED[name])
    assert "\n" not in line


@pytest.mark.parametrize("name", sorted(READ | REFUSED))
def test_every_row_is_kept_truncated_or_dropped(name):
    sources, failed = sources_of([Source(path=str(ROWS / name))], "auto")
    _, statistics = encode(sources, None)
    kept, truncated, dropped = (statistics.total(part) for part in ("kept", "truncated", "dropped"))
    assert statistics.total("rows") == kept + truncated + dropped
    if name in READ:
        assert (kept, dropped, failed) == (len(READ[name][0].split()), 0, [])
    else:
        assert dropped or failed


def test_transcripts_keep_blank_lines_inside_of_a_turn():
    first, second = read_records([ROWS / "hh_rlhf.jsonl"])[0]
    assert [m.content for m in first.prompt] == ["2+2?", "4", "and 3+3?"]
    assert (first.chosen[0].content, first.rejected[0].content) == ("6", "7")
    assert second.chosen[0].content == "Hello.\n\nPleased to meet you."


def test_openai_preference_keeps_tools_calls_and_the_developer_text():
    _, record = read_records([ROWS / "openai_preference.jsonl"])[0]
    assert [m.role for m in record.prompt] == ["system", "user"]
    assert record.tools[0]["function"]["name"] == "weather"
    assert record.chosen[0].tool_calls[0].name == "weather"


def test_parts_with_values_are_one_text():
    ((question, _),) = (record.messages for record in read_records([ROWS / "parts_value.jsonl"])[0])
    assert question.content == "2+2?"


def test_context_stands_below_the_instruction():
    record = read_records([ROWS / "dolly.jsonl"])[0][0]
    assert record.messages[0].content == "When was it built?\nThe mill was built in 1822."
