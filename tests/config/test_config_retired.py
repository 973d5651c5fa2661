"""Retired keys and flags: every layer takes them as the new ones, warns, and names the new spelling."""

import pytest
import typer
from erniecore_catalog import retired
from erniecore_config import explain
from typer.testing import CliRunner

from erniecore.cli.app import build_cli
from erniecore.cli.group import MultiValueCommand
from erniecore.cli.options import NOTHING, Chosen, takes
from erniecore.config import compose, sources
from erniecore.config.tree import plain, retired_keys
from erniecore.errors import ConfigError
from erniecore.kinds import RUN_KINDS

GRPO = {"model": "ernie45", "method": "grpo"}
RENAMED = "scorers is deprecated and will be removed in the next minor version; use rewards"


def load(tmp_path, text="", words=(), flags=GRPO, environ=None):
    (tmp_path / "run.yaml").write_text(text)
    return compose.load(tmp_path / "run.yaml", words, flags, environ or {}, require=())


@pytest.mark.parametrize(
    ("given", "source"),
    [
        ({"text": "scorers:\n  exact-match: {weight: 2}\n"}, "run.yaml:2"),
        ({"text": "scorers: [exact-match: {weight: 2}]\n"}, "run.yaml:1"),
        ({"words": ["scorers.exact-match.weight=2"]}, "command line"),
        ({"environ": {"ERNIE_SCORERS__EXACT-MATCH__WEIGHT": "2"}}, "environment ERNIE_SCORERS__EXACT-MATCH__WEIGHT"),
    ],
)
def test_a_retired_section_is_read_as_the_new_one(tmp_path, given, source):
    result = load(tmp_path, **given)
    assert result.settings.rewards["exact-match"].weight == 2
    assert result.provenance["rewards.exact-match.weight"].endswith(source)
    (note,) = result.notes
    assert note.endswith(f"{source}: {RENAMED}")


def test_layers_meet_under_the_new_spelling(tmp_path):
    text = "scorers: {exact-match: {weight: 2, ignore_case: true}}\n"
    section = load(tmp_path, text, ["rewards.exact-match.weight=3"]).settings.rewards["exact-match"]
    assert (section.weight, section.ignore_case) == (3, True)


def test_settings_of_an_earlier_checkpoint_are_renamed(monkeypatch):
    monkeypatch.setattr(retired, "KEYS", {"scorers": "rewards", "a.old.x": "a.new", "a.gone": "b.here"})
    before = {"scorers": {"regex": {"weight": 1}}, "a": {"old": {"x": {"y": 1}}, "new": {"z": 2}, "gone": 3, "k": 4}}
    now, found = retired.renamed(before)
    assert now == {"rewards": {"regex": {"weight": 1}}, "a": {"new": {"y": 1, "z": 2}, "k": 4}, "b": {"here": 3}}
    assert found == list(retired.KEYS.items())
    assert before["scorers"]  # untouched


def test_the_new_spelling_warns_of_nothing(tmp_path):
    assert load(tmp_path, "rewards: [exact-match]\n").notes == ()


def test_both_spellings_in_one_file_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="retired spelling of rewards"):
        load(tmp_path, "rewards: [exact-match]\nscorers: [regex]\n")


def test_a_key_within_a_section_can_be_retired(monkeypatch):
    monkeypatch.setattr(retired, "KEYS", {"train.rate": "train.learning_rate"})
    tree = sources.merged(sources.command_line(["train.rate=1", "train.epochs=2"], {}))
    assert plain(tree) == {"train": {"epochs": 2, "learning_rate": 1}}
    assert retired_keys(tree) == (f"command line: {retired.warning('train.rate', 'train.learning_rate')}",)


def test_a_retired_key_is_explained_as_the_new_one():
    assert {e.key for e in explain.explain("scorers.regex.pattern")} == {"rewards.regex.pattern"}


@takes("reward", "data")
def command(chosen: Chosen = NOTHING, words: list[str] | None = typer.Argument(None)) -> None:  # noqa: B008
    """Prints what it got."""
    typer.echo(f"{chosen['reward']} {chosen['data']} {words}")


def invoke(*words):
    app = typer.Typer()
    app.command(cls=MultiValueCommand)(command)
    return CliRunner().invoke(app, words)


@pytest.mark.parametrize("typed", [["--scorer", "a", "b"], ["--scorer=a", "--reward", "b"]])
def test_a_retired_flag_is_the_new_one(typed):
    result = invoke(*typed, "--data", "f", "--", "--scorer")
    assert result.stdout == "['a', 'b'] ['f'] ['--scorer']\n"
    assert (
        result.stderr == "warning: --scorer is deprecated and will be removed in the next minor version; use --reward\n"
    )


def test_help_lists_no_retired_flag():
    text = invoke("--help").stdout
    assert "--reward" in text
    assert not [flag for flag in retired.FLAGS if flag in text]


def test_a_command_keeps_a_flag_of_its_own():
    assert retired.current_flags(["--scorer", "x"], {"--scorer"}) == (["--scorer", "x"], [])
    assert retired.current_flags(["--scorer", "x"], {"--reward", "--scorer"}) == (["--scorer", "x"], [])


def options_of(command, name="ernie", parent=None):
    """Every option of a command and of the commands below it."""
    yield from (option for parameter in command.params for option in parameter.opts)
    if isinstance(command, typer.core.TyperGroup):
        context = typer.Context(command, parent=parent, info_name=name)
        for below in command.list_commands(context):
            yield from options_of(command.get_command(context, below), below, context)


def test_the_table_leads_to_keys_and_flags_that_exist():
    known = {e.key for owner, section, cls in explain.owners() for e in explain.section_keys(owner, section, cls)}
    for old, new in retired.KEYS.items():
        chosen = new.removesuffix(".name") in RUN_KINDS
        assert chosen or any(key == new or key.startswith(new + ".") for key in known), new
        assert not any(key == old or key.startswith(old + ".") for key in known), old
    options = set(options_of(build_cli()))
    assert set(retired.FLAGS.values()) <= options
    assert not set(retired.FLAGS) & options
