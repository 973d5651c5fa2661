"""lm-evaluation-harness over HTTP: the scores and completions of ``ernie lm-eval`` in-process, to the last digit, and the loss of
``ernie eval``.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import openai
import pytest

from conftest import ernie

CHOICE = """task: letters
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{gold}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
ANSWER = """task: answer
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[gold]}}"
generation_kwargs: {until: ["7"], max_gen_toks: 9, temperature: 0}
metric_list: [{metric: exact_match}]
"""
TEXT = """task: text
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: bits_per_byte}]
"""
#: of prompts with their answers; the client takes one less
CONTEXT = 200


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """A directory with three tasks over twelve rows; one row is longer than most chunks of a prompt."""
    home = tmp_path_factory.mktemp("tasks")
    rows = [
        {"question": f"copy {n * 37} " * (1 + 3 * (n == 5)), "choices": [f"{n}", f"{n * 37}", "a long answer", "b"],
         "gold": n % 4}
        for n in range(12)
    ]  # fmt: skip
    data = home / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    of_data = f'dataset_path: json\ndataset_kwargs: {{data_files: {{test: "{data}"}}}}\ntest_split: test\n'
    for name, text in (("letters", CHOICE), ("answer", ANSWER), ("text", TEXT)):
        (home / f"{name}.yaml").write_text(text + of_data)
    return home


def in_process(server, tasks, names, out, *more):
    """Task and document -> what the harness was given."""
    samples = out / "own.jsonl"
    ernie("ernie", "lm-eval", "--model", server.directory, "--tasks", names, "--include-path", tasks,
          "--max-length", CONTEXT, "--samples", samples, *more)  # fmt: skip
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    return {(row["task"], row["doc_id"]): scores(row["resps"]) for row in rows}


def scores(resps):
    """Log-likelihoods as numbers: one of the two commands writes them as text, with all digits."""
    if isinstance(resps, list):
        return [scores(part) for part in resps]
    try:
        return resps if isinstance(resps, bool) else float(resps)
    except ValueError:
        return {"True": True, "False": False}.get(resps, resps)


def over_http(server, tasks, names, out, kind, route, *more):
    """The same, by the harness's own command."""
    arguments = f"model=tiny,base_url={server.url}/{route},max_length={CONTEXT},max_retries=1"
    if kind == "local-completions":
        arguments += f",tokenizer_backend=remote,tokenized_requests=True,auth_token={server.key}"
    words = [
        Path(sys.executable).with_name("lm_eval"), "run", "--model", kind, "--model_args", arguments, "--tasks", names,
        "--include_path", tasks, "--log_samples", "--output_path", out, *more,
    ]  # fmt: skip
    done = subprocess.run(
        [*map(str, words)], capture_output=True, text=True, env={**os.environ, "OPENAI_API_KEY": server.key}
    )
    assert done.returncode == 0, done.stderr
    found = {}
    for file in out.rglob("samples_*.jsonl"):
        name = next(task for task in names.split(",") if f"samples_{task}_" in file.name)
        found |= {(name, row["doc_id"]): scores(row["resps"]) for row in map(json.loads, file.read_text().splitlines())}
    return found


def test_scores_and_completions_are_those_of_the_process(server, tasks, tmp_path):
    names = "letters,answer,text"
    own = in_process(server, tasks, names, tmp_path)
    served = over_http(server, tasks, names, tmp_path / "http", "local-completions", "completions")
    assert len(own) == 36
    assert own == served


def test_chat_completions_are_those_of_the_process(server, tasks, tmp_path):
    own = in_process(server, tasks, "answer", tmp_path, "--chat-template")
    served = over_http(
        server, tasks, "answer", tmp_path / "http", "local-chat-completions", "chat/completions",
        "--apply_chat_template",
    )  # fmt: skip
    assert len(own) == 12
    assert own == served


def test_log_probabilities_are_the_loss_of_eval(server, home):
    """Answers behind their prompts by the server's template, and the token that ends them, as training sees them."""
    rows = home / "roomy" / "rows.jsonl"
    told = json.loads(ernie("ernie", "eval", "--model", server.directory, "--data", rows, "--json"))
    total = count = 0
    with openai.OpenAI(base_url=server.url, api_key=server.key) as client:
        root = server.url.removesuffix("/v1")

        def ids(**body):
            return client.post(f"{root}/tokenize", body=body, cast_to=object)["tokens"]

        end = client.get(f"{root}/tokenizer_info", cast_to=object)["eos_token"]
        vocabulary = json.loads((server.directory / "tokenizer.json").read_text())
        [eos] = [token["id"] for token in vocabulary["added_tokens"] if token["content"] == end]
        for line in rows.read_text().splitlines():
            question, answer = json.loads(line)["messages"]
            before = ids(messages=[question])
            whole = [*before, *ids(prompt=answer["content"]), eos]
            scored = client.completions.create(model="tiny", prompt=whole, echo=True, logprobs=0, max_tokens=0)
            values = scored.choices[0].logprobs.token_logprobs[len(before) :]
            total, count = total + sum(values), count + len(values)
    assert count == told["tokens"]
    assert -total / count == pytest.approx(told["loss"], rel=2e-6)  # float32 both, in other orders
