"""A new run from the page: text and form are one document, errors and plan are those of the command, nothing leaves the roots."""

import json
import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Literal, NamedTuple

import pytest
import yaml
from erniecore_webui import run_form
from erniecore_webui.actions import ERNIE, Result
from erniecore_webui.drafts import arguments, judged
from erniecore_webui.run_form import chosen, field_of, groups, shown
from erniecore_webui.yaml_edits import changed, flat, names_of, read, with_names

from erniecore.api import Field, Plugin, Section, UsageError, install_command
from erniecore.api.settings import load, values

TEXT = """# ours
model: {path: model}  # a base
method: sft
data:
  train:
    - path: rows.jsonl   # one
    - other.jsonl
  # the longest
  max_seq_len: 96
train: {max_steps: 5}
"""
EDITS = [
    ("data.max_seq_len", "128", "  max_seq_len: 96", "  max_seq_len: 128"),
    ("data.train", "[a.jsonl]", "  train:\n    - path: rows.jsonl   # one\n    - other.jsonl", "  train: [a.jsonl]"),
    ("data.format", "messages", "  max_seq_len: 96\n", "  max_seq_len: 96\n  format: messages\n"),
    ("train.epochs", "2", "{max_steps: 5}", "{max_steps: 5, epochs: 2}"),
    ("train.max_steps", None, "train: {max_steps: 5}\n", ""),
    ("method.name", "dpo", "method: sft", "method: dpo"),
    ("method.beta", "0.2", "method: sft", "method: {name: sft, beta: 0.2}"),
    ("method.name", None, "method: sft\n", ""),
    ("data.max_seq_len", None, "  max_seq_len: 96\n", ""),
    ("adapter.name", "lora", "{max_steps: 5}\n", "{max_steps: 5}\nadapter:\n  name: lora\n"),
    ("run.seed", None, "", ""),
    ("callbacks.visualdl.every", "3", "{max_steps: 5}\n", "{max_steps: 5}\ncallbacks:\n  visualdl: {every: 3}\n"),
    ("data.mix.deep", "3", "  max_seq_len: 96\n", "  max_seq_len: 96\n  mix: {deep: 3}\n"),
]


@pytest.mark.parametrize(("key", "value", "old", "new"), EDITS)
def test_a_changed_setting_leaves_the_rest_as_it_was_written(key, value, old, new):
    assert changed(TEXT, key, value) == TEXT.replace(old, new, 1)


@pytest.mark.parametrize(
    "text", ["", "{}", "{model: x}", "train:\n", "train: {}", "train: {max_steps: 1, epochs: 2}", "train:\n  epochs: 3"]
)
def test_settings_come_and_go_in_every_spelling(text):
    there = changed(text, "train.max_steps", "7")
    assert flat(read(there))["train.max_steps"] == "7"
    assert "train.max_steps" not in flat(read(changed(there, "train.max_steps", None)))
    assert {**flat(read(there)), **flat(read(text))}.keys() == flat(read(there)).keys()


CALLBACKS = [
    "callbacks: [a, b]",
    "callbacks: {a: {}, b: {}}",
    "callbacks:\n  a:\n  b: {}",
    "{callbacks: [a, b]}",
    "callbacks:\n- a\n- b",
]


@pytest.mark.parametrize("text", CALLBACKS)
def test_plugins_of_a_list_and_their_own_settings_come_and_go_in_every_spelling(text):
    """Taking one away leaves what is written for the others."""
    deep = changed(text, ("callbacks", "b", "every"), "3")
    assert read(deep)["callbacks"] == {"a": read(deep)["callbacks"]["a"], "b": {"every": "3"}}
    assert names_of(read(changed(deep, ("callbacks", "b", "every"), None))["callbacks"]) == ["a", "b"]
    fewer = with_names(with_names(deep, "callbacks", ["b", "c"]), "callbacks", ["b", "c"])
    assert read(fewer)["callbacks"] == {"b": {"every": "3"}, "c": {}}
    assert "callbacks" not in read(with_names(fewer, "callbacks", []))
    assert names_of(read(with_names(text, "callbacks", ["c"]))["callbacks"]) == ["c"]
    assert names_of("x") == ["x"]
    with pytest.raises(UsageError, match="only you"):
        changed("callbacks: [{a: {every: 1}}]", ("callbacks", "a", "every"), "2")


class Inner(Section):
    depth: int = Field(2, ge=1, description="Seconds.")


class Outer(Section):
    inner: Inner = Field(default_factory=Inner, description="Settings in settings.")
    maybe: Inner | None = Field(None, description="The same or nothing.")
    tags: list[Literal["a", "b"]] = Field([], description="Some of them.")
    plain: float = Field(1.0, description="Completions are not its unit.")


