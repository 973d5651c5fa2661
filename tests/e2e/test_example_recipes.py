"""Each recipe of preferences and adapters under ``examples/`` trains as it stands, on other data and for two steps."""

import json
from pathlib import Path

import pytest
import yaml

import erniecore

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
ADAPTERS = ("lora", "lora-moe", "lora-pissa", "rslora-plus", "dora")
METHODS = (
    "dpo", "dpo-precomputed", "dpo-moving-reference", "dpo-lora", "ipo", "dpop", "robust-dpo", "simpo", "orpo", "kto",
    "gpas", "router-losses", "muon",
)  # fmt: skip
#: recipes whose command line names model, data and run: rows, and what else it says
NAMED = {
    "adversarial": ("paragraphs.jsonl", {}),
    "controllable": ("passages.jsonl", {}),
    "progressive": ("documents.jsonl", {"method.start_length": 16}),
    "online-distill": ("documents.jsonl", {"method.students.small": "{base}", "method.students.tiny": "{base}"}),
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    home = tmp_path_factory.mktemp("rows")
    pairs, rated = [], []
    for a in range(12):
        question = {"role": "user", "content": f"{a} plus 1"}
        good, bad = ({"role": "assistant", "content": text} for text in (f"that makes {a + 1}", f"{a}"))
        pairs.append({"messages": [question], "chosen": good, "rejected": bad})
        rated.append({"messages": [question, good if a % 2 else bad], "label": bool(a % 2)})
    texts = [f"{a} plus 1 makes {a + 1}. the quick brown fox jumps over {a} dogs." for a in range(24)]
    made = {
        "pairs.jsonl": pairs,
        "rated.jsonl": rated,
        "documents.jsonl": [{"text": text} for text in texts],
        "paragraphs.jsonl": [{"paragraph": text, "generated": n % 2 == 1} for n, text in enumerate(texts)],
        "passages.jsonl": [{"body": text, "topic": "sums", "keywords": ["fox"]} for text in texts],
    }
    for name, rows in made.items():
        (home / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return home


@pytest.mark.parametrize("name", [*ADAPTERS, *METHODS])
def test_recipe_trains(runner, rows, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)  # recipes write below the current directory
    file = EXAMPLES / f"{name}.yaml"
    data = yaml.safe_load(file.read_text())["data"]["train"][0]["path"]
    train = runner.home / "train.jsonl" if data == "conversations.jsonl" else rows / data
    base = runner.home / ("moe" if name in ("lora-moe", "router-losses") else "base")
    keys = {"model.path": base, "data.train": train, "train.max_steps": 2, "train.accumulation": 1, "adapter.rank": 4}
    if name not in (*ADAPTERS, "dpo-lora"):
        del keys["adapter.rank"]
    result = erniecore.run(file, overrides=[f"{k}={v}" for k, v in keys.items()], console="none")
    assert result.events[-1]["status"] == "finished"
    assert result.out == Path("runs") / name


@pytest.mark.parametrize("name", NAMED)
def test_recipe_with_model_and_data_of_the_command_line_trains(runner, rows, tmp_path, name):
    data, said = NAMED[name]
    base = runner.home / "base"
    keys = {"model.path": base, "data.train": rows / data, "run.out": tmp_path / name, "data.max_seq_len": 64}
    keys |= {"data.eval_fraction": 0.1, "train.max_steps": 2, "train.accumulation": 1, **said}
    words = [f"{key}={str(value).replace('{base}', str(base))}" for key, value in keys.items()]
    result = erniecore.run(EXAMPLES / f"{name}.yaml", overrides=words, console="none")
    assert [event["status"] for event in result.events if "status" in event] == ["finished"]
    assert (tmp_path / name / "model").is_dir()


def test_the_best_step_by_answers(runner, rows, tmp_path, monkeypatch):
    """The recipe as it stands but for its size: two evaluations, with loss and answers, and a best step."""
    monkeypatch.chdir(tmp_path)
    keys = {"model.path": runner.home / "base", "data.train": runner.home / "train.jsonl", "train.max_steps": 2}
    keys |= {"data.eval": runner.home / "eval.jsonl", "eval.every": 1, "callbacks.eval-generate.max_new_tokens": 4}
    keys |= {"callbacks.eval-generate.limit": 3}
    result = erniecore.run(EXAMPLES / "sft-best.yaml", [f"{k}={v}" for k, v in keys.items()], console="none")
    evals = [event for event in result.events if event["event"] == "eval"]
    assert [{"loss", "generate/exact-match", "generate/numeric", "best_step"} <= event.keys() for event in evals] == [
        True
    ] * 2


def test_the_table_names_every_recipe():
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    recipes = {path.name for path in EXAMPLES.glob("*.yaml")}
    assert {name for name in recipes if f"({name})" in text} == recipes
