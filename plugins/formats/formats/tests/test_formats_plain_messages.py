"""The short way for usual messages is the long way."""

from erniecore_formats import turns
from hypothesis import given
from hypothesis import strategies as st

from erniecore.api import RowError

ROLES = st.sampled_from([*turns.ROLES, "User", "bot", 3, None])
TEXTS = st.text("a \n<>/", max_size=3) | st.sampled_from(
    ["<think>a</think>b", "</think>", 3, None, ["a"], '{"name": "f"}']
)


@given(st.fixed_dictionaries({}, optional={"role": ROLES, "from": ROLES, "content": TEXTS, "value": TEXTS, "x": TEXTS}))
def test_both_ways_agree(item):
    try:
        long = turns.message(item, "$.m[0]")
    except RowError as e:
        long = (e.where, e.code, e.message)
    try:
        (short,) = turns.listed([item], "$.m")
    except RowError as e:
        short = (e.where, e.code, e.message)
    assert short == long