class Nested(Plugin):
    kind, name, summary, Config = "callback", "nested", "has settings in its settings", Outer


def test_every_key_of_the_chosen_plugins_is_a_field_also_those_in_keys(monkeypatch):
    load_all = run_form.loadable
    monkeypatch.setattr(
        run_form, "loadable", lambda kind: [*load_all(kind), *([Nested()] if kind == "callback" else [])]
    )
    settings = read(
        "callbacks: [nested, visualdl]\nmethod: grpo\nrewards: {regex: {pattern: x}}\noptimizer: muon\nparallel: hybrid\n"
        "data: {train: [{path: a, format: alpaca}]}\ndevice: xpu\n"
    )
    form = groups(chosen(settings, "ernie45-moe"))
    fields = {field.key: field for group in form for field in group.fields}
    assert {
        "callbacks.nested.inner.depth", "callbacks.nested.maybe.depth", "callbacks.visualdl.every", "rewards.regex.pattern",
        "formats.alpaca.columns", "optimizer.momentum", "parallel.tensor", "model.capacity", "adapter.name", "device.index",
    } <= fields.keys()  # fmt: skip
    assert "callbacks.nested.inner" not in fields
    tags, inner = fields["callbacks.nested.tags"], fields["callbacks.nested.inner.depth"]
    assert (tags.choices, tags.many, tags.yaml("a, b")) == (("a", "b"), True, "[a, b]")
    assert (inner.unit, inner.default, fields["callbacks.nested.plain"].unit) == ("seconds", "2", "")
    assert (fields["data.max_seq_len"].unit, fields["train.max_steps"].unit) == ("tokens", "steps")
    assert {"cosine", "wsd"} <= set(fields["train.schedule"].choices)
    assert {"auto", "messages"} <= set(fields["data.format"].choices)
    assert "console" not in fields["callbacks"].choices
    assert "rewards" in {field.key for field in form[0].fields}
    assert shown(form, settings)["callbacks"] == "nested, visualdl"
    assert shown(form, settings)["rewards.regex.pattern"] == "x"
    assert field_of(form, "data.train[0].path").key == "data.train"
    assert field_of(form, "callbacks.visualdl.evry").key == "callbacks"


def test_a_plugin_that_is_missing_shows_its_install_line_and_one_that_is_unusable_why(browser, monkeypatch):
    class Old(NamedTuple):
        name: str = "too-old"
        status: str = "incompatible"
        requires_core: str = "<0.1"

    here = run_form.entries
    monkeypatch.setattr(run_form, "known", lambda: {("callback", "acme"): "erniecore-acme"})
    monkeypatch.setattr(run_form, "entries", lambda kind: [*here(kind), Old()])
    page = browser.get("/new").text
    assert install_command("erniecore-acme") in page
    assert "needs erniecore &lt;0.1" in page


@pytest.mark.parametrize("text", ["a: [", "- a", "a: b: c", "x", "a: &b [*b]\n" * 2 + "\t-", "[" * 5000])
def test_what_is_no_mapping_is_said_with_its_line(text):
    with pytest.raises(UsageError):
        changed(text, "train.max_steps", "7")


def test_the_command_line_says_the_same_as_the_text(talker, tmp_path, monkeypatch):
    monkeypatch.chdir(talker)
    text = TEXT.replace("    - other.jsonl\n", "") + 'log: {every: "7"}\nrun: {seed: 0o17}\n'
    text = text.replace('"7"', "7")
    (tmp_path / "a.yaml").write_text(text)
    of_file, of_line = load(tmp_path / "a.yaml", environ={}), load(None, arguments(text), environ={})
    assert dict(values(of_file.settings)) == dict(values(of_line.settings))
    assert dict(values(of_file.settings))["data", "train"]


def test_the_form_has_what_is_installed_with_its_defaults():
    form = groups(chosen({"method": "dpo", "adapter": {"name": "lora"}}))
    rate = field_of(form, "train.learning_rate")
    plain = field_of(groups(chosen({"method": "sft"})), "train.learning_rate")
    assert (rate.default, rate.type) != (plain.default, "")
    assert "dpo" in field_of(form, "method.name").choices
    assert field_of(form, "adapter.rank").type.startswith("integer")
    assert field_of(form, "method.beta").description
    assert field_of(form, "run.out") is None
    assert form[0].fields[0].key == "model.path"
    seen = [field.key for group in form for field in group.fields]
    assert len(seen) == len(set(seen)) > 80


