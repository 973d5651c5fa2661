"""The reward function ``checklist``, by example."""

import pytest
from erniecore_rl.checklist import ChecklistConfig, Item, checklist, read_item

from erniecore.api import ConfigError, DataError
from erniecore.api.reward import Completion


def reward(content, *items, reference="", **config):
    section = ChecklistConfig(items=items, **config)
    completion = Completion("", content, content, "", reference, True, 3)
    (value,) = checklist.ernie_compute_rewards(config=section, completions=[completion])
    return value


@pytest.mark.parametrize(
    ("content", "item", "expected"),
    [
        ("the sum is 4 .", "contains: sum is", 1),
        ("the sum is 42", "contains: 4", 0),
        ("the sum is 42", "excludes: sorry", 1),
        ("I am sorry .", "- excludes: sorry", 0),
        ("The sum", "starts: the", 0),
        ("The sum is", "ends: sum is", 1),
        ("is", "ends: sum is", 0),
        ("a b c", "min-words: 3", 1),
        ("a b c", "min-words: 4", 0),
        ("a b c", "max-words: 3", 1),
        ("a b c", "max-words: 2", 0),
        ("room 42, floor 1", "pattern: [0-9]{2}", 1),
        ("room 4", "pattern: [0-9]{2}", 0),
        ("a: b", "contains: a: b", 1),
    ],
)
def test_items(content, item, expected):
    assert reward(content, item) == expected


def test_case_may_not_matter():
    assert reward("The sum", "starts: the", ignore_case=True) == 1


def test_the_share_of_the_items_or_all_of_them():
    items = ("contains: a", "contains: b", "excludes: c", "min-words: 9")
    assert reward("a b", *items) == 0.75
    assert reward("a b", *items, score="all") == 0
    assert reward("a b", *items[:3], score="all") == 1


def test_a_row_may_have_a_list_of_its_own():
    listed = "- contains: Paris\n\n- max-words: 2\n"
    assert reward("Paris", reference=listed, rows=True) == 1
    assert reward("Paris it is", reference=listed, rows=True) == 0.5
    assert reward("Paris it is", "contains: it", reference=listed, rows=True) == pytest.approx(2 / 3)
    with pytest.raises(DataError, match="no checklist"):
        reward("Paris", reference="Paris", rows=True)


@pytest.mark.parametrize("line", ["contains", "contain: a", "contains:", "min-words: few", "max-words: -1", ""])
def test_what_is_no_item_is_refused(line):
    with pytest.raises(ValueError, match=r"is no item|number of words"):
        ChecklistConfig(items=(line,))


def test_settings_without_items_and_patterns_that_do_not_compile_are_refused():
    with pytest.raises(ValueError, match="nothing to check"):
        ChecklistConfig()
    with pytest.raises(ValueError, match="is no regular expression"):
        ChecklistConfig(items=("pattern: (",))
    assert read_item(" - pattern: a|b ") == Item("pattern", "a|b")


def test_a_pattern_that_takes_too_long_is_an_error():
    with pytest.raises(ConfigError, match="takes too long"):
        reward("a" * 40 + "b", "pattern: (a|aa)+$")
