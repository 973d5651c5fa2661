"""A model directory that can talk (nonsense), and the variables of a process that sees no settings of the caller."""

import json
import os

import pytest

from erniecore.cli.app import main


@pytest.fixture(scope="session")
def talker(tmp_path_factory):
    """Directory with ``model/`` (random weights, 330 tokens) and ``rows.jsonl`` (ten conversations)."""
    home = tmp_path_factory.mktemp("talker")
    rows = [
        {"messages": [{"role": "user", "content": f"Say {word} again."}, {"role": "assistant", "content": word * 2}]}
        for word in (f"{a}{b}" for a in "bdfgklmnprst" for b in ("ona", "ilu", "ame", "oro", "ets"))
    ]
    (home / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:10]))
    made = ["tokenizer", "train", str(home / "texts.jsonl"), "--vocab-size", "330", "--out", str(home / "tokenizer")]
    assert main(made) == 0
    size = "hidden_size=32,intermediate_size=48,num_attention_heads=2,num_key_value_heads=1,head_dim=16"
    args = [
        "--size",
        f"{size},initializer_range=0.3,max_position_embeddings=96",
        "--tokenizer",
        str(home / "tokenizer"),
    ]
    assert main(["model", "init", "--model", "ernie45", *args, "--out", str(home / "model")]) == 0
    return home


@pytest.fixture
def environ(monkeypatch):
    """Variables of this process and more, without settings of the caller."""
    for name in [name for name in os.environ if name.startswith("ERNIE_")]:
        monkeypatch.delenv(name)
    return lambda **more: {**os.environ, "NO_COLOR": "1", **more}
