"""The example's data: right answers, splits that share nothing, the same rows for the same seed."""

from itertools import islice

import pytest
from erniecore_demo import tasks


def question(row):
    return row["messages"][0]["content"]


def answer(row):
    return row["messages"][1]["content"]


def some(split, family, count=300, seed=0):
    return list(tasks.rows(split, count, seed=seed, families=[family]))


SOLVERS = {
    "copy": lambda q: q.split()[1],
    "reverse": lambda q: "".join(reversed(q.split()[1])),
    "first": lambda q: q.split()[2][0],
    "last": lambda q: q.split()[2][-1],
    "sort": lambda q: "".join(sorted(q.split()[1], key=int)),
    "recall": lambda q: dict(pair.split("=") for pair in q.split(" get ")[0].split())[q[-1]],
    "count": lambda q: str(sum(c == q.split()[1] for c in q.split()[3])),
    "add": lambda q: str(sum(map(int, q.split()[1:]))),
}


@pytest.mark.parametrize("family", sorted(SOLVERS))
def test_answers_are_right(family):
    for row in some("train", family) + some("heldout", family):
        assert answer(row) == SOLVERS[family](question(row)), question(row)


@pytest.mark.parametrize("family", sorted(tasks.FAMILIES))
def test_no_held_out_question_is_ever_trained_on(family):
    heldout = {question(row) for seed in range(3) for row in some("heldout", family, seed=seed)}
    trained = {question(row) for seed in range(3) for row in some("train", family, seed=seed)}
    assert heldout
    assert not heldout & trained


def test_held_out_is_about_a_fifth_of_the_questions():
    items = {tasks.copy(random)[0] for random in map(tasks.Random, range(4000))}
    share = sum(tasks.is_heldout("copy", item) for item in items) / len(items)
    assert 0.17 < share < 0.23


def test_one_question_has_one_answer():
    answers = {}
    for row in some("train", "identity", 500):
        assert answers.setdefault(question(row), answer(row)) == answer(row)


def test_rows_are_a_function_of_the_seed():
    assert some("train", "copy", 5) == some("train", "copy", 5)
    assert some("train", "copy", 5) != some("train", "copy", 5, seed=1)


def test_a_family_does_not_depend_on_the_others():
    mixed = [row for row in tasks.rows("train", 12) if row["task"] == "sort"]
    assert mixed == some("train", "sort", len(mixed))


def test_families_take_turns():
    names = [row["task"] for row in islice(tasks.rows("train", 100, families=["copy", "last"]), 4)]
    assert names == ["copy", "last", "copy", "last"]


def test_longer_rows_have_an_exchange_before_their_own():
    made = list(tasks.rows("heldout", 400, longer=0.25))
    assert 70 < sum(len(row["messages"]) == 4 for row in made) < 130
    plain = list(tasks.rows("heldout", 400))
    assert [row["messages"][-2:] for row in made] == [row["messages"] for row in plain]
    trained = {question(row) for row in tasks.rows("train", 2000)}
    assert not trained & {row["messages"][0]["content"] for row in made}


def test_both_greetings_are_learned_alike():
    answers = [answer(row).split()[0] for row in some("train", "greet", 2000)]
    assert 0.45 < answers.count("hi") / len(answers) < 0.55


def test_pairs_prefer_the_polite_greeting_and_share_no_question():
    splits = {split: list(tasks.pairs(split, 300)) for split in ("train", "heldout")}
    for rows in splits.values():
        for row in rows:
            whom = question(row).removeprefix("greet ")
            assert row["chosen"]["content"] == f"good day {whom}"
            assert row["rejected"]["content"] == f"hi {whom}"
    heldout, trained = ({question(row) for row in splits[s]} for s in ("heldout", "train"))
    assert heldout
    assert not heldout & trained
