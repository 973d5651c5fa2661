"""The wording and place of every error in the settings. Plugins are those of the ``toys`` fixture."""

import pytest

from erniecore.config.compose import load
from erniecore.errors import CheckpointError, ConfigError

RUN = "model: {name: toy, size: small}\nmethod: prefer\n"


def problems(tmp_path, monkeypatch, text="", words=(), environ=(), flags=()):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "run.yaml"
    file.write_text(RUN + text)
    with pytest.raises(ConfigError) as caught:
        load(file.relative_to(tmp_path), words, dict(flags), dict(environ))
    return str(caught.value).split("\n")


FILE = {
    "unknown": ("train:\n  max_stepz: 3\n", "run.yaml:4: train.max_stepz: unknown key; did you mean train.max_steps? (got 3)"),
    "elsewhere": ("train:\n  beta: 0.2\n", "run.yaml:4: train.beta: unknown key; did you mean method.beta? (got 0.2)"),
    "misspelt elsewhere": (
        "train: {label_smoothin: 0.1}\n",
        "run.yaml:3: train.label_smoothin: unknown key; did you mean method.label_smoothing? (got 0.1)",
    ),
    "far": ("train: {qqqqqq: 1}\n", "run.yaml:3: train.qqqqqq: unknown key (got 1)"),
    "section": ("trian:\n  max_steps: 3\n  seed: 1\n", "run.yaml:4: trian.max_steps: unknown section trian; did you mean train?"),
    "top": ("max_steps: 3\n", "run.yaml:3: max_steps: unknown key; did you mean train.max_steps? (got 3)"),
    "plugins": (
        "plugins: {model: toy}\n",
        "run.yaml:3: plugins: must be a list of files (got {'model': 'toy'}); such as plugins: [./my_reward.py]",
    ),
    "ge": ("train: {batch_size: 0}\n", "run.yaml:3: train.batch_size: must be ≥ 1 (got 0)"),
    "gt": ("train: {learning_rate: 0}\n", "run.yaml:3: train.learning_rate: must be > 0 (got 0)"),
    "lt": ("data: {eval_fraction: 1.5}\n", "run.yaml:3: data.eval_fraction: must be < 1 (got 1.5)"),
    "infinite": ("train: {learning_rate: .inf}\n", "run.yaml:3: train.learning_rate: must be a finite number (got inf)"),
    "too large": ("train: {ema: 1.0e+400}\n", "run.yaml:3: train.ema: must be a finite number (got inf)"),
    "not a number": ("train: {weight_decay: .nan}\n", "run.yaml:3: train.weight_decay: must be a finite number (got nan)"),
    "infinite source": (
        "data: {train: {path: a, weight: .inf}}\n",
        "run.yaml:3: data.train[0].weight: must be a finite number (got inf)",
    ),
    "integer": ("train: {max_steps: ten}\n", "run.yaml:3: train.max_steps: must be an integer (got 'ten')"),
    "fraction": ("train: {max_steps: 1.5}\n", "run.yaml:3: train.max_steps: must be an integer (got 1.5)"),
    "quoted": ("train: {max_steps: '5'}\n", "run.yaml:3: train.max_steps: must be an integer (got '5')"),
    "number": ("train: {epochs: many}\n", "run.yaml:3: train.epochs: must be a number (got 'many')"),
    "yes": ("data: {shuffle: yes}\n", "run.yaml:3: data.shuffle: must be true or false (got 'yes')"),
    "one": ("data: {shuffle: 1}\n", "run.yaml:3: data.shuffle: must be true or false (got 1)"),
    "text": ("run: {name: 5}\n", "run.yaml:3: run.name: must be text; write it in quotes (got 5)"),
    "choice": (
        "train:\n  precision: bfloat8\n",
        "run.yaml:4: train.precision: must be one of float32, bfloat16, float16; did you mean bfloat16? (got 'bfloat8')",
    ),
    "null": ("train: {batch_size: }\n", "run.yaml:3: train.batch_size: must be an integer (got None)"),
    "list": ("data: {train: 5}\n", "run.yaml:3: data.train: must be a list (got 5)"),
    "source": (
        "data:\n  train:\n  - a.jsonl\n  - path: b.jsonl\n    weigth: 2\n",
        "run.yaml:7: data.train[1].weigth: unknown key; did you mean data.train[1].weight? (got 2)",
    ),
    "source value": ("data: {train: {path: a, weight: 0}}\n", "run.yaml:3: data.train[0].weight: must be > 0 (got 0)"),
    "no path": ("data: {train: [{weight: 1}]}\n", "run.yaml:3: data.train[0].path: is required"),
    "scalar section": ("train: 5\n", "run.yaml:3: train: must be a mapping (got 5)"),
    "unselected": (
        "adapter:\n  rank: 8\n",
        "run.yaml:4: adapter.rank: belongs to adapter plugins; none is selected, add --adapter NAME",
    ),
    "callback": (
        "callbacks: {watch: {prot: 1}}\n",
        "run.yaml:3: callbacks.watch.prot: unknown key; did you mean callbacks.watch.port? (got 1)",
    ),
    "callback value": ("callbacks:\n- watch: {port: 0}\n", "run.yaml:4: callbacks.watch.port: must be ≥ 1 (got 0)"),
    "callbacks": ("callbacks: 5\n", "run.yaml:3: callbacks: must be names or a mapping by name (got 5)"),
    "format": ("formats: {rows: {column: 1}}\n", "run.yaml:3: formats.rows.column: must be text; write it in quotes (got 1)"),
    "extends": ("extends: no.yaml\n", "run.yaml:3: extends: no such file: no.yaml"),
    "cross": ("train: {batch_size: 13}\n", "run.yaml:3: train.batch_size: 13 does not work with prefer"),
    "twice": ("model: 5\n", "run.yaml:3: key 'model' is given twice; first in line 1"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "line"), FILE.values(), ids=FILE)
