"""Wrong settings, through the command line: the place, what was meant, and a run directory that does not appear."""

from itertools import pairwise

import pytest

from erniecore.errors import Exit

RUN = "model: {{path: {base}}}\nmethod: sft\ndata: {{train: {train}}}\nrun: {{out: {out}}}\n"


@pytest.fixture
def file(runner):
    """Writes a settings file: a good one, then the lines that are wrong."""

    def write(more="", name="run.yaml"):
        paths = {"base": runner.home / "base", "train": runner.home / "train.jsonl", "out": runner.directory / "out"}
        path = runner.directory / name
        path.write_text(RUN.format(**paths) + more)
        return path

    return write


def test_good_file_is_accepted(ernie, file):
    assert ernie("run", file(), "--dry-run").code == 0


KEYS = {
    "file": ("train:\n  max_stepz: 3\n", [], {}, "run.yaml:6: train.max_stepz", "did you mean train.max_steps?"),
    "word": ("", ["train.max_stepz=3"], {}, "command line: train.max_stepz=3", "did you mean train.max_steps?"),
    "variable": ("", [], {"ERNIE_TRAIN__MAX_STEPZ": "3"}, "ERNIE_TRAIN__MAX_STEPZ", "did you mean train.max_steps?"),
    "option": ("", ["--modle", "x"], {}, "no such option: --modle", "did you mean --model?"),
    "section": ("trian:\n  max_steps: 3\n", [], {}, "run.yaml:6: trian.max_steps", "did you mean train?"),
    "word without section": ("", ["max_steps=3"], {}, "max_steps=3", "did you mean train.max_steps?"),
    "other section": ("", ["method.learning_rate=3"], {}, "method.learning_rate=3", "did you mean train.learning_rate?"),
    "method": ("", ["--method", "sftt"], {}, "command line: --method", "did you mean sft?"),
    "model": ("", ["--model", "ernie45-mo"], {}, "command line: --model", "did you mean ernie45-moe?"),
    "kind": ("", ["--model", "sft"], {}, "command line: --model", "'sft' is a method, not a model: --method sft"),
    "type": ("train: {max_steps: many}\n", [], {}, "run.yaml:5: train.max_steps", "must be an integer (got 'many')"),
    "range": ("", ["train.max_steps=-1"], {}, "train.max_steps=-1", "must be ≥ 0"),
    "choice": ("", ["train.schedule=cosin"], {}, "train.schedule=cosin", "did you mean cosine?"),
    "precision": ("", ["train.precision=bfloat16"], {}, "train.precision=bfloat16", "device cpu has no bfloat16; it has"),
    "no value": ("", ["train.max_steps"], {}, "'train.max_steps'", "train.max_steps=VALUE"),
    "twice": ("", ["--method", "sft", "method.name=dpo"], {}, "--method and method.name=dpo contradict", "give one"),
    "resume": ("", ["--resume", "atuo"], {}, "run.resume: atuo", "did you mean auto?"),
}  # fmt: skip


@pytest.mark.parametrize("case", KEYS.values(), ids=KEYS)
def test_wrong_word_is_named_with_the_right_one(refuses, file, runner, case):
    text, words, env, place, remedy = case
    code = Exit.CHECKPOINT if place.startswith("run.resume") else Exit.USAGE
    refuses(["run", file(text), *words], code, place, remedy=remedy, env=env)
    assert not list(runner.directory.glob("out/ckpt"))


def test_all_problems_are_told_at_once_in_order(refuses, file):
    text = "train:\n  max_steps: many\n  learning_rate: 0\n  scheduel: cosine\n"
    outcome = refuses(
        ["run", file(text), "data.maxx=1"], Exit.USAGE, "4 problems", remedy="did you mean train.schedule?"
    )
    places = [line.split()[0] for line in outcome.err.splitlines() if "run.yaml:" in line]
    assert [p.rsplit(":", 2)[1] for p in places] == ["6", "7", "8"]


LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in pairwise("abcdefghi")
)
YAML = {
    "aliases": (LAUGHS, "more than 50000 values"),
    "flow depth": ("model: " + "[" * 5000 + "]" * 5000, "bad.yaml:1: nested deeper than 32 levels"),
    "circle": ("model: &m {path: *m}\n", "nested deeper than 32 levels"),
    "size": ("# " + "x" * (2 << 20) + "\nmodel: ernie45\n", "larger than 1048576 bytes"),
    "key twice": ("train:\n  max_steps: 3\n  max_steps: 4\n", "bad.yaml:3: key 'max_steps' is given twice; first in line 2"),
    "section twice": ("model: a\nmethod: sft\nmodel: b\n", "bad.yaml:3: key 'model' is given twice; first in line 1"),
    "object": ("model: !!python/object/apply:os.system ['touch MARK']\n", "bad.yaml:1: tag"),
    "tab": ("model:\n\tpath: base\n", "bad.yaml:2: a tab; indent with spaces"),
    "two documents": ("model: a\n---\nmethod: sft\n", "bad.yaml:2: more than one document"),
    "list": ("- a\n", "bad.yaml:1: must be a mapping of sections"),
    "number as key": ("1: 2\n", "bad.yaml:1: keys must be text (got 1); write it in quotes"),
    "not closed": ("model: {path: base\nmethod: sft\n", "bad.yaml:2: expected ',' or '}'"),
}  # fmt: skip


@pytest.mark.parametrize("case", YAML.values(), ids=YAML)
def test_bad_yaml_is_refused_with_its_line(refuses, tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yaml").write_text(case[0])
    refuses(["run", "bad.yaml"], Exit.USAGE, "bad.yaml", remedy=case[1])
    assert [p.name for p in tmp_path.iterdir()] == ["bad.yaml"]


def test_yaml_bomb_costs_no_memory(measure, tmp_path):
    (tmp_path / "bad.yaml").write_text(YAML["aliases"][0])
    outcome, peak = measure("run", tmp_path / "bad.yaml")
    assert outcome.code == Exit.USAGE
    assert peak < 150


COMMANDS = {
    "command": (["rnu"], "no such command: ernie rnu", "did you mean `ernie run`?"),
    "subcommand": (["ckpt", "verfy", "x"], "no such command: ernie ckpt verfy", "did you mean `ernie ckpt verify`?"),
    "option": (["generate", "--promt", "x"], "no such option: --promt", "did you mean --prompt?"),
    "no file": (["data", "check"], "no data file is named", "ernie data check --help"),
    "no option": (["tokenizer", "train", "x.txt"], "missing option", "ernie tokenizer train --help"),
    "no model": (["run", "--method", "sft"], "no model is selected", "--model NAME or DIR (installed: "),
    "missing settings": (["run", "rum.yaml"], "rum.yaml", "did you mean run.yaml?"),
    "data as settings": (["run", "train.jsonl"], "is a data file", "--data train.jsonl"),
    "model as settings": (["run", "base"], "resolved.yaml", "base is a model directory: --model base"),
    "two files": (["run", "run.yaml", "other.yaml"], "more than one settings file", "extends:"),
    "no directory": (["ckpt", "verify", "nothing"], "nothing", "no such directory"),
    "no checkpoints": (["ckpt", "verify", "empty"], "empty", "there are no checkpoints here"),
}


@pytest.mark.parametrize("case", COMMANDS.values(), ids=COMMANDS)
def test_wrong_command_line_is_refused(refuses, tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "base"):
        (tmp_path / name).mkdir()
    (tmp_path / "base" / "config.json").write_text('{"model_type": "ernie4_5"}')
    for name in ("run.yaml", "other.yaml", "train.jsonl"):
        (tmp_path / name).write_text("{}")
    words, place, remedy = case
    refuses(words, Exit.USAGE, place, remedy=remedy)


@pytest.mark.parametrize(
    ("device", "package"),
    [
        ("cuda", "paddlepaddle-gpu"),
        ("xpu", "paddlepaddle-xpu"),
        ("npu", "paddle-custom-npu"),
        ("iluvatar", "paddle-iluvatar-gpu"),
        ("metax", "paddle-metax-gpu"),
    ],
)
def test_device_that_is_not_here_is_named_with_its_package(run_ernie, refused, runner, device, package):
    outcome = run_ernie("run", *runner.words(device=device))
    refused(outcome, Exit.ENVIRONMENT, package, remedy="pip install")
    assert not (runner.directory / "out").exists()