def test_a_field_changes_the_text_and_the_errors_are_those_of_the_command(browser, site, talker, monkeypatch):
    (site.home / "rows.jsonl").write_bytes((talker / "rows.jsonl").read_bytes())
    (site.home / "model").symlink_to(talker / "model")
    site.models._roots.append(talker.resolve())
    text = TEXT.replace("    - other.jsonl\n", "")
    good = browser.post(
        "/new/check", data={"text": text, "changes": '[["data.format", "messages"]]', "name": "a b"}
    ).json()
    assert "  format: messages\n" in good["text"]
    assert good["text"].startswith("# ours\n")
    assert (good["errors"], good["general"]) == ({}, [])
    assert good["values"]["data.train"] == "rows.jsonl"
    assert "26,080" in good["plan"]
    assert shlex.split(good["command"])[-2:] == ["--out", "runs/a b"]
    assert 'data-key="method.name"' in good["fields"]
    bad = good["text"].replace("5}", "x, batch_size: -1}").replace("max_seq_len", "max_seq_leng")
    found = browser.post("/new/check", data={"text": bad, "plugins": good["plugins"]}).json()
    assert {key: [error["text"] for error in errors] for key, errors in found["errors"].items()} == {
        "train.max_steps": ["line 10: must be an integer (got 'x')"],
        "train.batch_size": ["line 10: must be ≥ 1 (got -1)"],
    }
    (told,) = found["general"]
    assert told["text"] == "data.max_seq_leng: line 8: unknown key; did you mean data.max_seq_len? (got 96)"
    assert told["code"] == found["errors"]["train.max_steps"][0]["code"] == "ERN-C010"
    assert "Wrong settings" in browser.get("/errors/ERN-C010").text
    assert not found["plan"]
    assert "fields" not in found
    lost = browser.post("/new/check", data={"text": text.replace("path: model", "path: modell")}).json()
    (told,) = lost["errors"]["model.path"]
    assert (told["code"], told["fix"][:4]) == ("ERN-K020", "give")
    lost = browser.post("/new/check", data={"text": text.replace("sft", "sftt")}).json()
    assert lost["errors"]["method.name"][0]["next"] == "ernie plugins --kind method"
    assert browser.post("/new/check", data={"text": "a: ["}).json()["general"]
    assert not list((site.state / "drafts").iterdir())


WRONG = {
    "integer": "1.5",
    "number": "x",
    "list of integer": "[a]",
    "list of number": "[a]",
    "mapping": "3",
    "list of text": "3",
}


def wrong_value(field):
    """What no value of this field is; None where it takes every text, or names plugins."""
    if field.names_plugins or field.key.endswith(".name"):
        return None
    if field.choices and field.type != "text":
        return "nothing-of-these"
    return next((value for kind, value in WRONG.items() if re.match(kind + r"\b", field.type)), None)


@pytest.mark.parametrize("start", [
    {"method": "sft", "adapter": "lora", "quantizer": "wint8"},
    {"method": "grpo", "optimizer": "muon", "parallel": "hybrid", "rewards": ["exact-match"]},
    {"method": "dpo", "adapter": "oft", "callbacks": ["eval-generate"], "launcher": "elastic-nodes"},
])  # fmt: skip
def test_the_error_of_every_field_stands_at_it(browser, site, talker, start):
    (site.home / "model").symlink_to(talker / "model")
    site.models._roots.append(talker.resolve())
    fields = [field for group in groups(chosen(start)) for field in group.fields]
    settings = {kind: {"name": name} if isinstance(name, str) else name for kind, name in start.items()}
    settings["model"] = {"path": "model"}
    wrong = {field.key: value for field in fields if (value := wrong_value(field)) is not None}
    assert len(wrong) > 60
    text = with_wrong(yaml.safe_dump(settings), fields, wrong)
    found = browser.post("/new/check", data={"text": text}).json()
    at_fields = {key: [error["text"] for error in errors] for key, errors in found["errors"].items()}
    assert at_fields.keys() >= wrong.keys(), (wrong.keys() - at_fields.keys(), found["general"])
    assert all(re.search(r"\bline \d+: ", at_fields[key][0]) for key in wrong)
    assert not found["general"]