def test_in_a_file(toys, tmp_path, monkeypatch, text, line):
    assert problems(tmp_path, monkeypatch, text) == [line]


WORDS = {
    "unknown": ("method.label_smoothin=0.1", "unknown key; did you mean method.label_smoothing?"),
    "section": ("trian.max_steps=3", "unknown key; did you mean train.max_steps?"),
    "short name": ("train.lr=1e-5", "unknown key; did you mean train.learning_rate?"),
    "name elsewhere": ("gradient_accumulation_steps=2", "unknown key; did you mean train.accumulation?"),
    "name with hyphens": ("train.Per-Device-Train-Batch-Size=2", "unknown key; did you mean train.batch_size?"),
    "value": ("train.max_steps=-1", "must be ≥ 0 (got -1)"),
    "infinite": ("train.learning_rate=.inf", "must be a finite number (got inf)"),
    "infinite inside": (
        "model.architecture={rope: {theta: [1, -.inf]}}",
        "model.architecture.rope.theta[1] must be a finite number (got -inf)",
    ),
    "part": ("data.train=[{path: a, nmae: b}]", "data.train[0].nmae: unknown key"),
    "part's value": ("data.train=[{path: a, weight: 0}]", "data.train[0].weight must be > 0 (got 0)"),
    "yaml": ("data.train=[a", "expected ',' or ']', but got '<stream end>' (while parsing a flow sequence)"),
    "unselected": ("adapter.rank=8", "belongs to adapter plugins; none is selected, add --adapter NAME"),
    "other method": ("method.neftune=1", "belongs to method plain; selected is prefer (--method chooses)"),
    "recipe": ("model.size=smal", "toy has no recipe 'smal'; did you mean small? (recipes: small)"),
}


@pytest.mark.parametrize(("word", "message"), WORDS.values(), ids=WORDS)
def test_on_the_command_line(toys, tmp_path, monkeypatch, word, message):
    (line,) = problems(tmp_path, monkeypatch, words=[word])
    assert line.replace(":1:", ":") == f"command line: {word}: {message}"


def test_of_a_flag(toys, tmp_path, monkeypatch):
    assert problems(tmp_path, monkeypatch, flags={"data": 5}) == ["command line: --data: must be a list (got 5)"]


ENVIRONMENT = {
    "unknown": ("ERNIE_METHOD__BETTA", "1", "unknown key; did you mean method.beta?"),
    "section": ("ERNIE_TRIAN__MAX_STEPS", "1", "unknown key; did you mean train.max_steps?"),
    "value": ("ERNIE_TRAIN__MAX_STEPS", "-1", "must be ≥ 0 (got -1)"),
    "not a number": ("ERNIE_TRAIN__POWER", ".nan", "must be a finite number (got nan)"),
    "name": ("ERNIE_FOO", "1", "unknown name; settings are ERNIE_SECTION__KEY"),
    "near": ("ERNIE_PLUGIN", "1", "unknown name; did you mean ERNIE_PLUGINS?"),
    "empty": ("ERNIE_TRAIN__", "1", "unknown name; settings are ERNIE_SECTION__KEY"),
}


