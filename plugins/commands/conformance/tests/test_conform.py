"""``ernie conform``: table, JSON, exit codes."""

import json

import pytest
from erniecore_conformance.checks import checks_for
from erniecore_conformance.mutants.every import TwoKinds
from erniecore_conformance.subjects import Subject

from erniecore import registry
from erniecore.api import Exit
from erniecore.cli.app import main


@pytest.fixture
def ernie(capsys):
    def run(*args):
        code = main(["conform", *args])
        return code, *capsys.readouterr()

    return run


def test_table_lists_every_check_and_counts(ernie):
    code, out, _ = ernie("parallel", "single")
    assert code == Exit.OK
    names = [line.split()[1] for line in out.splitlines() if line.startswith(("passed", "skipped"))]
    assert names == [check.name for check in checks_for("parallel")]
    skipped = sum(line.startswith("skipped") for line in out.splitlines())
    assert 0 < skipped < len(names)
    assert out.splitlines()[-1] == f"parallel single: {len(names) - skipped} passed, {skipped} skipped"


def test_json_has_rule_status_and_detail(ernie):
    code, out, _ = ernie("parallel", "single", "--check", "every_core_has_upper_bound", "--json")
    answer = json.loads(out)
    (check,) = answer["checks"]
    assert (code, answer["ok"]) == (Exit.OK, True)
    assert (check["status"], check["detail"]) == ("skipped", "part of the core")
    assert check["rule"]


def test_failed_check_exits_with_9(ernie, monkeypatch):
    subject = Subject(TwoKinds(), "server", "toy", "nowhere:plugin")
    monkeypatch.setattr(Subject, "installed", lambda kind, name: subject)
    code, out, _ = ernie("parallel", "single", "--check", "every_keeps_to_its_kind")
    assert code == Exit.PLUGIN
    assert "must not implement ernie_export" in out


def test_what_a_plugin_prints_does_not_spoil_the_json(ernie):
    code, out, _ = ernie("callback", "console", "--check", "callback_watches_a_whole_run", "--json")
    assert code == Exit.OK
    assert json.loads(out)["ok"]


def test_list_runs_nothing(ernie, monkeypatch):
    monkeypatch.setattr(registry, "load", lambda kind, name: pytest.fail("was loaded"))
    code, out, _ = ernie("model", "ernie45", "--list", "--json")
    assert code == Exit.OK
    assert "model_is_causal" in [row["check"] for row in json.loads(out)]


@pytest.mark.parametrize(
    ("args", "near"),
    [
        (("modle", "ernie45"), "model"),
        (("model", "ernie45x"), "ernie45"),
        (("model", "ernie45", "--check", "model_is_casual"), "model_is_causal"),
    ],
)
def test_unknown_words_get_the_nearest(ernie, args, near):
    code, _, err = ernie(*args)
    assert code == Exit.USAGE
    assert f"did you mean {near}?" in err