@pytest.mark.parametrize(("text", "key"), [
    ("method: sft\ndata: {train: rows.jsonl}", "model.path"), ("model: {path: model}\ndata: {train: rows.jsonl}", "method.name"),
    ("model: {path: model}\nmethod: grpo\ndata: {train: rows.jsonl}", "rewards"),
    ("model: {path: model}\nmethod: sft", "data.train"),
    ("model: {path: model}\nmethod: sft\ndata: {train: gone.jsonl}", "data.train"),
    ("model: {path: model}\nmethod: sft\nadapter: loro\ndata: {train: rows.jsonl}", "adapter.name"),
    ("model: {path: model}\nmethod: sft\ncallbacks: [visualdll]\ndata: {train: rows.jsonl}", "callbacks"),
])  # fmt: skip
def test_what_is_left_out_or_not_there_stands_at_its_field(browser, site, talker, text, key):
    (site.home / "rows.jsonl").write_bytes((talker / "rows.jsonl").read_bytes())
    (site.home / "model").symlink_to(talker / "model")
    site.models._roots.append(talker.resolve())
    found = browser.post("/new/check", data={"text": text}).json()
    assert (list(found["errors"]), found["general"]) == ([key], [])
    assert not found["plan"]


def test_rows_that_cannot_be_read_stand_at_their_field_before_a_run_begins(browser, site, talker):
    (site.home / "model").symlink_to(talker / "model")
    (site.home / "rows.jsonl").write_text('{"a": 1}\n')
    site.models._roots.append(talker.resolve())
    for steps in ("", "train: {max_steps: 3}\n"):
        text = "model: {path: model}\nmethod: sft\ndata: {train: rows.jsonl, max_seq_len: 96}\n" + steps
        assert browser.post("/new/check", data={"text": text}).json()["count"]
        told = browser.post("/new/steps", data={"text": text}).json()
        assert [error["code"] for error in told["errors"]["data.train"]] == ["ERN-D051"]
    (site.home / "rows.jsonl").write_bytes((talker / "rows.jsonl").read_bytes())
    told = browser.post("/new/steps", data={"text": text}).json()
    assert told == {"plan": "", "errors": {}, "general": []}  # max_steps says how many there are


def with_wrong(text, fields, wrong):
    for field in fields:
        if field.key in wrong:
            text = changed(text, field.path, wrong[field.key])
    return text


@pytest.mark.parametrize("text", [
    "model: {path: /etc}", "data: {train: [{path: ../x.jsonl}]}", "extends: /etc/x.yaml", "extends: ../../../x.yaml",
    "data: {cache: ~root/x}", "run: {out: here}", "plugins: [/tmp/x.py]", "data: {train: [link.jsonl]}",
])  # fmt: skip
def test_a_path_out_of_the_roots_is_refused_before_any_command_sees_it(browser, site, monkeypatch, text):
    (site.home / "link.jsonl").symlink_to("/etc/passwd")
    monkeypatch.setattr(site.actions, "asked", lambda *a: pytest.fail("a command saw it"))
    assert judged(site, text).general or judged(site, text).errors
    assert browser.post("/new/start", data={"text": text, "name": "x"}).status_code == 400
    assert not site.tasks.all()
    assert not (site.root / "settings").exists()


LAUGHS = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 8)}]\n" for before, name in pairwise("abcdefgh")
)


@pytest.mark.parametrize("text", [
    "? [a, b]\n: 3\n", "model: {? {a: b} : c}", "a: &x [*x]", "a: &x {b: *x}", 'a: {b: "\\ud800"}', '"\\ud800": {b: c}',
    "a: {b: 1}\na: {b: 2}", LAUGHS,
], ids=range(8))  # fmt: skip
def test_yaml_that_no_settings_are_is_an_error_of_the_page_at_once(browser, site, monkeypatch, text):
    """No error of the server, and 400 bytes of aliases are not followed to their 16 million values."""
    monkeypatch.setattr(site.actions, "asked", lambda *a: pytest.fail("a command saw it"))
    assert browser.post("/new/check", data={"text": text}).json()["general"]
    assert browser.post("/new/start", data={"text": text, "name": "x"}).status_code == 400


def test_a_value_that_is_half_typed_is_an_error_of_its_field(browser, site, monkeypatch):
    monkeypatch.setattr(site.actions, "asked", lambda *a: Result(0, '{"parameters": {}}'))
    for value in ("[a", "[*a]", "[a], run: {out: b}", "[a]}, run: {out: b}, q: {a: [b]", "a\n- b"):
        for text in ("data: {train: [b]}", "data:\n  train: [b]\n", "{data: {train: [b]}, run: {seed: 1}}"):
            found = browser.post(
                "/new/check", data={"text": text, "changes": json.dumps([["data.train", value]])}
            ).json()
            assert found["general"] or found["errors"] or "out" not in flat(read(found["text"])), value
            assert "run.out" not in flat(read(found["text"]))
    assert changed("adapter: ~\n", "adapter.name", "lora") == "adapter: {name: lora}\n"
    (site.home / "b").touch()
    assert judged(site, "adapter: ~\nmodel: {path: ~}\ndata: {train: b}").plan  # that is no path, it is null


