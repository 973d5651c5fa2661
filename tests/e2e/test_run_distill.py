"""Distillation through the command line: a student comes near its teacher, keeps answers, resumes bit for bit, exports."""

import json

import pytest

import erniecore
from erniecore.errors import ConfigError

MODELS = {"base": "ernie45", "moe": "ernie45-moe"}


@pytest.fixture(scope="module", params=MODELS)
def base(request):
    return request.param


@pytest.fixture(scope="module")
def teacher(home, runner_class, tmp_path_factory):
    """A model that was fine-tuned for a while."""
    runner = runner_class(home, tmp_path_factory.mktemp("teacher"))
    return runner.run(train__max_steps=60, train__batch_size=4, train__learning_rate=0.01).out / "model"


def settings(runner, teacher, base="base", **changes):
    return {
        "model__name": MODELS[base],
        "model__path": runner.home / base,
        "method__name": "distill",
        "method__teacher": teacher,
        "train__batch_size": 4,
        "train__max_steps": 8,
        **changes,
    }


def test_a_student_comes_near_its_teacher(ernie, runner, teacher, base):
    chosen = settings(
        runner, teacher, base, method__alpha=1, method__temperature=2, data__eval=runner.home / "eval.jsonl"
    )
    result = runner.run(**{**chosen, "train__max_steps": 30, "train__learning_rate": 0.01})
    first, *_, last = runner.events("step")
    assert last["kl"] < 0.5 * first["kl"]
    assert first["loss"] == pytest.approx(4 * first["kl"], rel=1e-5)
    assert result.metrics["eval/teacher/agreement"] > 0.3
    assert "eval/perplexity" not in result.metrics
    assert ernie("generate", "--model", result.out, "--prompt", "3 plus 4", "--max-new-tokens", 3).code == 0
    words = ["eval", "--model", result.out, "--method", "distill", "--data", runner.home / "eval.jsonl", "--json"]
    outcome = ernie(*words, "--reference", teacher)
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["metrics"]["teacher/agreement"] == pytest.approx(
        result.metrics["eval/teacher/agreement"], abs=1e-6
    )


def test_the_teacher_of_itself(runner, teacher):
    chosen = settings(runner, teacher, model__path=teacher, method__alpha=1, train__max_steps=1)
    metrics = runner.run(**chosen).metrics
    assert metrics["loss"] == pytest.approx(0, abs=1e-6)
    assert metrics["teacher/agreement"] == 1


@pytest.mark.parametrize("divergence", ["reverse-kl", "jsd"])
def test_other_divergences_with_an_adapter(runner, teacher, base, divergence):
    more = {"method__divergence": divergence, "method__top_k": 5, "adapter__name": "lora", "adapter__rank": 4}
    out = runner.run(**settings(runner, teacher, base, train__learning_rate=0.02, **more)).out
    first, *_, last = runner.events("step")
    assert last["kl"] < first["kl"]
    assert (out / "adapter" / "adapter_config.json").is_file()


def test_kept_answers_serve_further_runs(runner, teacher, monkeypatch):
    cache = runner.directory / "cache"
    chosen = settings(runner, teacher, method__top_k=8, method__cache=cache, train__epochs=1, train__max_steps=None)
    runner.run("one", **chosen)
    facts = runner.events("teacher_cache", "one")[0]
    assert (facts["samples"], facts["bytes"] > 0) == (88, True)  # two of the 90 rows are twice there

    def fail(*_, **__):
        raise AssertionError("the teacher was opened")

    monkeypatch.setattr("erniecore_distill.opening.checked_teacher", fail)
    runner.run("two", **{**chosen, "run__seed": 5, "train__batch_size": 2})
    assert runner.events("teacher_cache", "two")[0]["samples"] == 88


def test_fine_tuning_alone_is_the_other_end(runner, teacher):
    plain = runner.run("plain", train__max_steps=3, train__batch_size=4).metrics
    mixed = runner.run("mixed", **settings(runner, teacher, train__max_steps=3, method__alpha=1e-9)).metrics
    assert mixed["sft_loss"] == pytest.approx(plain["loss"], rel=1e-4)


def test_settings_that_cannot_be(runner, teacher, ernie, refuses, tmp_path):
    for more, text in (
        ({"method__teacher": None}, "name the teacher"),
        ({"method__teacher": tmp_path / "gone"}, "no such directory"),
        ({"method__cache": tmp_path / "cache"}, "set method.top_k"),
        ({"method__top_k": 4000}, "the vocabulary has"),
    ):
        with pytest.raises(ConfigError, match=text):
            runner.run("x", **settings(runner, teacher, **more))


def test_another_vocabulary_is_refused(runner, home, tmp_path):
    from erniecore_model_init.new_model import init_model
    from erniecore_text.training import train

    (tmp_path / "tok").mkdir()
    train([f"{a} plus {b} {a + b}" for a in range(31) for b in range(9)] + ["a lazy fox"] * 9, 310).save(
        tmp_path / "tok"
    )
    init_model("ernie45", "hidden_size=32,num_hidden_layers=1", tmp_path / "tok", tmp_path / "other", seed_value=1)
    with pytest.raises(ConfigError, match="tokenizer is not the student's"):
        runner.run(**settings(runner, tmp_path / "other"))


@pytest.mark.slow
@pytest.mark.parametrize("cached", [False, True])
def test_killed_run_continues_bit_for_bit(runner, teacher, base, cached):
    for out in ("straight", "killed"):
        more = {"method__top_k": 6, "method__cache": runner.directory / f"cache-{out}"} if cached else {}
        chosen = settings(runner, teacher, base, checkpoint__every=2, **more)
        if cached:
            chosen |= {"data__train": runner.home / "eval.jsonl"}  # several epochs
        if out == "killed":
            runner.kill_at(5, out, **chosen)
        runner.complete(out, **chosen)
    assert runner.curve("killed") == runner.curve("straight")
    assert runner.tensors(8, "killed") == runner.tensors(8, "straight")


def test_exported_student_is_a_plain_model(runner, teacher):
    out = runner.run(**settings(runner, teacher, train__max_steps=2)).out
    erniecore.export(out, runner.directory / "exported")
    assert json.loads((out / "model" / "config.json").read_text())["model_type"] == "ernie4_5"
