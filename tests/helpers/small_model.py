"""Tiny models, their tokenizer and data files, for runs of a second."""

import json
import random
from pathlib import Path


def write_rows(path: Path, count: int, seed: int, *, template: str = "{a} plus {b}") -> Path:
    """Additions as conversations."""
    rng = random.Random(seed)
    with path.open("w") as file:
        for _ in range(count):
            a, b = rng.randint(0, 30), rng.randint(0, 30)
            turns = [
                {"role": "user", "content": template.format(a=a, b=b)},
                {"role": "assistant", "content": f"{a + b}"},
            ]
            file.write(json.dumps({"messages": turns}) + "\n")
    return path


def make_home(home: Path) -> Path:
    """``home`` with the models ``base`` (dense) and ``moe``, their tokenizer ``tok``, ``train.jsonl``, ``eval.jsonl``."""
    from erniecore_model_init.new_model import init_model
    from erniecore_text.training import train

    texts = [f"{a} plus {b} {a + b}" for a in range(31) for b in range(31)]
    (home / "tok").mkdir()
    train([*texts, *["the quick brown fox jumps over dogs"] * 9], 320).save(home / "tok")
    small = "hidden_size=32,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2"
    init_model("ernie45", f"{small},intermediate_size=64,head_dim=8", home / "tok", home / "base", seed_value=1)
    init_model("ernie45-moe", small, home / "tok", home / "moe", seed_value=1)
    write_rows(home / "train.jsonl", 90, 1)
    write_rows(home / "eval.jsonl", 12, 2)
    return home
