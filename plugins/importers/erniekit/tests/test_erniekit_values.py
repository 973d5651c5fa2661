"""Single values and rules of ERNIEKit, as properties."""

import math

import pytest
from erniecore_erniekit import rules
from erniecore_key_tables import values
from hypothesis import given
from hypothesis import strategies as st

from erniecore.config.core import TrainSection
from erniecore.engine.training.schedule import learning_rate

WHOLE = st.integers(-(10**9), 10**9)
POSITIVE = st.floats(1e-6, 1e6, allow_nan=False)


@given(WHOLE)
def test_whole_numbers_survive_as_numbers_and_text(number):
    assert values.whole(number) == values.whole(str(number)) == values.whole(f"{number:_}") == number
    assert values.whole(float(number)) == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_survive_as_text(number):
    assert values.number(repr(number)) == values.number(number) == number


@pytest.mark.parametrize("bad", [True, "x", "2 ** 15", "nan", "inf", None, [], 1.5])
def test_what_is_no_whole_number(bad):
    with pytest.raises(ValueError, match="whole number"):
        values.whole(bad)


@pytest.mark.parametrize("word", ["True", "yes", "on", 1, True, "1"])
def test_truth(word):
    assert values.flag(word) is True


@pytest.mark.parametrize("word", ["False", "no", "off", 0, False, "0"])
def test_falsehood(word):
    assert values.flag(word) is False


@pytest.mark.parametrize("word", ["maybe", 2, "", []])
def test_neither(word):
    with pytest.raises(ValueError, match="true or false"):
        values.flag(word)


@given(st.lists(st.text("abc/._-", min_size=1), max_size=5))
def test_lists_with_commas(parts):
    assert values.items(", ".join(parts)) == values.items(parts) == parts


@pytest.mark.parametrize("value", [None, "None", "", " ", "null"])
def test_values_that_say_nothing(value):
    assert values.is_empty(value)


@given(
    st.integers(1, 512),
    st.one_of(st.just(-1.0), POSITIVE),
    st.booleans(),
    st.one_of(st.just(1.0), POSITIVE),
    st.booleans(),
)
def test_the_scale_of_an_adapter_is_that_of_erniekit(rank, alpha, rslora, plus, rslora_plus):
    """s = alpha / r, or alpha / sqrt(r) with rslora; ours is alpha / sqrt(r) for `rslora` alone."""
    made = rules.adapter(rank, alpha, rslora, plus, rslora_plus)
    if rslora_plus:
        rslora, plus, alpha = True, 4.0, 4.0
    effective = alpha if alpha > 0 else (4.0 if rslora else 2.0 * rank)
    expected = effective / (math.sqrt(rank) if rslora else rank)
    ours = made.alpha / (math.sqrt(rank) if made.name == "rslora" else rank)
    assert ours == pytest.approx(expected, rel=1e-12)
    assert made.ratio == plus
    assert made.name == ("lora-plus" if plus != 1 else "rslora" if rslora else "lora")


@given(st.integers(1, 40), st.integers(1, 60), st.sampled_from(["half_life", "1-sqrt"]))
def test_wsd_is_constant_until_its_step_and_then_decays_as_in_erniekit(steady, tail, function):
    """Update n of ours runs at ERNIEKit's rate of step n - 1 (counted from 0)."""
    total, peak, low = steady + tail, 1.0, 0.1
    made = rules.schedule(f"wsd:{steady}", total, function)
    ours = TrainSection(
        schedule="wsd", decay_steps=made.decay_steps, decay_shape=made.shape, learning_rate=peak, min_lr=low
    )
    for step in range(total):
        p = (step - steady) / (total - steady)
        left = {"half_life": lambda p: (0.05**p - 0.05) / 0.95, "1-sqrt": lambda p: 1 - math.sqrt(p)}[function]
        expected = peak if step <= steady else low + (peak - low) * left(p)
        assert learning_rate(step + 1, total, ours) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", rules.SCHEDULES)
def test_schedules_by_name(name):
    assert rules.schedule(name, 100).name == rules.SCHEDULES[name]


def test_trainers_of_vision_know_cosine_and_wsd_alone():
    assert rules.schedule("linear", 100, cosine_only=True).name == "cosine"
    assert rules.schedule("wsd:90", 100, cosine_only=True) == ("wsd", 10, "half-life")


@pytest.mark.parametrize(
    ("name", "steps", "message"),
    [
        ("wsd:x", 9, "must be wsd:N"),
        ("wsd:5", -1, "needs max_steps"),
        ("cosin", 9, "did you mean cosine"),
        ("wsd:1", 9, "half"),
    ],
)
def test_schedules_that_mean_nothing(name, steps, message):
    with pytest.raises(ValueError, match=message):
        rules.schedule(name, steps, "half_lif" if message == "half" else "half_life")


@given(st.integers(1, 10**6), st.floats(0.5, 50), st.integers(0, 10**6))
def test_steps_between_events(max_steps, epochs, steps):
    assert rules.every("no", steps, max_steps, epochs) == 0
    assert rules.every("steps", steps, max_steps, epochs) == steps
    assert rules.every("epoch", steps, max_steps, epochs) == max(1, int(max_steps / epochs))
    assert rules.every("epoch", steps, -1, epochs) == (0 if epochs <= 1 else None)


@given(st.lists(st.tuples(st.text("abc/", min_size=1), POSITIVE), min_size=1, max_size=4))
def test_lists_of_sources(parts):
    paths, weights = [p for p, _ in parts], [w for _, w in parts]
    found = rules.sources(paths, ["alpaca"], [repr(w) for w in weights])
    assert found == [{"path": p, "format": "alpaca", "weight": w} for p, w in parts]


def test_sources_without_probability_are_left_out():
    assert rules.sources(["a", "b"], ["alpaca", "erniekit"], ["0", "1"]) == [
        {"path": "b", "format": "erniekit", "weight": 1.0}
    ]


@pytest.mark.parametrize(
    ("types", "probs", "message"),
    [
        (["x", "y", "z"], [], "3 types for 2 paths"),
        (["x"], ["1"], "1 probabilities"),
        (["x"], ["1", "a"], "number"),
        (["x"], ["1", "-1"], "0 or more"),
    ],
)
def test_lists_that_do_not_fit(types, probs, message):
    with pytest.raises(ValueError, match=message):
        rules.sources(["a", "b"], types, probs)


@given(st.lists(st.tuples(POSITIVE, st.text("abc/", min_size=1)), min_size=2, max_size=4))
def test_blends_of_token_files(parts):
    assert rules.blend(" ".join(f"{w!r} {p}" for w, p in parts)) == parts


def test_a_blend_of_one_and_of_nothing():
    assert rules.blend("/a/b") == [(1.0, "/a/b")]
    with pytest.raises(ValueError, match="in turn"):
        rules.blend("0.5 /a 0.5")


@pytest.mark.parametrize(("split", "share"), [("950,50", 0.05), ("998,1,1", 1 / 999), ("1,0", 0.0)])
def test_shares_that_are_held_out(split, share):
    assert rules.eval_fraction(split) == pytest.approx(share)


@pytest.mark.parametrize(
    ("text", "stage"), [("stage1", 1), ("stage2 offload", 2), ("stage3", 3), ("", 0), ("offload", 0)]
)
def test_sharding(text, stage):
    assert rules.sharding_stage(text) == stage


def test_sharding_that_means_nothing():
    with pytest.raises(ValueError, match="stage1, stage2 or stage3"):
        rules.sharding_stage("stag1")
