"""Templates, plugins, patterns and bases of others: what never ends, grows without limit, ends the process or was exchanged."""

import json
import shutil
from pathlib import Path

import pytest
from guarded import guarded
from hostile_files import assert_refused, edit
from hostile_plugins import HOSTILE, install
from render_limits import BOMBS
from safetensors.numpy import load_file, save_file

from erniecore.errors import Exit


@pytest.mark.area("tokenizer, template")
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_template_without_an_end_is_an_error(answers, model, bomb):
    (model / "chat_template.jinja").write_text("\n" + BOMBS[bomb])
    assert_refused(answers(), {Exit.ENVIRONMENT, Exit.DATA, Exit.CHECKPOINT}, "chat_template.jinja")


ESCAPES = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ messages.append.__globals__ }}",
    "cycler": "{{ cycler.__init__.__globals__.os.system('touch escaped') }}",
    "format": "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "import": "{% import 'os' as os %}{{ os.system('touch escaped') }}",
    "include": "{% include '/etc/passwd' %}",
    "attribute": "{{ messages | attr('__class__') }}",
    "map": "{{ messages | map(attribute='__class__') | list }}",
}


@pytest.mark.area("tokenizer, template")
@pytest.mark.parametrize("escape", ESCAPES)
def test_a_template_reaches_nothing(answers, model, box, escape):
    (model / "chat_template.jinja").write_text(ESCAPES[escape] + "{{ messages[0].content }}")
    outcome = answers()
    assert_refused(outcome, {0, Exit.ENVIRONMENT, Exit.DATA})
    assert not list(box.rglob("escaped"))
    assert "root:" not in outcome.out + outcome.err


@pytest.mark.area("plugins that nobody named")
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("words", [["data", "check", "rows.jsonl", "--model", "model", "--method", "sft"],
                                   ["plugins", "list"]], ids=" ".join)  # fmt: skip
def test_a_plugin_that_nobody_named_hurts_no_command(ernie, site, model, rows, name, words):
    from erniecore import trial

    def impatient():
        trial.SECONDS = 1.0

    install(site, name, "good")
    outcome = ernie(*words, before=impatient)
    assert_refused(outcome, {0})
    if HOSTILE[name][1] and words[0] == "data":
        assert f"'{name}' of dist-{name} 1.0 is left out" in outcome.err


PATTERNS = {
    "one way or two": ("(a|a)+b", "a" * 100),
    "one or two": ("(a|aa)+$", "a" * 90 + "b"),
    "nested": ("(a+)+", "a" * 40 + "!"),
    "nested, anchored": ("^(a+)+$", "a" * 60 + "!"),
    "anything": ("(.|..)+[^!]!!", "a" * 200),
    "back reference": (r"(a*)*\1b", "a" * 80),
}


@pytest.mark.area("patterns of users")
@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_ends(imported, box, name):
    pattern, text = PATTERNS[name]

    def match():
        from erniecore_rl import rewards

        from erniecore.api.reward import Completion
        from erniecore.cli.render import show_error
        from erniecore.errors import ErnieError

        one = Completion("", text, text, "", "", True, 3)
        try:
            plugin = rewards.regex
            (value,) = plugin.ernie_compute_rewards(plugin.Config(pattern=pattern), [one])
        except ErnieError as error:
            show_error(error)
            return int(error.exit_code)
        return int(value not in (0.0, 1.0))

    assert_refused(guarded(match, box=box, cpu=20), {0, Exit.USAGE})


SETTINGS = ["train.max_steps=2", "data.max_seq_len=64", "train.batch_size=1", "eval.every=0"]
METHODS = {"sft": [], "lora": ["--adapter", "lora"], "dpo": [], "lora dpo": ["--adapter", "lora"]}


def change_config(model):
    edit(model / "config.json", rms_norm_eps=1e-3)


def change_weights(model):
    file = model / "model.safetensors"
    tensors = {name: (array * 1.5).astype(array.dtype) for name, array in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})
    (model / "erniecore_manifest.json").unlink(missing_ok=True)


def change_template(model):
    file = model / "chat_template.jinja"
    file.write_text(file.read_text() + "{# changed #}")


def change_tokenizer(model):
    file = model / "tokenizer_config.json"
    file.write_text(file.read_text() + "\n")


CHANGES = {"base config.json": change_config, "base model.safetensors": change_weights,
           "template chat_template.jinja": change_template, "tokenizer tokenizer_config.json": change_tokenizer}  # fmt: skip


@pytest.mark.area("changed base, tokenizer, template")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("method", METHODS)
def test_a_run_does_not_go_on_with_another_base(ernie, model, rows, box, method, change):
    data = rows
    if "dpo" in method:
        data = box / "pairs.jsonl"
        pairs = [{"prompt": f"copy {i}", "chosen": f"{i}", "rejected": f"not {i}"} for i in range(6)]
        data.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    more = ["--method", "dpo", "data.packing=none"] if "dpo" in method else ["--method", "sft"]
    words = ["run", "--model", model, *more, "--data", data, "--out", "run", *SETTINGS, *METHODS[method]]
    assert ernie(*words, "run.until=1").code == Exit.PREEMPTED
    whole = Path(shutil.copytree(model, box / "whole"))
    CHANGES[change](model)
    part, file = change.split(" ")
    outcome = ernie(*words)
    assert_refused(outcome, {Exit.USAGE}, "ERN-C021", f"run.accept_changes=[{part}]", file)
    shutil.rmtree(model)
    shutil.copytree(whole, model)
    assert_refused(ernie(*words), {0})