def test_of_two_tabs_one_gets_the_name(browser, site, monkeypatch):
    """The second one's settings were those of the first one's run, which had not begun to read them."""
    monkeypatch.setattr(site.tasks, "advance", lambda: None)  # it waits
    monkeypatch.setattr(site.actions, "asked", lambda *a: Result(0, '{"parameters": {}}'))
    (site.home / "b").touch()
    with ThreadPoolExecutor(4) as pool:
        texts = [f"data: {{train: b}}\nrun: {{seed: {number}}}" for number in range(8)]
        answers = list(pool.map(lambda text: browser.post("/new/start", data={"text": text, "name": "x"}), texts))
    assert sorted(answer.status_code for answer in answers) == [200, *[400] * 7]
    winner = next(text for text, answer in zip(texts, answers, strict=True) if answer.status_code == 200)
    assert (site.root / "settings/x.yaml").read_text() == winner + "\n"
    (task,) = site.tasks.all()
    (task.directory / "exit.json").write_text('{"code": 2, "time": 1}')  # a run that did not begin leaves the name
    assert browser.post("/new/start", data={"text": texts[0], "name": "x"}).status_code == 200


def test_a_run_starts_at_once_or_in_the_queue(browser, site, monkeypatch):
    monkeypatch.setattr(site.tasks, "advance", lambda: None)  # it waits
    monkeypatch.setattr(site.actions, "asked", lambda *a: Result(0, '{"parameters": {}}'))
    (site.home / "b").touch()
    text = "# ours\r\nmethod: sft\r\ndata: {train: b}\r\ndevice: {name: cuda}"
    for name, when in (("one", "now"), ("two", "queue"), ("three", "front")):
        answer = browser.post("/new/start", data={"text": text, "name": name, "when": when})
        assert f"ernie run runs/settings/{name}.yaml --out runs/{name}" in answer.text
    tasks = site.tasks.all()
    assert [(t.run, t.device) for t in tasks] == [("three", "cuda"), ("one", "cuda"), ("two", "cuda")]
    assert list(tasks[0].argv) == [*ERNIE, "run", "runs/settings/three.yaml", "--out", "runs/three"]
    assert (site.root / "settings/one.yaml").read_text() == text.replace("\r", "") + "\n"
    for name in ("first", "../x", "", "models", "-x"):
        assert browser.post("/new/start", data={"text": text, "name": name}).status_code == 400
    monkeypatch.setattr(
        site.actions, "asked", lambda *a: Result(2, '{"event": "error", "error": {"code": "X", "message": "m"}}')
    )
    assert browser.post("/new/start", data={"text": text, "name": "four"}).status_code == 400
    assert len(site.tasks.all()) == 3
    (site.root / "one").mkdir()
    (site.root / "one/events.jsonl").touch()
    answer = browser.get(f"/new/started?task={tasks[1].name}", headers={"hx-request": "true"})
    assert answer.headers["hx-redirect"] == "/run/one"


def test_a_clone_has_what_was_set_for_the_run(browser, site):
    (site.root / "first/resolved.yaml").write_text(
        "run:\n  name: first  # command line\n  seed: 3  # a.yaml:1\ntrain:\n  max_steps: 5  # a.yaml:2\n"
        "  epochs: 1.0  # default\n"
        "data:\n  train: [{path: rows.jsonl}]  # a.yaml:3\nmethod:\n  name: sft  # a.yaml:4\n"
    )
    answer = browser.get("/new?from=first").text
    text = answer.partition("<textarea")[2].partition("\n")[2].partition("</textarea>")[0]
    assert yaml.safe_load(text) == {"run": {"seed": 3}, "train": {"max_steps": 5}, "method": {"name": "sft"},
                                    "data": {"train": [{"path": "rows.jsonl"}]}}  # fmt: skip
    assert 'value="first-1"' in answer
    assert browser.get("/new?from=nothing").status_code == 400


def test_settings_of_ten_megabytes_and_other_origins_are_refused(browser, stranger):
    assert browser.post("/new/check", data={"text": "x" * 10_000_000}).status_code == 413
    assert browser.post("/new/check", data={"text": "x: " + "y" * 300_000}).json()["general"]
    for headers in ({"origin": "http://evil.example"}, {"host": "evil.example"}, {"x-csrf-token": "no"}):
        assert browser.post("/new/start", data={"text": "", "name": "x"}, headers=headers).status_code == 403
    assert stranger.post("/new/start", data={"text": "", "name": "x"}).status_code == 401
