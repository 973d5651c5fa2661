"""The vision example, told step by step: a tiny PaddleOCR-VL with random weights learns to read words and numbers from images
that are made here. As in ``story.py`` every step is an ``ernie`` command, and the training is killed in the middle.

Sizes and settings were found by trying: words and numbers that were never trained on are read.
"""

from __future__ import annotations

import base64
import html
import json
import time
from pathlib import Path
from random import Random
from typing import Any

from erniecore.api import Exit
from erniecore_demo import pages
from erniecore_demo.steps import (
    ernie,
    ernie_json,
    free_directory,
    print_table,
    say,
    short,
    train_with_a_kill,
    write_rows,
)
from erniecore_demo.tasks import Split

#: images; held-out texts never occur in training
TRAIN_ROWS, HELDOUT_ROWS = 10000, 200
#: share of the held-out texts that must be read without a mistake
GOAL = 0.9
VOCABULARY, MAX_NEW_TOKENS = 340, 8
#: killed after this step; the last checkpoint before it is what the run continues from
KILL_AFTER, CHECKPOINT_EVERY = 250, 200
#: tokens that stand for images, behind the tokenizer's own
TOKENS = ("<|IMAGE_PLACEHOLDER|>", "<|IMAGE_START|>", "<|IMAGE_END|>")
#: `ernie model init --size`: keys of config.json that differ from the recipe `tiny`
SIZE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "initializer_range": 0.1,
    "rope_theta": 10000.0,
    "max_position_embeddings": 256,
}
#: of the page of images
SHOWN = 40

SETTINGS = """\
model:
  path: {base}
method: sft
data:
  train: {train}
  format: messages
  max_seq_len: 128
  packing: greedy
train:
  max_steps: 800
  batch_size: 10
  learning_rate: 4e-3
  warmup_steps: 20
  schedule: cosine
  weight_decay: 0.05
optimizer:
  beta2: 0.95
checkpoint:
  every: {every}
run:
  seed: {seed}
log:
  every: 50
"""

Scores = dict[str, tuple[float, int]]


def main(out: str = "", seed: int = 0) -> int:
    """Run the example in ``out`` (default: the first free ``runs/demo-N``); returns the exit code.

    0: the resumed losses are equal, the exported model answers as the trained one, and the goal is reached. 1 otherwise.
    """
    started = time.monotonic()
    home = Path(out) if out else free_directory(Path("runs"))
    home.mkdir(parents=True, exist_ok=True)
    paths = {name: home / name for name in ("data", "tokenizer", "base", "run", "exported")}
    _prepare(home, paths, seed)
    before, answers_before = _score("before training", paths["base"], home / "answers-base.jsonl")
    equal = train_with_a_kill(home, paths["run"], KILL_AFTER)
    after, answers = _score("after training", paths["run"] / "model", home / "answers.jsonl")
    say("6. Export in the Hugging Face format; the exported files are loaded again and compared")
    ernie("export", paths["run"], "--to", "hf", "--out", paths["exported"])
    _, again = _score("with the exported model, loaded again", paths["exported"], home / "answers-hf.jsonl")
    same = again == answers
    print(f"its answers are {'the same' if same else 'DIFFERENT'}")
    good = _table(before, after)
    report = _page(home, answers_before, answers)
    print(f"\n{report}  images with answers; open it in a browser")
    print(f"{paths['run'] / 'report.html'}  curves of the training")
    print(f"\nask it:  ernie generate --model {paths['run'] / 'model'} --image {paths['data'] / 'heldout/0.png'}")
    print(f"took {time.monotonic() - started:.0f} s")
    return int(Exit.OK if equal and same and good else Exit.BUG)


