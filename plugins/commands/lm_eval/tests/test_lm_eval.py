"""``ernie lm-eval``: scores against plain logits and `ernie eval`, tasks of local files, refusals, resuming."""

import functools
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from erniecore.cli.app import main
from erniecore.errors import Exit

pytest.importorskip("lm_eval")

CHOICE = """task: letters
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}"}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{gold}}}}"
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
metadata: {{version: 3}}
"""
ANSWER = """task: answer
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}"}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{choices[gold]}}}}"
generation_kwargs: {{until: ["7"], max_gen_toks: 9}}
metric_list: [{{metric: exact_match}}]
"""
TEXT = """task: text
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}"}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{question}}}}"
metric_list: [{{metric: bits_per_byte}}]
"""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory, talker):
    """A directory with three tasks over eight rows."""
    home = tmp_path_factory.mktemp("tasks")
    rows = [
        {"question": f"copy {n * 37}", "choices": [f"{n}", f"{n * 37}", "a long answer", "b"], "gold": n % 4}
        for n in range(8)
    ]
    rows[5]["question"] = "copy 1 2 3 " * 12  # longer than the context
    data = home / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in (("letters", CHOICE), ("answer", ANSWER), ("text", TEXT)):
        (home / f"{name}.yaml").write_text(text.format(data=data))
    return home


@pytest.fixture
def run(talker, tasks, capsys):
    """Run the command: (exit code, stdout, stderr)."""

    def start(*args, model=talker / "model", include=tasks):
        code = main(["lm-eval", "--model", str(model), "--include-path", str(include), *map(str, args)])
        return code, *capsys.readouterr()

    return start


ALL = ("--tasks", "letters,answer,text")


def logprobs(directory, ids):
    """log softmax [T, V] of the model's plain logits, in float64."""
    import paddle

    import erniecore

    model = erniecore.load_model(directory)
    model.eval()
    with paddle.no_grad():
        logits = model(paddle.to_tensor([ids])).numpy()[0].astype("float64")
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def test_scores_are_those_of_plain_logits_and_of_no_batch(run, talker, tasks, tmp_path):
    import erniecore

    found = {}
    for size in (1, 4):
        out, samples = tmp_path / f"{size}.json", tmp_path / f"{size}.jsonl"
        code, shown, err = run(*ALL, "--out", out, "--samples", samples, "--batch-size", size)
        assert code == Exit.OK, err
        found[size] = [json.loads(line) for line in samples.read_text().splitlines()]
    assert found[1] == found[4]  # every score and every completion
    assert "letters" in shown
    assert "bits_per_byte" in shown
    assert "letters: 4 of 32 prompts lost their beginning" in err
    tokenizer = erniecore.load_tokenizer(talker / "model")
    row = next(r for r in found[1] if r["task"] == "letters" and r["doc_id"] == 2)
    context, choices = tokenizer.encode(row["doc"]["question"]), row["doc"]["choices"]
    for choice, [[got, greedy]] in zip(choices, row["resps"], strict=True):
        answer = tokenizer.encode(row["doc"]["question"] + " " + choice)[len(context) :]
        table = logprobs(talker / "model", [*context, *answer])[len(context) - 1 : -1]
        assert float(got) == pytest.approx(sum(table[i, t] for i, t in enumerate(answer)), rel=1e-5)
        assert (str(greedy) == "True") == all(table[i].argmax() == t for i, t in enumerate(answer))
    answer = next(r for r in found[1] if r["task"] == "answer")
    assert all("7" not in r["resps"][0][0] for r in found[1] if r["task"] == "answer")
    assert answer["scores"]
    body = json.loads((tmp_path / "1.json").read_text())
    assert len(body["model_sha256"]) == 64
    assert body["tasks"]["letters"]["version"] == 3
    assert len(body["tasks"]["letters"]["samples_sha256"]) == 64
    assert body["results"]["letters"]["acc_stderr,none"] >= 0


def test_a_rolling_text_is_predicted_once_in_windows(run, talker, tmp_path):
    """A text longer than the window: the second window has one token of context."""
    import erniecore

    text = "copy 12 and copy 34"
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps({"question": text}) + "\n")
    (tmp_path / "text.yaml").write_text(TEXT.format(data=data))
    code, _, err = run("--tasks", "text", "--samples", tmp_path / "s.jsonl", "--max-length", "8", include=tmp_path)
    assert code == Exit.OK, err
    tokenizer = erniecore.load_tokenizer(talker / "model")
    ids = [tokenizer.bos_id, *tokenizer.encode(text)]
    assert len(ids) > 12
    total = 0.0
    for begin in range(0, len(ids) - 1, 8):
        end = min(begin + 8, len(ids) - 1)
        # the last window is as long as the others, and only its end is predicted
        table = logprobs(talker / "model", ids[max(0, end - 8) : end])
        total += sum(table[i - end, ids[i + 1]] for i in range(begin, end))
    row = json.loads((tmp_path / "s.jsonl").read_text())
    assert float(row["resps"][0][0]) == pytest.approx(total, rel=1e-5)


