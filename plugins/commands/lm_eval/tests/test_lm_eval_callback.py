"""Tasks of the harness on a model while it trains: the scores that the command gives the trained model."""

import json

import pytest
from erniecore_conformance import parametrize_checks

import erniecore
from erniecore.cli.app import main
from erniecore.errors import ConfigError

pytest.importorskip("lm_eval")

TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}"}}}}
test_split: test
output_type: {output}
doc_to_text: "{{{{question}}}}"
{target}
metric_list: [{{metric: {metric}}}]
"""


@parametrize_checks("callback", "lm-eval")
def test_conformance(check):
    check()


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    home = tmp_path_factory.mktemp("tasks")
    rows = [{"question": f"copy {n * 37}", "choices": [f"{n}", f"{n * 37}"], "gold": n % 2} for n in range(5)]
    (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    choice = 'doc_to_choice: "{{choices}}"\ndoc_to_target: "{{gold}}"'
    written = 'doc_to_target: "{{choices[gold]}}"\ngeneration_kwargs: {until: ["7"], max_gen_toks: 5}'
    rolling = 'doc_to_target: "{{question}}"'
    for name, output, target, metric in (
        ("letters", "multiple_choice", choice, "acc"),
        ("answer", "generate_until", written, "exact_match"),
        ("text", "loglikelihood_rolling", rolling, "bits_per_byte"),
    ):
        text = TASK.format(name=name, data=home / "rows.jsonl", output=output, target=target, metric=metric)
        (home / f"{name}.yaml").write_text(text)
    return home


@pytest.fixture
def settings_of(talker, tasks, tmp_path):
    def of(**changes):
        keys = {
            "model.path": talker / "model",
            "method": "sft",
            "data.train": talker / "rows.jsonl",
            "data.max_seq_len": 96,
            "train.max_steps": 2,
            "train.learning_rate": 0.01,
            "eval.every": 1,
            "run.out": tmp_path / "run",
            "callbacks.lm-eval.tasks": "[letters,answer,text]",
            "callbacks.lm-eval.include_path": tasks,
            **changes,
        }
        return [f"{key}={value}" for key, value in keys.items()]

    return of


def events(out, name):
    return [e for line in (out / "events.jsonl").read_text().splitlines() if (e := json.loads(line))["event"] == name]


def test_scores_are_those_of_the_command_and_of_the_trained_model(settings_of, tasks, tmp_path, capsys):
    best = {"eval.best": "lm-eval/text/bits_per_byte", "adapter.name": "lora", "adapter.rank": 4}
    erniecore.run(overrides=settings_of(**best), console="none")
    out = tmp_path / "run"
    evals = events(out, "eval")
    names = {"lm-eval/letters/acc", "lm-eval/answer/exact_match", "lm-eval/text/bits_per_byte"}
    assert [names <= event.keys() for event in evals] == [True, True]
    bits = [event["lm-eval/text/bits_per_byte"] for event in evals]
    assert bits[0] != bits[1]  # of this metric a lower value is better, as the harness says
    assert evals[-1]["best_step"] == 1 + bits.index(min(bits))
    assert [e["examples"] for e in events(out, "evaluation")] == [15, 15]
    kept = [json.loads(line) for line in (out / "lm-eval.jsonl").read_text().splitlines()]
    assert {row["prompt"] for row in kept} >= {"copy 37"}
    capsys.readouterr()
    command = ["lm-eval", "--model", str(out), "--include-path", str(tasks), "--tasks", "letters,answer,text", "--json"]
    assert main(command) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    of_best = evals[evals[-1]["best_step"] - 1]
    assert of_best["lm-eval/letters/acc"] == results["letters"]["acc,none"]
    assert of_best["lm-eval/answer/exact_match"] == results["answer"]["exact_match,none"]
    assert of_best["lm-eval/text/bits_per_byte"] == pytest.approx(results["text"]["bits_per_byte,none"], rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"callbacks.lm-eval.include_path": "nowhere"}, "no directory nowhere"),
        ({"eval.every": 2, "callbacks.lm-eval.every": 3}, "multiple of eval.every"),
        ({"callbacks.lm-eval.every": 2, "eval.best": "lm-eval/letters/acc"}, "not in every evaluation"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(changes, says, settings_of):
    with pytest.raises(ConfigError, match=says):
        erniecore.run(overrides=settings_of(**changes), console="none")
