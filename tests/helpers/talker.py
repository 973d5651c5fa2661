"""A model directory that can talk (nonsense): random weights, a tokenizer trained on the example's tasks.

``python tests/helpers/talker.py DIRECTORY [CONTEXT [TEMPLATE]]`` makes one for programs that are no tests of this suite.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def talker(tmp_path_factory):
    """Directory with ``model/`` and ``rows.jsonl`` (ten conversations of two tasks)."""
    return make_talker(tmp_path_factory.mktemp("talker"))


def roomy(talker: Path, target: Path, context: int) -> Path:
    """The model of ``talker`` in ``target``, for prompts and completions of ``context`` tokens."""
    shutil.copytree(talker / "model", target)
    architecture = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**architecture, "max_position_embeddings": context}))
    return target


def make_talker(home: Path, context: int = 96, template: str = "ernie45") -> Path:
    """The same in ``home``, which is there; for prompts and completions of ``context`` tokens."""
    from erniecore_demo import tasks
    from erniecore_ernie45.templating import builtin_source
    from erniecore_model_init.new_model import init_model
    from erniecore_text.training import train

    rows = list(tasks.rows("train", 400, families=["copy", "identity"]))
    with (home / "rows.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows[:10])
    tokenizer = home / "tokenizer"
    tokenizer.mkdir()
    train([message["content"] for row in rows for message in row["messages"]], 330).save(tokenizer)
    (tokenizer / "chat_template.jinja").write_text(builtin_source(template), encoding="utf-8")
    size = "hidden_size=32,intermediate_size=48,num_attention_heads=2,num_key_value_heads=1,head_dim=16"
    size += f",initializer_range=0.3,max_position_embeddings={context}"
    init_model(
        "ernie45", size, tokenizer, home / "model", seed_value=1
    )  # whose completions are text, not cut characters
    return home


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    make_talker(Path(sys.argv[1]), *map(int, sys.argv[2:3]), *sys.argv[3:4])
