"""resolved.yaml repeats a run; explanations, differences and schema. Plugins: the ``toys`` fixture."""

import json
import subprocess

import pytest
from erniecore_config.explain import differences, explain, schema

from erniecore.config.compose import load
from erniecore.config.resolved import git_revision, resolved_text, write_resolved
from erniecore.errors import UsageError

FLAGS = {"model": "toy", "method": "prefer", "adapter": "low", "callback": ["watch"], "data": ["a b.jsonl", "c"]}
WORDS = [
    "model.size=small",
    "method.beta=1e-5",
    "run.name='on'",
    "model.architecture={x.y: [1, {z: null}], '1': 5e-300}",
]


def written(tmp_path, loaded, **facts):
    return write_resolved(loaded, tmp_path / "resolved.yaml", facts)


def test_it_reproduces_the_settings(toys, tmp_path):
    first = load(None, WORDS, FLAGS, {})
    second = load(written(tmp_path, first), [], {}, {})
    assert second.settings == first.settings
    assert resolved_text(second, {}).count("\n") == resolved_text(first, {}).count("\n")


@pytest.mark.parametrize(
    "name", ["", "on", "null", "1e5", "a: b # c", "é\u2028\x85", '"', "\\n", "0o7", "-", "~", "😀"]
)
def test_any_text_survives(toys, tmp_path, name):
    first = load(None, [], {**FLAGS, "out": name}, {})
    assert load(written(tmp_path, first), [], {}, {}).settings.run.out == name


def test_every_value_has_its_source(toys, tmp_path):
    text = written(tmp_path, load(None, WORDS, FLAGS, {"ERNIE_TRAIN__EPOCHS": "2"})).read_text()
    lines = [line.strip() for line in text.splitlines()]
    assert "beta: 1e-05  # command line" in lines
    assert "epochs: 2.0  # environment ERNIE_TRAIN__EPOCHS" in lines
    assert "hidden_size: 16  # recipe toy/small:4" in lines
    assert "seed: 42  # default" in lines
    assert all("  # " in line for line in lines if line and not line.startswith("#") and not line.endswith(":"))


def test_the_header_says_what_took_part(toys, tmp_path):
    loaded = load(None, [], FLAGS, {}, command=["/bin/ernie", "run", "--out", "a b"])
    header = written(tmp_path, loaded, paddle="build 7", note="two\nlines").read_text().split("\n\n")[0].splitlines()
    facts = dict(line.removeprefix("# ").split(": ", 1) for line in header[1:])
    assert facts["command"] == "ernie run --out 'a b'"
    assert "toys 1.0" in facts["plugins"]
    assert facts["paddle"] == "build 7"
    assert facts["note"] == "two lines"
    assert {"erniecore", "python", "seed"} <= set(facts)


def test_git_revision_of_a_changed_tree(tmp_path):
    def git(*words):
        subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)

    assert git_revision(tmp_path) == ""
    git("init", "-q")
    assert git_revision(tmp_path) == ""  # no commit yet
    (tmp_path / "f").write_text("1")
    git("add", "f")
    git("-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "x")
    clean = git_revision(tmp_path)
    assert len(clean) == 40
    (tmp_path / "f").write_text("2")
    assert git_revision(tmp_path) == clean + "+changes"


# ---- explain


def test_a_core_key():
    (found,) = explain("train.batch_size")
    assert (found.owner, found.type, found.default) == ("erniecore", "integer ≥ 1", "1")


@pytest.mark.parametrize(
    ("key", "type_text", "default"),
    [
        ("data.train", "list of {path, format, weight, epochs}", "[]"),
        ("data.eval_fraction", "number ≥ 0 and < 1", "0.0"),
        ("data.shuffle", "true or false", "true"),
        ("optimizer.moments", "one of `float32`, `bfloat16`", "float32"),
        ("run.name", "text", '""'),
        ("model.architecture", "mapping", "{}"),
        ("callbacks.watch.port", "integer ≥ 1", "80"),
    ],
)
def test_types_and_defaults_in_words(toys, key, type_text, default):
    assert (type_text, default) in {(e.type, e.default) for e in explain(key)}


def test_a_key_of_several_plugins_names_each_owner(toys):
    toys.add(
        "more",
        {"erniecore.methods": {"more": "more_plugin:plugin"}},
        {"more_plugin.py": "import toys.plugin as t\nclass M(t.Prefer):\n    name = 'more'\nplugin = M()\n"},
    )
    assert {e.owner for e in explain("method.beta")} >= {"method more", "method prefer"}


@pytest.mark.parametrize(
    ("key", "close"),
    [("train.batchsize", "train.batch_size"), ("train.beta", "method.beta"), ("port", "callbacks.watch.port")],
)
def test_an_unknown_key_has_the_nearest(toys, key, close):
    with pytest.raises(UsageError) as caught:
        explain(key)
    assert caught.value.next == f"ernie config explain {close}"


def test_a_section_lists_its_keys():
    with pytest.raises(UsageError) as caught:
        explain("log")
    assert caught.value.expected == "log.every, log.report"


# ---- differences, schema, reference


def test_differences_include_keys_of_one_side(toys):
    left = load(None, ["train.batch_size=2"], {"model": "toy", "method": "prefer"}, {})
    right = load(None, [], {"model": "toy", "method": "plain"}, {})
    assert differences(left, right) == [
        ("train.batch_size", 2, 1),
        ("method.name", "prefer", "plain"),
        ("method.beta", 0.1, None),
        ("method.label_smoothing", 0.0, None),
        ("method.neftune", None, 0.0),
    ]


def test_the_schema_knows_the_plugins_keys(toys):
    found = schema(load(None, [], FLAGS, {}).plugins)
    section = found["properties"]["method"]["anyOf"][1]
    assert set(section["properties"]) == {"name", "beta", "label_smoothing"}
    assert section["additionalProperties"] is False
    assert found["properties"]["quantizer"]["type"] == "null"
    assert "required" not in found
    assert "watch" in found["properties"]["callbacks"]["anyOf"][1]["properties"]
    json.dumps(found)
