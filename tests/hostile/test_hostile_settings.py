"""Settings files and arguments that are endless, enormous or no files: a usage error at once."""

import pytest
from hostile_files import DEEP, SPECIAL, assert_refused, special

from erniecore.errors import Exit

pytestmark = pytest.mark.area("settings, overrides, environment")


def test_files_that_extend_many_files_each_end_soon(ernie, box):
    for level in range(12):
        below = [f"l{level + 1}-{n}.yaml" for n in range(8)]
        for n in range(8):
            (box / f"l{level}-{n}.yaml").write_text(f"extends: [{', '.join(below)}]\n")
    for n in range(8):
        (box / f"l12-{n}.yaml").write_text("run: {seed: 1}\n")
    outcome = ernie("run", box / "l0-0.yaml", "--dry-run")
    assert_refused(outcome, {Exit.USAGE})
    assert "16 levels and 64 files" in outcome[2]


def test_a_chain_of_extends_has_an_end(ernie, box):
    for n in range(40):
        (box / f"{n}.yaml").write_text(f"extends: {n + 1}.yaml\n")
    assert_refused(ernie("config", "show", box / "0.yaml"), {Exit.USAGE})


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("words", [["run"], ["config", "show"], ["config", "import"]], ids=" ".join)
def test_a_settings_file_is_a_file(ernie, box, words, kind):
    special(box / "run.yaml", kind)
    assert_refused(ernie(*words, box / "run.yaml"), {Exit.USAGE})


def test_a_settings_file_is_read_up_to_its_limit(ernie, box):
    with (box / "run.yaml").open("wb") as file:
        file.truncate(1 << 40)  # a hole
    outcome = ernie("run", box / "run.yaml")
    assert_refused(outcome, {Exit.USAGE})
    assert "larger than 1048576 bytes" in outcome[2]


def test_extends_names_a_file(ernie, box):
    special(box / "base.yaml", "pipe")
    (box / "run.yaml").write_text("extends: base.yaml\n")
    assert_refused(ernie("run", box / "run.yaml"), {Exit.USAGE})


LONG = "x" * 300


@pytest.mark.parametrize(
    "words",
    [
        ["run", LONG],
        ["run", LONG + ".yaml"],
        ["run", "--model", LONG],
        ["run", "--model", "ernie45", "--method", "sft", "--data", LONG],
        ["run", "--model", "ernie45", "--method", "sft", f"model.path={LONG}"],
        ["config", "show", LONG],
        ["data", "check", LONG],
        ["data", "check", LONG + ".jsonl"],
        ["data", "check", LONG + "*.jsonl"],
        ["data", "check", f"a/{LONG}/b.jsonl:train"],
        ["generate", "--model", LONG, "--prompt", "x"],
        ["ckpt", "list", LONG],
        ["runs", "list", LONG],
        ["export", LONG, "--to", "hf", "--out", "o"],
        ["model", "check", LONG],
        ["merge", LONG, "--base", LONG, "--out", "o"],
    ],
    ids=lambda words: " ".join(w if len(w) < 40 else "LONG" for w in words),
)
def test_names_longer_than_a_file_can_have_are_errors_of_the_user(ernie, words):
    assert_refused(ernie(*words), {Exit.USAGE, Exit.ENVIRONMENT, Exit.DATA, Exit.CHECKPOINT})


def test_a_long_value_is_a_value(ernie, box):
    sources = ", ".join("{path: s.jsonl, weight: 1.0}" for _ in range(40))
    code, out, err = ernie("config", "show", f"data.train=[{sources}]", "data.mix=weighted")
    assert code == 0, err
    assert out.count("s.jsonl") == 40


@pytest.mark.parametrize(
    "value",
    ["9" * 5000, "-" + "9" * 5000, "1e" + "9" * 400, "0x" + "f" * 5000, "[" * DEEP, "{" * DEEP, "[" * 200 + "]" * 200,
     "'" + "x" * 100_000 + "'", "\x1b[31m", "&a [*a]", "!!python/object:os.system x"],
    ids=lambda value: value[:12].encode("unicode_escape").decode(),
)  # fmt: skip
@pytest.mark.parametrize("key", ["train.max_steps", "train.learning_rate", "data.train", "model.path"])
def test_values_beyond_all_bounds_are_usage_errors(ernie, key, value):
    assert_refused(ernie("config", "show", "--method", "sft", f"{key}={value}"), {0, Exit.USAGE, Exit.CHECKPOINT})
