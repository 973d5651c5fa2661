"""Plugins in a file that nobody has installed: in runs, in child processes, in resolved.yaml, and what settings may not do."""

import hashlib
import json
import shutil
import sys
from pathlib import Path

import pytest

from erniecore import registry
from erniecore.api import Exit
from erniecore.errors import PluginBroken

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "one_file"
BEST = EXAMPLES / "best_loss.py"
ROWS = "[{number}]\ninstruction = say {number}\noutput = {number} is said\n"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Which files the user has named before is kept in the cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_examples_are_short_and_conform(ernie, file):
    assert len(file.read_text().splitlines()) <= 30
    done = ernie("conform", file)
    assert done.code == Exit.OK, done.out


def test_three_kinds_from_files_in_one_run(ernie, runner, monkeypatch):
    """A reader for the data, a callback, and a reward function that a resumed run must find unchanged."""
    monkeypatch.chdir(runner.directory)
    Path("rows.ini").write_text("".join(ROWS.format(number=number) for number in range(8)))
    shutil.copy(EXAMPLES / "shorter_reward.py", "reward.py")
    words = [word for word in runner.words(data__train="rows.ini", train__max_steps=4) if word != "method.name=sft"]
    words += ["method.name=grpo", "method.group_size=2", "method.max_new_tokens=4", "rewards.shorter.penalty=0.5"]
    files = ["--plugin", EXAMPLES / "ini_reader.py", f"--plugin={BEST}", "--plugin", "reward.py"]
    command = ["run", *words, "callbacks=[best-loss]", *files]
    done = ernie(*command, "run.until=2")
    assert done.code == Exit.PREEMPTED, done.err
    losses = {event["step"]: event["loss"] for event in runner.events("step")}
    best = json.loads(Path("out/best_loss.json").read_text())
    assert best == {"step": best["step"], "loss": min(losses.values())}
    assert runner.events("step")[0]["reward/shorter"] <= 1

    Path("reward.py").write_text(Path("reward.py").read_text() + "# another one\n")
    changed = ernie(*command)
    assert changed.code == Exit.USAGE
    assert "reward.py" in changed.err
    assert "run.accept_changes=[plugins]" in changed.err
    assert ernie(*command, "run.accept_changes=[plugins]").code == Exit.OK
    assert runner.events("step")[-1]["step"] == 4


def test_a_schedule_from_a_file(ernie, runner):
    """Rates by the formula, with a warm-up and a floor, also behind an interruption; other settings are another run."""
    words = runner.words(train__max_steps=6, train__learning_rate=0.01, train__min_lr=0.002, train__warmup_steps=2)
    words = [*words, "--plugin", EXAMPLES / "rex_schedule.py", "train.schedule=rex"]
    assert ernie("run", *words, "schedules.rex.bend=0.8", "run.until=3").code == Exit.PREEMPTED
    refused = ernie("run", *words, "schedules.rex.bend=0.5")
    assert refused.code == Exit.USAGE
    assert "schedules.rex.bend" in refused.err
    assert ernie("run", *words, "schedules.rex.bend=0.8").code == Exit.OK
    left = [(1 - q) / (1 - 0.8 * q) for q in (0, 0.25, 0.5, 0.75)]
    expected = [0.005, 0.01, *(0.002 + 0.008 * factor for factor in left)]
    assert [event["lr"] for event in runner.events("step")] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["train.schedule=rexx"], "no schedule has this name; did you mean rex?"),
        (["train.schedule=rexx:rex"], "rexx"),
        (["schedules.rex.bend=0.1"], "train.schedule is linear; remove this, or write train.schedule=rex"),
        (["train.schedule=rex", "schedules.rex.bent=0.1"], "did you mean schedules.rex.bend?"),
    ],
)
def test_a_schedule_that_is_not_there(ernie, runner, settings, message):
    words = runner.words(train__schedule="linear")
    refused = ernie("run", *words, "--plugin", EXAMPLES / "rex_schedule.py", *settings)
    assert refused.code != Exit.OK
    assert message in refused.err


def test_resolved_settings_name_the_file_with_its_hash(ernie, runner, monkeypatch):
    monkeypatch.chdir(runner.directory)
    shutil.copy(BEST, "mine.py")
    digest = hashlib.sha256(BEST.read_bytes()).hexdigest()
    assert ernie("run", *runner.words(train__max_steps=1), "callbacks=[best-loss]", "--plugin", "mine.py").code == 0
    resolved = Path("out/resolved.yaml")
    assert "plugins: [{path: mine.py, sha256: " in resolved.read_text()
    assert digest in resolved.read_text()
    assert f"mine.py sha256:{digest[:16]}" in resolved.read_text()
    again = ["run", resolved, "--dry-run"]
    assert ernie(*again).code == Exit.OK  # it was named on a command line before

    monkeypatch.setenv("XDG_CACHE_HOME", str(runner.directory / "somebody-elses"))
    refused = ernie(*again)
    assert refused.code == Exit.USAGE
    assert "these settings name Python code, mine.py, that you have not named yourself" in refused.err
    assert "--plugin mine.py" in refused.err
    assert ernie(*again, "--plugin", "mine.py").code == Exit.OK
    Path("mine.py").write_text(BEST.read_text() + "# changed\n")
    changed = ernie(*again)
    assert changed.code == Exit.USAGE
    assert "resolved.yaml:" in changed.err
    assert digest in changed.err