def test_chat_answers_have_the_loss_of_eval(run, talker, tmp_path, capsys):
    """The sum over an answer, with the template that training uses, is what `ernie eval` sums but for the end token's part."""
    lines = (talker / "rows.jsonl").read_text().splitlines()
    rows = [json.loads(line)["messages"] for line in lines]
    data = tmp_path / "rows.jsonl"
    docs = [{"question": q["content"], "choices": [a["content"], "0"], "gold": 0} for q, a in rows]
    data.write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    (tmp_path / "letters.yaml").write_text(CHOICE.format(data=data) + 'target_delimiter: ""\n')
    samples = tmp_path / "s.jsonl"
    code, _, err = run("--tasks", "letters", "--chat-template", "--samples", samples, include=tmp_path)
    assert code == Exit.OK, err
    assert "did not go through" not in err
    found = [json.loads(line) for line in samples.read_text().splitlines()]
    import erniecore
    from erniecore.types.records import Message

    tokenizer = erniecore.load_tokenizer(talker / "model")
    ends = 0.0
    for doc in docs:
        segments = tokenizer.chat_template.segments([Message("user", doc["question"])], add_generation_prompt=True)
        ids = [i for part in tokenizer.encode_segments(segments) for i in part] + tokenizer.encode(doc["choices"][0])
        ends += logprobs(talker / "model", ids)[-1, tokenizer.eos_id]
    code = main(["eval", "--model", str(talker / "model"), "--data", str(talker / "rows.jsonl"), "--json"])
    body = json.loads(capsys.readouterr()[0])
    assert code == Exit.OK
    ours = sum(float(row["resps"][0][0][0]) for row in found) + ends
    assert ours == pytest.approx(-body["loss"] * body["tokens"], rel=1e-5)


def test_a_uniform_model_scores_chance(run, talker, tmp_path):
    """All logits are equal, so every token has the log-probability -ln V, and the first of equally long answers wins."""
    import shutil

    from safetensors.numpy import load_file, save_file

    model = tmp_path / "uniform"
    shutil.copytree(talker / "model", model)
    [weights] = model.glob("*.safetensors")
    arrays = {name: np.zeros_like(array) for name, array in load_file(weights).items()}
    save_file(arrays, weights, metadata={"format": "pt"})
    (model / "erniecore_manifest.json").unlink(missing_ok=True)
    data = tmp_path / "rows.jsonl"
    rows = [{"question": f"copy {n}", "choices": ["a", "b", "c", "d"], "gold": n % 4} for n in range(12)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "letters.yaml").write_text(CHOICE.format(data=data))
    code, out, err = run(
        "--tasks", "letters", "--samples", tmp_path / "s.jsonl", "--json", model=model, include=tmp_path
    )
    assert code == Exit.OK, err
    body = json.loads(out)
    assert body["results"]["letters"]["acc,none"] == 0.25
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    values = {
        float(r[0][0]) for line in (tmp_path / "s.jsonl").read_text().splitlines() for r in json.loads(line)["resps"]
    }
    assert all(round(value / math.log(vocabulary), 6) == round(value / math.log(vocabulary)) for value in values)


