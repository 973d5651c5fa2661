"""The account of rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erniecore import codes
from erniecore.data.row_statistics import RowStatistics, describe
from erniecore.errors import DataError, RowError
from erniecore.types.records import Origin

FATES = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["keep", "cut", "drop"])), max_size=40)


def statistics_of(fates, max_errors=3):
    statistics = RowStatistics(max_errors)
    for i, (file, fate) in enumerate(fates, 1):
        statistics.read(file)
        if fate == "drop":
            statistics.drop(Origin(file, i), RowError("bad", code="ERN-D030", where="$.x", found="1"))
        else:
            statistics.keep(file, 1, "too long" if fate == "cut" else "")
    return statistics


@given(FATES)
def test_rows_are_kept_truncated_or_dropped(fates):
    report = statistics_of(fates).as_dict()
    for part in (report, *report["files"].values()):
        assert part["rows"] == part["kept"] + part["truncated"] + part["dropped"]
        assert sum(part["reasons"].values()) == part["truncated"] + part["dropped"]
    assert report["rows"] == len(fates)
    assert len(report["errors"]) + report["errors_not_listed"] == report["dropped"]


@given(FATES, st.integers(0, 40))
def test_accounts_of_parts_merge_to_that_of_the_whole(fates, cut):
    whole, merged = RowStatistics(3), RowStatistics(3)
    whole = statistics_of(fates)
    numbered = [(f, x) for f, x in fates]
    first, second = statistics_of(numbered[:cut]), RowStatistics(3)
    for i, (file, fate) in enumerate(numbered[cut:], cut + 1):
        second.read(file)
        if fate == "drop":
            second.drop(Origin(file, i), RowError("bad", code="ERN-D030", where="$.x", found="1"))
        else:
            second.keep(file, 1, "too long" if fate == "cut" else "")
    merged.merge([first, second])
    assert merged.as_dict() == whole.as_dict()


def test_only_the_first_errors_are_listed():
    report = statistics_of([("a", "drop")] * 10).as_dict()
    assert [e["line"] for e in report["errors"]] == [1, 2, 3]
    assert report["errors_not_listed"] == 7


def test_an_error_says_where_what_and_why():
    (entry,) = statistics_of([("a", "drop")]).errors
    assert entry == {"file": "a", "line": 1, "path": "$.x", "code": "ERN-D030", "message": "bad", "found": "1"}
    assert describe(entry) == "a:1 $.x: ERN-D030 bad (got 1)"


def test_dropping_up_to_the_limit_passes():
    statistics_of([("a", "drop")] + [("a", "keep")] * 99).check(0.01)


def test_dropping_more_than_the_limit_is_an_error_with_the_first_row():
    with pytest.raises(DataError, match=r"2 of 100 rows.*a:1 \$\.x") as e:
        statistics_of([("a", "drop")] * 2 + [("a", "keep")] * 98).check(0.01)
    assert (e.value.code, e.value.exit_code) == (codes.TOO_MANY_DROPPED, 4)


def test_nothing_left_is_an_error_even_if_dropping_is_allowed():
    with pytest.raises(DataError) as e:
        statistics_of([("a", "drop")] * 2).check(1.0)
    assert e.value.code == codes.NOTHING_LEFT


def test_rows_whose_error_says_what_to_do_get_no_second_advice():
    statistics = RowStatistics()
    statistics.read("a")
    statistics.drop(Origin("a", 1), RowError("it has media", code=codes.BAD_VALUE, where="$", fix="leave them out"))
    with pytest.raises(DataError, match="leave them out") as e:
        statistics.check(1.0)
    assert e.value.fix == ""


@pytest.mark.parametrize("code", [codes.WRONG_RECORD, codes.TOO_LONG])
def test_rows_that_the_method_refuses_are_not_sent_to_a_check_that_finds_nothing(code):
    statistics = RowStatistics()
    statistics.read("a")
    statistics.drop(Origin("a", 1), RowError("cannot learn", code=code, where="$", fix="choose a method"))
    with pytest.raises(DataError, match="choose a method") as e:
        statistics.check(1.0)
    assert (e.value.fix, e.value.next) == ("", "")
    with pytest.raises(DataError) as e:
        statistics.check(1.0, "ernie data check runs/a")
    assert e.value.next == "ernie data check runs/a"


@pytest.mark.parametrize(("long", "short", "named"), [(3, 2, True), (2, 3, False)])
def test_the_setting_for_long_rows_is_named_first_where_most_rows_are_dropped_for_their_length(long, short, named):
    statistics = RowStatistics()
    statistics.read("a", 20)
    for line in range(short + long):
        code, fix = (codes.MALFORMED, "") if line < short else (codes.TOO_LONG, "set data.too_long=truncate")
        statistics.drop(Origin("a", line + 1), RowError("bad", code=code, where="$", fix=fix))
    with pytest.raises(DataError) as e:
        statistics.check(0.01)
    assert e.value.fix.startswith("set data.too_long=truncate, or raise data.max_drop") == named
    assert e.value.fix.endswith("raise data.max_drop")
    assert f"the first: a:{short + 1 if named else 1}: " in e.value.found


def test_a_file_that_failed_is_an_error_however_many_rows_are_good():
    statistics = statistics_of([("a", "keep")] * 5)
    statistics.fail("b", DataError("gone", code=codes.MISSING_FILE, where="b"))
    with pytest.raises(DataError, match="gone"):
        statistics.check(1.0)
