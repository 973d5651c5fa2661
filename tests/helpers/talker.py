"""A model directory that can talk (nonsense): random weights, a tokenizer trained on the example's tasks.

``python tests/helpers/talker.py DIRECTORY [CONTEXT [TEMPLATE]]`` makes one for programs that are no tests of this suite, and
``… talker.py adapter MODEL DIRECTORY SEED`` an adapter on one.
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


def make_adapter(model: Path, target: Path, seed: int) -> Path:
    """A LoRA adapter with random weights on the model in ``model``, as a run writes it, in ``target``."""
    import paddle
    from erniecore_checkpoint.directories import write_directory_manifest
    from erniecore_lora import adapt, plugin
    from erniecore_lora.save import save

    from erniecore.api.run import open_model
    from erniecore.engine.fingerprint import KEY, model_digest

    opened = open_model(model).model
    paddle.seed(seed)  # before A is drawn, whatever was drawn before
    adapted = plugin.lora.ernie_adapt_model(config=plugin.lora.Config(rank=4), model=opened)
    for low in adapt.updates(adapted, adapt.active(adapted)).values():
        low.B.set_value(paddle.randn(low.B.shape))
    target.mkdir(parents=True)
    save(adapted, target, base=str(model))
    facts = {"adapter": "lora", "base": str(model), KEY: {"base": model_digest(model)}}
    write_directory_manifest(target, facts)
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


if __name__ == "__main__" and sys.argv[1] == "adapter":
    make_adapter(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
elif __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    make_talker(Path(sys.argv[1]), *map(int, sys.argv[2:3]), *sys.argv[3:4])
