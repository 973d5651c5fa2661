"""Whatever a file says, the conversion accounts for each of its keys and gives settings that can be written and read."""

from erniecore_config import imported_text
from erniecore_erniekit import rules
from erniecore_erniekit.convert import convert
from erniecore_erniekit.draft import Surroundings
from erniecore_erniekit.table import KEYS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from erniecore.config import yaml

WORDS = [
    *rules.STAGES, *rules.LOSSES, *rules.COMPUTE, *rules.SCHEDULES, *rules.MIXES, *rules.FORMATS, "LoRA", "Full", "wsd:5",
    "steps", "epoch", "no", "stage1", "mp", "dp", "async_save", "visualdl", "a.jsonl,b.jsonl", "0.5,0.5", "0.4 /a 0.6 /b",
    "map", "pretrain", "baidu/ERNIE-4.5-21B-A3B-Paddle", "baidu/ERNIE-4.5-0.3B-PT", "None", "", "1_000", "[1,1]",
]  # fmt: skip
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 5000), st.floats(-1, 2, allow_nan=False), st.sampled_from(WORDS),
    st.lists(st.sampled_from(WORDS), max_size=2), st.dictionaries(st.sampled_from("ab"), st.integers(), max_size=2),
)  # fmt: skip
KEY = st.one_of(st.sampled_from(sorted(KEYS)), st.sampled_from(["learning_rte", "vision_config.depth", "lora_rank.x"]))
FILES = st.dictionaries(KEY, VALUES, max_size=12)
ACCELERATOR, DIRECTORY = (
    Surroundings("accelerator", frozenset({"bfloat16"})),
    Surroundings(config={"model_type": "ernie4_5_moe"}),
)
PLACES = st.sampled_from([Surroundings(), ACCELERATOR, DIRECTORY])


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(FILES, PLACES)
def test_every_key_is_accounted_for(file, around):
    outcome = convert(file, around)
    flat = {key.partition(".")[0] if key == "vision_config.depth" else key for key in file}
    found = [*outcome.mapped, *(key for key in outcome.dropped if key not in outcome.mapped), *outcome.unknown]
    assert len(found) == len(set(found))
    assert flat - set(found) <= set(outcome.problems)
    assert set(found) <= flat


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(FILES, PLACES)
def test_what_is_written_is_read_again(file, around):
    outcome = convert(file, around)
    read = yaml.parse(imported_text.yaml_text(outcome, "old.yaml"), "new.yaml").data
    for key, setting in outcome.settings.items():
        value = read
        for part in key.split("."):
            value = value[part]
        assert value == setting.value


@given(FILES)
def test_the_same_file_gives_the_same_outcome(file):
    assert convert(file).as_json() == convert(dict(file)).as_json()
