"""A run that is evaluated by what its model writes."""

import json

import pytest

import erniecore
from erniecore.cli.app import main
from erniecore.errors import ConfigError, DataError, PluginNotFound, Preempted, UsageError

NAME = "generate/regex"


@pytest.fixture
def words(talker, tmp_path):
    """Settings of a run of four steps that is evaluated after every second one."""

    def of(out="run", **changes):
        keys = {
            "model.path": talker / "model",
            "model.name": "ernie45",
            "method": "sft",
            "data.train": talker / "rows.jsonl",
            "data.max_seq_len": 96,
            "train.max_steps": 4,
            "train.learning_rate": 0.01,
            "eval.every": 2,
            "run.out": tmp_path / out,
            "callbacks.eval-generate.data": talker / "rows.jsonl",
            "callbacks.eval-generate.metrics": "[regex,exact-match]",
            "callbacks.eval-generate.options": "{regex: {pattern: '[a-m]', whole: false}}",
            "callbacks.eval-generate.max_new_tokens": 6,
            "callbacks.eval-generate.samples": 3,
            "checkpoint.export": "false",
            **changes,
        }
        return [f"{key}={value}" for key, value in keys.items() if value is not None]

    return of


def run(words):
    return erniecore.run(overrides=words, console="none")


def events(out, name):
    return [e for line in (out / "events.jsonl").read_text().splitlines() if (e := json.loads(line))["event"] == name]


def measured(out):
    """Step -> metrics of the callback."""
    return {e["step"]: {k: v for k, v in e.items() if k.startswith("generate/")} for e in events(out, "eval")}


def test_completions_are_scored_kept_and_shown(words, talker, tmp_path, capsys):
    out = run(words(**{"checkpoint.export": "true", "callbacks.eval-generate.limit": 8})).out
    found = measured(out)
    assert set(found) == {2, 4}
    assert set(found[4]) == {NAME, "generate/exact-match", "generate/length", "generate/truncated"}
    assert 0 < found[4]["generate/length"] <= 6
    cost = events(out, "evaluation")
    assert [(e["step"], e["by"], e["examples"], e["samples"]) for e in cost] == [
        (step, "eval-generate", 8, "eval-generate.jsonl") for step in (2, 4)
    ]
    assert cost[1]["tokens"] == round(8 * found[4]["generate/length"])
    assert all(0 < e["seconds"] < v["seconds"] for e, v in zip(cost, events(out, "eval"), strict=True))
    kept = [json.loads(line) for line in (out / "eval-generate.jsonl").read_text().splitlines()]
    assert [row["step"] for row in kept] == [2, 2, 2, 4, 4, 4]
    first = json.loads((talker / "rows.jsonl").read_text().splitlines()[0])["messages"]
    assert first[0]["content"] in kept[3]["prompt"]
    assert kept[3]["reference"] == first[1]["content"]
    assert kept[3]["scores"]["exact-match"] == float(kept[3]["completion"].split() == kept[3]["reference"].split())
    page = (out / "report.html").read_text()
    assert "Completions of the evaluation at step 4" in page
    assert NAME in page
    # the trained model answers as it did in the run
    prompts = [json.loads(line)["messages"][0]["content"] for line in (talker / "rows.jsonl").read_text().splitlines()]
    command = ["generate", "--model", str(out / "model"), "--prompt", prompts[0], "--max-new-tokens", "6", "--json"]
    capsys.readouterr()
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["text"] == kept[3]["completion"]


def test_the_best_step_is_chosen_by_a_reward(words):
    """Of an adapter with averaged weights, without other held-out rows; of what is called truncated a lower value is better."""
    every = {
        "adapter.name": "lora",
        "adapter.rank": 4,
        "train.ema": 0.5,
        "eval.every": 1,
        "eval.best": "generate/truncated",
        "eval.patience": 2,
        "train.max_steps": 8,
    }
    out = run(words(**every)).out
    values = {step: found["generate/truncated"] for step, found in measured(out).items()}
    (end,) = events(out, "early_stop") or [{"step": 8}]
    assert max(values) == end["step"]
    best = events(out, "eval")[-1]["best_step"]
    assert values[best] == min(values.values())
    assert best == min(step for step, value in values.items() if value == values[best])


def weights(out):
    [file] = (out / "model").glob("*.safetensors")
    return file.read_bytes()


def test_evaluation_changes_nothing_and_a_stopped_run_measures_the_same(words, tmp_path):
    sampled = {"callbacks.eval-generate.temperature": 1.0, "callbacks.eval-generate.completions": 2}
    sampled |= {"checkpoint.export": "true", "log.report": "false"}
    whole = run(words("whole", **sampled)).out
    for until in (1, 2):
        with pytest.raises(Preempted):
            run(words("stopped", **sampled, **{"run.until": until}))
    stopped = run(words("stopped", **sampled)).out
    assert measured(stopped) == measured(whole)
    assert (stopped / "eval-generate.jsonl").read_bytes() == (whole / "eval-generate.jsonl").read_bytes()
    keys = {word.partition("=")[0]: None for word in words() if word.startswith("callbacks")}
    plain = run(words("plain", **keys, **{"checkpoint.export": "true"})).out
    assert not measured(plain)
    assert weights(plain) == weights(whole) == weights(stopped)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"callbacks.eval-generate.metrics": "[regex,exact]"}, PluginNotFound, "exact-match"),
        ({"callbacks.eval-generate.options": "{regex: {pattern: '['}}"}, ConfigError, "pattern"),
        ({"callbacks.eval-generate.options": "{numeric: {}}"}, ConfigError, "none of the metrics"),
        ({"callbacks.eval-generate.completions": 2}, ConfigError, "temperature"),
        ({"callbacks.eval-generate.data": None}, ConfigError, "there are no rows"),
        ({"callbacks.eval-generate.every": 3}, ConfigError, "multiple of eval.every"),
        ({"callbacks.eval-generate.every": 4, "eval.best": NAME}, ConfigError, "not in every evaluation"),
        ({"callbacks.eval-generate.max_new_tokens": 96}, UsageError, "leaves no room"),
        ({"eval.best": "generate/rouge"}, ConfigError, "generate/regex"),
    ],
)
def test_what_cannot_be_measured_is_refused(words, changes, error, says):
    with pytest.raises(error) as caught:
        run(words(**changes))
    assert says in f"{caught.value} {caught.value.fix} {caught.value.expected}"


def test_rows_without_a_reference_are_counted_and_said(words, talker, tmp_path):
    rows = tmp_path / "rows.jsonl"
    asked = json.dumps({"messages": [{"role": "user", "content": "copy 1"}]}) + "\n"
    rows.write_text(asked)
    with pytest.raises(DataError, match="no row has a prompt and a reference"):
        run(words("none", **{"callbacks.eval-generate.data": rows}))
    rows.write_text(asked + (talker / "rows.jsonl").read_text())
    out = run(
        words(**{"callbacks.eval-generate.data": rows, "train.max_steps": 1, "callbacks.eval-generate.limit": 2})
    ).out
    assert "1 row without a prompt" in events(out, "warning")[0]["message"]
    assert events(out, "evaluation")[0]["examples"] == 2