@pytest.mark.parametrize(("name", "value", "message"), ENVIRONMENT.values(), ids=ENVIRONMENT)
def test_in_the_environment(toys, tmp_path, monkeypatch, name, value, message):
    assert problems(tmp_path, monkeypatch, environ={name: value}) == [f"environment {name}: {message}"]


def test_all_together_and_sorted(toys, tmp_path, monkeypatch):
    text = "train:\n  batch_size: 0\n  beta: 1\nlog: {evry: 1}\n"
    found = problems(tmp_path, monkeypatch, text, ["eval.every=-1"], {"ERNIE_TRAIN__EPOCHS": "0", "ERNIE_X": ""})
    assert [line.split(": ")[0] for line in found] == [
        "command line",
        "environment ERNIE_TRAIN__EPOCHS",
        "environment ERNIE_X",
        "run.yaml:4",
        "run.yaml:5",
        "run.yaml:6",
    ]


def test_the_file_that_holds_the_value_is_named(toys, tmp_path, monkeypatch):
    (tmp_path / "base.yaml").write_text("# comment\ntrain: {max_steps: -5}\n")
    assert problems(tmp_path, monkeypatch, "extends: base.yaml\n") == [
        "base.yaml:2: train.max_steps: must be ≥ 0 (got -5)"
    ]


def test_missing_kinds_are_reported_with_everything_else(toys):
    with pytest.raises(ConfigError) as caught:
        load(None, ["train.max_steps=-1"], {}, {})
    lines = str(caught.value).split("\n")
    assert "command line: train.max_steps=-1: must be ≥ 0 (got -1)" in lines
    assert any(line.startswith("command line: no method is selected; add --method NAME (installed: ") for line in lines)
    assert any(line.startswith("command line: no model is selected; add --model NAME or DIR (inst") for line in lines)


def test_exit_code_is_usage(toys):
    with pytest.raises(ConfigError) as caught:
        load(None, [], {}, {})
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("method: 5", "run.yaml:1: method: must be a name or a mapping with a name (got 5)"),
        ("method: [a]", "run.yaml:1: method: must be a name or a mapping with a name (got ['a'])"),
        ("method: {name: 5}", "run.yaml:1: method.name: must be text (got 5)"),
        ("method:\n  name: {a: b}", "run.yaml:2: method.name: must be text, not a mapping"),
        ("callbacks: [5]", "run.yaml:1: callbacks: must be a name or `name: {…}` (got 5)"),
    ],
)
def test_names_that_are_no_names(toys, tmp_path, monkeypatch, text, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load((tmp_path / "run.yaml").relative_to(tmp_path), [], {"model": "toy"}, {})
    assert str(caught.value) == line


@pytest.mark.usefixtures("toys")
def test_a_problem_of_a_section_that_nobody_wrote_blames_no_word_of_another():
    loaded = load(None, ["model.name=toy", "model.size=small", "method.name=prefer"], {}, {})
    for key, found in (("parallel.name", "default: parallel.name: wrong"), ("--nodes", "command line: --nodes: wrong")):
        assert [str(problem) for problem in loaded.provenance.located(ConfigError.at(key, "wrong")).problems] == [found]


@pytest.mark.parametrize(
    ("model", "following"),
    [
        ("baidu/ERNIE-4.5-0.3B-PT", "ernie model pull hf:baidu/ERNIE-4.5-0.3B-PT"),
        ("here/ERNIE-4.5-0.3B-PT", ""),
        ("path/to/ERNIE-4.5-0.3B-PT", ""),
    ],
)
def test_a_model_that_is_not_here_has_to_be_fetched(toys, tmp_path, monkeypatch, model, following):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    with pytest.raises(CheckpointError, match="nothing is downloaded") as caught:
        load(None, [], {"model": model, "method": "prefer"}, {})
    assert (caught.value.where, caught.value.next) == (model, following)
    assert "config.json, safetensors and tokenizer" in caught.value.fix