def test_a_file_that_settings_name_is_not_run_before_the_user_names_it(ernie, runner, monkeypatch):
    monkeypatch.chdir(runner.directory)
    Path("evil.py").write_text("import pathlib; pathlib.Path('was-run').touch()\n" + BEST.read_text())
    Path("run.yaml").write_text("plugins: [evil.py]\ncallbacks: [best-loss]\nmodel: ernie45\nmethod: sft\n")
    Path("above.yaml").write_text("extends: run.yaml\n")
    for file in ("run.yaml", "above.yaml"):
        refused = ernie("config", "show", file)
        assert refused.code == Exit.USAGE
        assert "run.yaml:1: plugins" in refused.err
    assert not Path("was-run").exists()
    assert ernie("config", "show", "run.yaml", "--plugin", "evil.py").code == Exit.OK
    assert ernie("config", "show", "above.yaml").code == Exit.OK
    assert "best-loss" not in {entry.name for entry in registry.entries("callback") if "evil" not in entry.origin()}
    plain = ernie("config", "show", "model=ernie45", "method=sft", "callbacks=[best-loss]")
    assert plain.code == Exit.USAGE  # what other settings named is not there


@pytest.mark.slow
def test_ranks_and_data_workers_have_the_plugins_too(runner, run_ernie):
    (runner.directory / "both.py").write_text(
        BEST.read_text() + (ROOT / "docs/examples/data.py").read_text().replace("plugin =", "questions =")
    )
    rows = [json.dumps({"q": f"say {number}", "a": f"{number} is said"}) for number in range(12)]
    (runner.directory / "rows.jsonl").write_text("\n".join(rows))
    words = runner.words(data__train=runner.directory / "rows.jsonl", train__max_steps=2, data__format="questions")
    words += ["data.workers=1", "parallel=hybrid", "launcher.nproc=2", "callbacks=[best-loss]"]
    done = run_ernie("run", *words, "--plugin", "both.py", cwd=runner.directory)
    assert done.code == Exit.OK, done.err
    assert (runner.directory / "out" / "best_loss.json").is_file()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "the file has no plugin object"),
        ("def (", "SyntaxError"),
        (
            "from erniecore.api import Plugin\nclass P(Plugin):\n    kind, name = 'callbac', 'x'\nplugin = P()",
            "cannot be used",
        ),
    ],
)
def test_what_is_no_plugin_file_says_why(ernie, tmp_path, text, message):
    file = tmp_path / "mine.py"
    file.write_text(text)
    done = ernie("plugins", "--plugin", file)
    assert done.code == PluginBroken.exit_code
    assert message in done.err
    assert str(file) in done.err


def test_words_after_plugin_that_are_no_file(ernie, tmp_path):
    assert "cannot read the plugin file" in ernie("plugins", "--plugin", tmp_path / "none.py").err
    assert "--plugin needs a file" in ernie("plugins", "--plugin").err
    assert "not a Python file" in ernie("plugins", "--plugin", tmp_path).err


def test_a_file_becomes_a_distribution(ernie, tmp_path, site):
    file = tmp_path / "two_things.py"
    file.write_text(
        BEST.read_text().replace("plugin =", "best =")
        + (EXAMPLES / "shorter_reward.py").read_text().replace("plugin =", "reward =")
    )
    out = tmp_path / "made"
    done = ernie("new", "plugin", "--from", file, "--out", out)
    assert done.code == Exit.OK, done.err
    package = out / "erniecore_two_things"
    assert (package / "plugin.py").read_text() == file.read_text()
    points = tomllib.loads((out / "pyproject.toml").read_text())["project"]["entry-points"]
    assert points == {
        "erniecore.callbacks": {"best-loss": "erniecore_two_things.plugin:best"},
        "erniecore.rewards": {"shorter": "erniecore_two_things.plugin:reward"},
    }
    assert (out / "tests" / "test_conformance.py").read_text().count("def test_") == 2
    site.add("erniecore-two-things", points)
    shutil.copytree(package, site.path / "erniecore_two_things")
    for kind, name in (("callback", "best-loss"), ("reward", "shorter")):
        assert registry.load(kind, name).name == name
    assert ernie("new", "plugin", "--from", file, "--kind", "reward").code == Exit.USAGE
