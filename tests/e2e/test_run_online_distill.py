"""Online distillation through the command line: the teacher is that of pre-training to the bit, students resume bit for bit,
become models like any other, and two processes train what one does."""

import json
from pathlib import Path

import numpy as np
import pytest
from erniecore_conformance.processes import on_ranks
from erniecore_model_init.new_model import init_model
from safetensors.numpy import load_file

import erniecore
from erniecore.errors import ConfigError

HELPERS = Path(__file__).parents[2] / "plugins/parallel/hybrid_parallel/tests/hybrid_helpers.py"
TINY = "hidden_size=16,intermediate_size=32,num_hidden_layers=1,num_attention_heads=2,num_key_value_heads=1,head_dim=8"


@pytest.fixture(scope="module")
def models(home):
    """``home`` with a smaller model and documents."""
    if not (home / "documents.jsonl").exists():
        init_model("ernie45", TINY, home / "tok", home / "student", seed_value=2)
        texts = (f"{a} plus {b} makes {a + b}. the quick brown fox" for a in range(12) for b in range(8))
        (home / "documents.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return home


def settings(models, **changes):
    return {
        "method__name": "online-distill",
        "method__students__dense": models / "student",
        "method__students__sparse": models / "moe",
        "method__assistant": models / "base",
        "data__train": models / "documents.jsonl",
        "train__batch_size": 2,
        "train__accumulation": 2,
        "train__max_steps": 6,
        # above the rounding of gradients: AdamW makes whole steps of what is rounding where they cancel
        "optimizer__epsilon": 1e-5,
        **changes,
    }


@pytest.fixture(scope="module")
def runs(models, runner_class, tmp_path_factory):
    """A runner with ``alone`` (pre-training), ``whole`` (with students) and ``parts`` (stopped after 3 steps, continued)."""
    runner = runner_class(models, tmp_path_factory.mktemp("online"))
    alone = {
        key: value for key, value in settings(models).items() if "__students" not in key and "assistant" not in key
    }
    runner.run("alone", **{**alone, "method__name": "pt"})
    before = {path: path.read_bytes() for path in (models / "student").iterdir()}
    runner.run("whole", **settings(models))
    assert {path: path.read_bytes() for path in (models / "student").iterdir()} == before
    with pytest.raises(erniecore.errors.Preempted):
        runner.run("parts", **settings(models, run__until=3))
    runner.run("parts", **settings(models))
    return runner


def test_the_teacher_is_that_of_pre_training_to_the_bit(runs):
    assert runs.curve("whole") == runs.curve("alone")
    alone, whole = runs.tensors(6, "alone"), runs.tensors(6, "whole")
    assert {key: value for key, value in whole.items() if key[0] != "objective"} == alone


def test_students_resume_bit_for_bit(runs):
    whole, parts = runs.tensors(6, "whole"), runs.tensors(6, "parts")
    assert parts == whole
    names = {name.split(".")[1] for group, name in whole if group == "objective"}
    assert names == {"dense", "sparse", "assistant"}
    measured = [{k: v for k, v in e.items() if "students/" in k} for e in runs.events("step", "whole")]
    again = {e["step"]: {k: v for k, v in e.items() if "students/" in k} for e in runs.events("step", "parts")}
    assert list(again.values()) == measured
    assert len(measured[0]) == 3 * 4


def test_students_are_models_like_any_other(runs, ernie, models):
    for name, base in (("dense", "student"), ("sparse", "moe"), ("assistant", "base")):
        made, given = (load_file(next(path.glob("*.safetensors"))) for path in
                       (runs.directory / "whole/students" / name, models / base))  # fmt: skip
        assert {k: v.shape for k, v in made.items()} == {k: v.shape for k, v in given.items()}  # no auxiliary layer
        assert any((made[k] != given[k]).any() for k in made)
    [event] = [e for e in runs.events("student", "whole") if e["name"] == "dense"]
    assert event["step"] == 6
    path = event["path"]
    assert ernie("generate", "--model", path, "--prompt", "3 plus 4", "--max-new-tokens", 3).code == 0
    quantized = runs.directory / "quantized"
    assert ernie("quantize", path, "--to", "wint8", "--out", quantized).code == 0
    assert ernie("generate", "--model", quantized, "--prompt", "3 plus 4", "--max-new-tokens", 2).code == 0


def test_students_learn_what_the_teacher_knows(runs, models):
    """A teacher that no longer changes (its rate is 1e-30) and no labels: the assistant comes nearer to the teacher, and the
    students, who learn from it, to the text."""
    teacher = {"method__name": "pt", "data__train": models / "documents.jsonl", "train__max_steps": 40}
    runs.run("teacher", **teacher, train__learning_rate=0.01, train__batch_size=4)
    chosen = settings(models, model__path=runs.directory / "teacher/model", train__learning_rate=1e-30)
    chosen |= {"method__learning_rate": 0.01, "train__max_steps": 20, "data__eval": models / "documents.jsonl"}
    result = runs.run("taught", **chosen)
    first, *_, last = runs.events("step", "taught")
    assert last["students/assistant/kl"] < 0.3 * first["students/assistant/kl"]
    assert last["students/assistant/attention"] < 0.9 * first["students/assistant/attention"]
    for name in ("dense", "sparse"):
        assert last[f"students/{name}/loss"] < 0.8 * first[f"students/{name}/loss"]
        assert result.metrics[f"eval/students/{name}/agreement"] > 0.2
    before, after = (
        load_file(next((runs.directory / run / "model").glob("*.safetensors"))) for run in ("teacher", "taught")
    )
    assert all((after[k] == before[k]).all() for k in before)


@pytest.mark.multiproc
def test_two_processes_train_the_students_of_one(runs, models):
    parallel = {"parallel__name": "hybrid", "parallel__data": 2, "train__accumulation": 1}
    on_ranks(2, f"{HELPERS}:runs", [runs.words("ranks", **settings(models, **parallel))], limit=600.0)
    for name in ("dense", "sparse", "assistant"):
        one, two = (load_file(next((runs.directory / run / "students" / name).glob("*.safetensors")))
                    for run in ("whole", "ranks"))  # fmt: skip
        for key in one:
            np.testing.assert_allclose(two[key], one[key], atol=1e-5, err_msg=f"{name} {key}")
    keys = [k for k in runs.events("step", "whole")[0] if "students/" in k]
    for one, two in zip(runs.events("step", "whole"), runs.events("step", "ranks"), strict=True):
        assert [two[k] for k in keys] == pytest.approx([one[k] for k in keys], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"method__students__dense": None, "method__students__sparse": None}, "name the students"),
        ({"method__students__dense": "nowhere"}, "method.students.dense=nowhere: no such directory"),
        ({"parallel__name": "hybrid", "parallel__tensor": 2}, "students need the whole teacher on every rank"),
        ({"method__heads": "each"}, "dense has 2 heads, and learns from 4"),
    ],
)
def test_refusals(runner, models, changes, text):
    with pytest.raises(ConfigError) as caught:
        runner.run(**settings(models, **changes))
    assert text in str(caught.value)
