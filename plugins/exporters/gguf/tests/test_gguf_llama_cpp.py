"""With llama.cpp itself, on small trained models: the same ids for texts, the same prompt for conversations, the same greedy
tokens in float32 and float16, and a loss within bounds in every type.

Runs where ``ERNIE_LLAMA_CPP_PYTHON`` names an interpreter with llama-cpp-python and jinja2."""

from __future__ import annotations

import json
import os
import subprocess

import numpy as np
import pytest
from erniecore_export.exporting import export_directory
from erniecore_generation.generate import generate
from small_model import write_rows

from erniecore.engine.models.bundles import load_bundle
from erniecore.types.records import Message

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get("ERNIE_LLAMA_CPP_PYTHON"),
        reason="$ERNIE_LLAMA_CPP_PYTHON names no interpreter with llama-cpp-python",
    ),
]
#: largest change of the mean loss, in nats a token, that each type may bring
BOUNDS = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-2, "q8_0": 1e-2, "q4_0": 2e-2}
COMMON = "hidden_size=64,intermediate_size=96,num_attention_heads=4,num_key_value_heads=2,num_hidden_layers=3"
SIZES = {
    "ernie45": f"{COMMON},head_dim=32",
    "ernie45-moe": f"{COMMON},moe_num_experts=4,moe_k=2,moe_intermediate_size=32,moe_num_shared_experts=1,"
    "moe_layer_start_index=1,tie_word_embeddings=false",
}
TEXTS = (
    "3 plus 4",
    "The quick brown fox jumps over dogs.",
    "  two spaces, a tab\t, lines\n\n and a blank at the end ",
    "春眠不觉晓，处处闻啼鸟。 12345 + 678 = ?",
    "🙂🙃 naïve façade — “quotes” ½ \u200b \x7f",
    "𠮷野家 \U0010ffff é e\u0301 ﬁ Ａ",
    "def f(x):\r\n\treturn x ** 2  # 100%",
    "",
)
CONVERSATIONS = (
    [("user", "3 plus 4")],
    [("system", "Be brief."), ("user", "你好 🙂"), ("assistant", "it is 7"), ("user", " 5 plus 6\n")],
)
NUM_NEW = 16
#: what runs in the other interpreter: a request in JSON gives an answer in JSON
READER = """
import json, sys
import numpy as np
from llama_cpp import Llama
from llama_cpp.llama_chat_format import Jinja2ChatFormatter
ask = json.load(open(sys.argv[1]))
model = Llama(ask["file"], n_ctx=256, n_batch=256, n_threads=1, logits_all=True, type_k=0, type_v=0, verbose=False)
def ids(text, special):
    return model.tokenize(text.encode(), add_bos=False, special=special)
def greedy(prompt):
    model.reset()
    model.eval(prompt)
    out = []
    for _ in range(ask["new"]):
        out.append(int(np.argmax(model.scores[model.n_tokens - 1])))
        model.eval(out[-1:])
    return out
def loss(tokens, at):
    model.reset()
    model.eval(tokens)
    rows = model.scores[: len(tokens) - 1].astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    logs = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return -float(np.mean(logs[at, [tokens[i + 1] for i in at]]))
named = {key: model._model.token_get_text(int(model.metadata["tokenizer.ggml.%s_token_id" % key])) for key in ("bos", "eos")}
render = Jinja2ChatFormatter(model.metadata["tokenizer.chat_template"], eos_token=named["eos"], bos_token=named["bos"])
prompts = [render(messages=[{"role": r, "content": c} for r, c in talk]).prompt for talk in ask["conversations"]]
answer = {
    "texts": [ids(text, False) for text in ask["texts"]],
    "prompts": prompts,
    "prompt_ids": [ids(prompt, True) for prompt in prompts],
    "greedy": [greedy(prompt) for prompt in ask["ids"]],
    "loss": loss(ask["loss"], ask["at"]),
}
json.dump(answer, open(sys.argv[2], "w"))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Trained models of both architectures, as finished runs, and what erniecore says to the requests."""
    from erniecore_model_init.new_model import init_model
    from erniecore_text.training import train

    import erniecore

    home = tmp_path_factory.mktemp("llama")
    (home / "tok").mkdir()
    texts = [f"{a} plus {b} {a + b}" for a in range(31) for b in range(31)]
    train([*texts, *["the quick brown fox jumps over dogs, 你好"] * 9], 330).save(home / "tok")
    write_rows(home / "rows.jsonl", 200, 1)
    for name, size in SIZES.items():
        init_model(name, size, home / "tok", home / f"{name}-new", seed_value=1)
        settings = {"model.path": home / f"{name}-new", "method.name": "sft", "data.train": home / "rows.jsonl",
                    "data.max_seq_len": 64, "train.batch_size": 8, "train.max_steps": 60, "train.learning_rate": 5e-3,
                    "log.report": "false", "run.out": home / name}  # fmt: skip
        erniecore.run(overrides=[f"{key}={value}" for key, value in settings.items()], console="none")
    return home