def _prepare(home: Path, paths: dict[str, Path], seed: int) -> None:
    say("1. Data: images of made-up words and of numbers; held-out texts are never trained on")
    paths["data"].mkdir(exist_ok=True)
    splits: dict[Split, int] = {"train": TRAIN_ROWS, "heldout": HELDOUT_ROWS}
    for split, count in splits.items():
        write_rows(paths["data"] / f"{split}.jsonl", pages.rows(split, count, paths["data"], seed=seed))
        print(f"   {split}: {count} images in {paths['data'] / split}")
    say("2. A tokenizer, and a tiny PaddleOCR-VL with random weights")
    texts, random = paths["data"] / "chats.txt", Random(0)
    made = [" ".join(make(random)) for make in pages.FAMILIES.values() for _ in range(300)]
    texts.write_text("".join(f"User: OCR:\nAssistant: {text}\n" for text in made), encoding="utf-8")
    ernie("tokenizer", "train", texts, "--vocab-size", VOCABULARY, "--exact", "--out", paths["tokenizer"])
    ids = {token: VOCABULARY + i for i, token in enumerate(TOKENS)}
    (paths["tokenizer"] / "added_tokens.json").write_text(json.dumps(ids), encoding="utf-8")
    keys = ("image_token_id", "vision_start_token_id", "vision_end_token_id")
    size = ",".join(f"{key}={value}" for key, value in {**SIZE, **dict(zip(keys, ids.values(), strict=True))}.items())
    init = ("--size", size, "--tokenizer", paths["tokenizer"], "--out", paths["base"])
    ernie("model", "init", "--model", "paddleocr-vl", *init)
    say("3. The plan")
    train = paths["data"] / "train.jsonl"
    text = SETTINGS.format(base=paths["base"], train=train, every=CHECKPOINT_EVERY, seed=seed)
    (home / "sft.yaml").write_text(text, encoding="utf-8")
    ernie("run", home / "sft.yaml", "--out", paths["run"], "--dry-run")


def _score(when: str, model: Path, answers: Path) -> tuple[Scores, list[dict[str, Any]]]:
    """Exact match on the held-out images by family, (share, number of images), and the answers in the order of the rows."""
    print(f"\nreading {HELDOUT_ROWS} held-out images {when} …", flush=True)
    data = answers.parent / "data/heldout.jsonl"
    how = ("--max-new-tokens", MAX_NEW_TOKENS, "--batch-size", HELDOUT_ROWS, "--json")
    result = ernie_json("eval", "--model", model, "--data", data, "--generate", "--completions", answers, *how)
    matches = {name: group["exact_match"] for name, group in result["groups"].items()}
    lines = [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()]
    return {name: (match["score"], match["n"]) for name, match in matches.items()}, lines


def _table(before: Scores, after: Scores) -> bool:
    """Print the scores; whether the goal is reached, over all families."""
    say("7. Held-out images that are read without a mistake")
    rows = [(name, *(f"{scores[name][0]:.2f}" for scores in (before, after)), str(after[name][1])) for name in after]
    print_table(("family", "before", "after", "images"), rows)
    share = sum(score * n for score, n in after.values()) / sum(n for _, n in after.values())
    good = share >= GOAL
    print(f"goal ({GOAL:.0%} of all): {'reached' if good else 'NOT reached'}, {share:.1%}")
    return good


def _page(home: Path, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> Path:
    """Write ``report.html``: held-out images with what was read in them, mistakes first."""
    old = {answer["images"][0]: answer["completion"] for answer in before}
    ordered = sorted(after, key=lambda answer: (answer["correct"], int(Path(answer["images"][0]).stem)))
    lines = [_line(home, answer, old[answer["images"][0]]) for answer in ordered[:SHOWN]]
    right = sum(answer["correct"] for answer in after)
    title = f"{right} of {len(after)} held-out images are read without a mistake"
    head = "<th>image</th><th>text</th><th>before training</th><th>after training</th>"
    text = PAGE.format(title=title, count=len(lines), head=head, lines="\n".join(lines))
    (home / "report.html").write_text(text, encoding="utf-8")
    return home / "report.html"


def _line(home: Path, answer: dict[str, Any], before: str) -> str:
    file = home / "data" / answer["images"][0]
    image = base64.b64encode(file.read_bytes()).decode()
    mark = "right" if answer["correct"] else "wrong"
    cells = (answer["reference"], short(before, 24) or "(nothing)", short(answer["completion"], 24))
    shown = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
    return f'<tr class="{mark}"><td><img src="data:image/png;base64,{image}" alt="{html.escape(file.name)}"></td>{shown}</tr>'


PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font-family: sans-serif; margin: 2em; }}
img {{ width: 168px; image-rendering: pixelated; border: 1px solid #ccc; }}
td, th {{ padding: 0.2em 1em; text-align: left; }}
.wrong td:last-child {{ color: #b00; }}
</style>
<h1>{title}</h1>
<p>{count} of them, mistakes first.</p>
<table>
<tr>{head}</tr>
{lines}
</table>
</html>
"""