def test_what_was_finished_is_not_computed_again(run, tmp_path, monkeypatch):
    """A run that ends in the middle continues with the same results; another model shares nothing."""
    from erniecore_lm_eval import model as module

    whole, out = tmp_path / "whole.json", tmp_path / "out.json"
    run(*ALL, "--out", whole, "--samples", tmp_path / "a.jsonl")
    score = module.score_pairs

    def interrupted(*asked):
        for number, entry in enumerate(score(*asked)):
            if number == 10:
                raise KeyboardInterrupt
            yield entry

    monkeypatch.setattr(module, "score_pairs", interrupted)
    assert run(*ALL, "--out", out)[0] == Exit.INTERRUPTED
    kept = out.with_name("out.json.requests.jsonl")
    assert len(kept.read_text().splitlines()) == 10
    assert not out.exists()
    with kept.open("a") as file:
        file.write('{"key": "cut')  # as a kill leaves it
    monkeypatch.setattr(module, "score_pairs", score)
    code, _, err = run(*ALL, "--out", out, "--samples", tmp_path / "b.jsonl")
    assert code == Exit.OK
    assert "10 requests were finished before" in err
    assert (tmp_path / "a.jsonl").read_text() == (tmp_path / "b.jsonl").read_text()
    first, second = (json.loads(path.read_text()) for path in (whole, out))
    assert first.pop("reused_requests") == 0
    assert second.pop("reused_requests") == 10
    assert first == second


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("task: bad\nprocess_docs: !function helper.make\n", "!function helper.make"),
        ("task: bad\nmetric_list: [{metric: ./script.py}]\n", "metric: ./script.py"),
        ("task: bad\ndataset_path: pandas\n", "dataset_path: pandas"),
        ("task: bad\ndataset_kwargs: {trust_remote_code: true}\n", "trust_remote_code"),
    ],
)
def test_a_task_file_that_would_run_code_is_refused(run, tmp_path, text, found):
    (tmp_path / "bad.yaml").write_text(text)
    (tmp_path / "helper.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'ran')!r})\nmake = None\n")
    code, _, err = run("--tasks", "bad", include=tmp_path)
    assert code == Exit.USAGE
    assert found in err
    assert "bad.yaml:2" in err
    assert "--allow-code" in err
    assert not (tmp_path / "ran").exists()
    if "helper" in found:
        run("--tasks", "bad", "--allow-code", include=tmp_path)
        assert (tmp_path / "ran").exists()


def test_a_template_of_a_task_reaches_nothing_but_its_row(run, tmp_path, tasks):
    escape = "{{ question.__class__.__mro__[1].__subclasses__() }}"
    text = (tasks / "letters.yaml").read_text().replace('"{{question}}"', json.dumps(escape))
    (tmp_path / "letters.yaml").write_text(text)
    code, _, err = run("--tasks", "letters", include=tmp_path)
    assert code == Exit.DATA
    assert "SecurityError" in err


@pytest.fixture(scope="module")
def indexed_once():
    """Reading the thousands of task files of the harness takes seconds."""
    from lm_eval import tasks

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "TaskManager", functools.cache(tasks.TaskManager))
        yield


@pytest.mark.usefixtures("indexed_once")
@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (("--tasks", "leters"), Exit.USAGE, "letters"),
        (("--tasks", "answer", "--gen-kwargs", "best_of=3"), Exit.USAGE, "best_of"),
        (("--tasks", "answer", "--gen-kwargs", "max_gen_toks=96"), Exit.USAGE, "max_gen_toks=N"),
        (("--tasks", "letters", "--gen-kwargs", "x"), Exit.USAGE, "KEY=VALUE"),
        (("--tasks", "letters", "--max-length", "2"), Exit.DATA, "longer than the context"),
        (("--tasks", "hellaswag"), Exit.DATA, "nothing is fetched"),
    ],
)
def test_mistakes(run, args, code, text):
    found, _, err = run(*args)
    assert found == code
    assert text in err


def test_completions_are_those_of_the_model_with_its_adapter(talker):
    """Before and after: log-likelihoods that follow are of the same model."""
    import paddle
    from erniecore_generation.generate import generate
    from erniecore_generation.sampling import Sampling
    from erniecore_lm_eval.generator import Prompt, complete
    from erniecore_lora.build import adapt
    from erniecore_lora.config import LoraConfig, Variant

    from erniecore.engine.models.bundles import load_bundle

    bundle = load_bundle(talker / "model").bundle
    ids = bundle.tokenizer.encode("copy 37")

    def greedy(model):
        return bundle.tokenizer.decode(generate(model, [ids], max_new_tokens=9, eos=()).numpy()[0].tolist())

    base = greedy(bundle.model)
    model = adapt(bundle.model, LoraConfig(rank=3, targets=("q_proj", "down_proj")), Variant())
    paddle.seed(1)
    for name, parameter in model.named_parameters():
        if ".lora." in name:
            parameter.set_value(0.5 * paddle.randn(parameter.shape))
    adapted = greedy(model)
    assert adapted != base
    prompt = Prompt(tuple(ids), (), 9, Sampling(), 0, False)
    [(_, text)] = complete(replace(bundle, model=model), [prompt], rows=1, context=64)
    assert adapted.startswith(text)
    assert text
    assert greedy(model) == adapted