def ours(bundle):
    """The requests, and the answers of erniecore."""
    import paddle

    model, tokenizer = bundle.model, bundle.tokenizer
    template = tokenizer.chat_template
    talks = [[Message(role, content) for role, content in talk] for talk in CONVERSATIONS]
    segments = [template.segments(talk, add_generation_prompt=True) for talk in talks]
    prompt_ids = [[i for part in tokenizer.encode_segments(cut) for i in part] for cut in segments]
    prompts = [*prompt_ids, *(tokenizer.encode(text) for text in TEXTS[:5])]
    greedy = [generate(model, ids, max_new_tokens=NUM_NEW, eos=()).numpy()[0].tolist() for ids in prompts]
    text = prompts[0] + greedy[0]  # the loss of what the model writes
    at = list(range(len(prompts[0]) - 1, len(text) - 1))
    with paddle.no_grad():
        logits = model.logits(model.features(paddle.to_tensor([text])).hidden).numpy()[0, :-1].astype(np.float64)
    logs = logits - logits.max(axis=1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
    answer = {
        "texts": [tokenizer.encode(text) for text in TEXTS],
        "prompts": [template.render(talk) for talk in talks],
        "prompt_ids": prompt_ids,
        "greedy": greedy,
        "loss": -float(np.mean(logs[at, [text[i + 1] for i in at]])),
    }
    request = {"texts": TEXTS, "conversations": CONVERSATIONS, "ids": prompts, "loss": text, "at": at, "new": NUM_NEW}
    return request, answer


def theirs(request, file, folder):
    (folder / "ask.json").write_text(json.dumps({**request, "file": str(file)}))
    command = [
        os.environ["ERNIE_LLAMA_CPP_PYTHON"],
        "-c",
        READER,
        str(folder / "ask.json"),
        str(folder / "answer.json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "answer.json").read_text())


@pytest.mark.parametrize("name", SIZES)
def test_llama_cpp_reads_what_we_wrote(home, tmp_path, name):
    request, answer = ours(load_bundle(home / name / "model").bundle)
    assert answer["loss"] < 3  # trained: guessing gives 5.8
    changes = {}
    for dtype in BOUNDS:
        export_directory(home / name, tmp_path / dtype, "gguf", {"dtype": dtype})
        (file,) = (tmp_path / dtype).glob("*.gguf")
        found = theirs(request, file, tmp_path)
        for key in ("texts", "prompts", "prompt_ids"):
            assert found[key] == answer[key], (dtype, key)
        if dtype in ("float32", "float16"):
            assert found["greedy"] == answer["greedy"], dtype
        changes[dtype] = found["loss"] - answer["loss"]
    assert all(abs(change) <= BOUNDS[dtype] for dtype, change in changes.items()), changes
