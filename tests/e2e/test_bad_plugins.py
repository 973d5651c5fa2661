"""Plugins that clash, break or do not fit, as real distributions on the path; a run that names none is not disturbed."""

import pytest
from erniecore_catalog import install_command

from erniecore.errors import Exit

METHOD = """
from pathlib import Path
Path({mark!r}).touch()
from erniecore_sft.plugin import SftPlugin
class Twin(SftPlugin):
    name = {name!r}
    summary = "sft under another name"
plugin = Twin()
"""


@pytest.fixture
def words(runner):
    """A run without its method."""
    return ["run", *(w for w in runner.words(train__max_steps=1) if not w.startswith("method."))]


@pytest.fixture
def install(tmp_path):
    """A distribution with one method plugin: metadata and a module. Returns the variable that makes it installed."""
    places = []

    def make(distribution, name, code=METHOD, requires="erniecore>=0.1,<0.2"):
        module = distribution.replace("-", "_")
        place = tmp_path / distribution
        facts = place / f"{module}-1.0.dist-info"
        facts.mkdir(parents=True)
        (facts / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\nRequires-Dist: {requires}\n"
        )
        (facts / "entry_points.txt").write_text(f"[erniecore.methods]\n{name} = {module}:plugin\n")
        (place / f"{module}.py").write_text(code.format(mark=str(tmp_path / f"{module}.imported"), name=name))
        places.append(str(place))
        return {"PYTHONPATH": ":".join(places)}

    return make


def test_two_of_one_name_are_both_named_and_neither_is_imported(run_ernie, refused, words, install, tmp_path):
    install("rival-one", "twin")
    env = install("rival-two", "twin")
    outcome = run_ernie(*words, "--method", "twin", env=env)
    refused(outcome, Exit.PLUGIN, "command line: --method", "rival-one 1.0", "rival-two 1.0", remedy="rival-two:twin")
    assert not list(tmp_path.glob("*.imported"))


def test_distribution_and_name_choose_one_of_them(run_ernie, runner, words, install, tmp_path):
    install("rival-one", "twin")
    env = install("rival-two", "twin")
    outcome = run_ernie(*words, "--method", "rival-two:twin", env=env)
    assert outcome.code == 0, outcome.err
    assert [p.name for p in tmp_path.glob("*.imported")] == ["rival_two.imported"]
    again = run_ernie("run", runner.directory / "out" / "resolved.yaml", "train.max_steps=2", env=env)
    assert again.code == 0, again.err


def test_broken_one_is_named_with_its_distribution(run_ernie, refused, words, install):
    env = install("cracked-dist", "cracked", "import not_there_at_all")
    outcome = run_ernie(*words, "--method", "cracked", env=env)
    refused(outcome, Exit.PLUGIN, "cracked-dist 1.0", "not_there_at_all", remedy="repair or remove that distribution")


def test_broken_ones_do_not_disturb_a_run_that_names_none(run_ernie, words, install):
    install("cracked-dist", "cracked", "import not_there_at_all")
    install("ancient-dist", "ancient", requires="erniecore>=0.5,<0.6")
    env = install("hasty-dist", "hasty", "raise SystemExit(3)")
    assert run_ernie(*words, "--method", "sft", "--dry-run", env=env).code == 0
    assert run_ernie("plugins", env=env).code == 0


def test_one_for_another_core_is_refused_before_it_is_imported(run_ernie, refused, words, install, tmp_path):
    env = install("ancient-dist", "ancient", requires="erniecore>=0.5,<0.6")
    outcome = run_ernie(*words, "--method", "ancient", env=env)
    places = ("ancient-dist 1.0", "erniecore 0.1.0", "erniecore >=0.5,<0.6")
    refused(outcome, Exit.PLUGIN, *places, "install --upgrade ", remedy="ancient-dist")
    assert not list(tmp_path.glob("*.imported"))


def test_something_else_than_a_plugin_is_refused(run_ernie, refused, words, install):
    env = install("seven-dist", "seven", "plugin = 7")
    outcome = run_ernie(*words, "--method", "seven", env=env)
    refused(outcome, Exit.PLUGIN, "seven-dist 1.0 (seven_dist:plugin)", remedy="expect  an instance of Plugin")


def test_check_tells_the_broken_from_the_whole(run_ernie, install):
    env = install("cracked-dist", "cracked", "import not_there_at_all")
    outcome = run_ernie("plugins", "check", "--kind", "method", env=env)
    assert outcome.code == Exit.PLUGIN
    lines = {line.split()[1]: line for line in outcome.out.splitlines()[1:]}
    assert "broken" in lines["cracked"]
    assert "ok" in lines["sft"].split()


@pytest.mark.parametrize(
    ("given", "distribution"),
    [
        (["--method", "sft"], "erniecore-sft"),
        (["--method", "sft", "--model", "ernie45-moe"], "erniecore-ernie45-moe"),
        (["--method", "sft", "--callback", "visualdl"], "erniecore-visualdl"),
    ],
)
def test_what_is_not_installed_comes_with_its_pip_line(refuses, given, distribution):
    kept = {"erniecore-sft", "erniecore-ernie45", "erniecore-ernie45-moe"} - {distribution}
    words = ["run", *(given if "--model" in given else [*given, "--model", "ernie45"])]
    refuses(
        words,
        Exit.USAGE,
        "command line: --",
        remedy=install_command(distribution),
        env={"ERNIE_PLUGINS": ",".join(kept)},
    )
