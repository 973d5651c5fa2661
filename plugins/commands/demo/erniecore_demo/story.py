"""The embedded example, told step by step. Every step is an ``ernie`` command that anybody could type; this file only
chooses the arguments, kills the training in the middle and compares the numbers.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from erniecore.api import Exit
from erniecore.api.runs import EVENTS_NAME
from erniecore_demo import recipe, tasks
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

Scores = dict[str, tuple[float, int]]
Answer = dict[str, Any]


def main(out: str = "") -> int:
    """Run the example in ``out`` (default: the first free ``runs/demo-N``); returns the exit code.

    0: the resumed losses are equal, the exported model answers as the trained one, and at least one family of tasks
    that cannot be memorized reached the goal. 1 otherwise.
    """
    started = time.monotonic()
    home = Path(out) if out else free_directory(Path("runs"))
    home.mkdir(parents=True, exist_ok=True)
    paths = {name: home / name for name in ("data", "tokenizer", "base", "run", "dpo", "exported")}
    _prepare(home, paths)
    before, answers_before = _score("before training", paths["base"], home / "answers-base.jsonl")
    equal = train_with_a_kill(home, paths["run"], recipe.KILL_AFTER)
    tuned, _ = _score("after fine-tuning", paths["run"] / "model", home / "answers-sft.jsonl")
    polite = _prefer(home, paths)
    after, answers_after = _score("after both stages", paths["dpo"] / "model", home / "answers-dpo.jsonl")
    _export(paths)
    _, answers_exported = _score("with the exported model, loaded again", paths["exported"], home / "answers-hf.jsonl")
    same = answers_exported == answers_after
    print(f"its answers are {'the same' if same else 'DIFFERENT'}")
    _show_answers(answers_before, answers_after)
    good = _table(before, tuned, after, polite)
    _artifacts(paths, time.monotonic() - started)
    return int(Exit.OK if equal and same and good else Exit.BUG)


def _prepare(home: Path, paths: dict[str, Path]) -> None:
    say("1. Data: small tasks whose answers can be checked; held-out questions are never trained on")
    paths["data"].mkdir(exist_ok=True)
    learned = (*recipe.FAMILIES, recipe.UNDECIDED)
    rows_by_split = {
        "train": list(tasks.rows("train", recipe.TRAIN_ROWS, families=learned, longer=recipe.FOLLOW_UPS)),
        "heldout": list(tasks.rows("heldout", recipe.HELDOUT_ROWS, families=recipe.FAMILIES)),
    }
    for split, rows in rows_by_split.items():
        write_rows(paths["data"] / f"{split}.jsonl", rows)
        print(f"   {split}: {len(rows)} rows, for example  {_as_chat(rows[1]).strip()!r}")
    train = paths["data"] / "train.jsonl"
    say("2. A tokenizer and a tiny ERNIE 4.5 mixture of experts with random weights")
    texts = paths["data"] / "chats.txt"  # with the words of the chat template, so that these are short in tokens
    texts.write_text(
        "".join(_as_chat(row) for row in rows_by_split["train"][: recipe.VOCABULARY_ROWS]), encoding="utf-8"
    )
    ernie("tokenizer", "train", texts, "--vocab-size", recipe.VOCABULARY, "--out", paths["tokenizer"])
    size = ",".join(f"{key}={value}" for key, value in recipe.SIZE.items())
    args = ("--size", size, "--tokenizer", paths["tokenizer"], "--out", paths["base"])
    ernie("model", "init", "--model", "ernie45-moe", *args)
    say("3. The plan")
    text = recipe.SFT_FILE.format(base=paths["base"], train=train, every=recipe.CHECKPOINT_EVERY)
    (home / "sft.yaml").write_text(text, encoding="utf-8")
    ernie("run", home / "sft.yaml", "--out", paths["run"], "--dry-run")


def _as_chat(row: tasks.Row) -> str:
    question, answer = (message["content"] for message in row["messages"][-2:])
    return f"User: {question}\nAssistant: {answer}\n"


def _prefer(home: Path, paths: dict[str, Path]) -> tuple[float, float]:
    """The second stage; the share of held-out pairs whose preferred answer is the likelier one, before and after."""
    say("6. Preferences: of two ways to greet, both learned alike, the polite one is preferred (DPO)")
    train, heldout = (paths["data"] / f"pairs-{split}.jsonl" for split in ("train", "heldout"))
    write_rows(train, list(tasks.pairs("train", recipe.PAIRS)))
    write_rows(heldout, list(tasks.pairs("heldout", recipe.HELDOUT_PAIRS)))
    before = _preference_accuracy(paths["run"] / "model", heldout)
    text = recipe.DPO_FILE.format(base=paths["run"] / "model", train=train)
    (home / "dpo.yaml").write_text(text, encoding="utf-8")
    ernie("run", home / "dpo.yaml", "--out", paths["dpo"])
    after = _preference_accuracy(paths["dpo"] / "model", heldout)
    print(f"preference accuracy on {recipe.HELDOUT_PAIRS} held-out pairs: {before:.2f} before, {after:.2f} after")
    return before, after


def _preference_accuracy(model: Path, pairs: Path) -> float:
    result = ernie_json("eval", "--model", model, "--data", pairs, "--method", "dpo", "--batch-size", 50, "--json")
    return float(result["metrics"]["rewards/accuracies"])


def _score(when: str, model: Path, answers: Path) -> tuple[Scores, list[Answer]]:
    """Exact match on the held-out questions by family, (share, number of questions), and the answers themselves."""
    print(f"\nanswering {recipe.HELDOUT_ROWS} held-out questions {when} …", flush=True)
    heldout = answers.parent / "data/heldout.jsonl"
    command = ("eval", "--model", model, "--data", heldout, "--generate", "--completions", answers)
    result = ernie_json(
        *command, "--max-new-tokens", recipe.MAX_NEW_TOKENS, "--batch-size", recipe.HELDOUT_ROWS, "--json"
    )
    matches = {name: group["exact_match"] for name, group in result["groups"].items()}
    lines = answers.read_text(encoding="utf-8").splitlines()
    return {name: (match["score"], match["n"]) for name, match in matches.items()}, [json.loads(x) for x in lines]


def _export(paths: dict[str, Path]) -> None:
    say("7. Export in the Hugging Face format; the exported files are loaded again and compared")
    ernie("export", paths["dpo"], "--to", "hf", "--out", paths["exported"])


def _show_answers(before: list[Answer], after: list[Answer]) -> None:
    say("8. Held-out questions, answered before and after")
    rows = []
    for family in recipe.FAMILIES:
        old, new = next(pair for pair in zip(before, after, strict=True) if pair[0]["group"] == family)
        rows.append(
            (new["question"], new["reference"], short(old["completion"]) or "(nothing)", short(new["completion"]))
        )
    print_table(("question", "right answer", "before", "after"), rows)


def _table(before: Scores, tuned: Scores, after: Scores, polite: tuple[float, float]) -> bool:
    """Print the scores; whether a family that needs more than memory reached the goal, and preferences were learned."""
    say("9. Exact match on held-out questions, and preferred answers that are the likelier ones")
    rows = [
        (n, *(f"{scores[n][0]:.2f}" for scores in (before, tuned, after)), str(after[n][1])) for n in recipe.FAMILIES
    ]
    rows.append(("preferences", "", f"{polite[0]:.2f}", f"{polite[1]:.2f}", str(recipe.HELDOUT_PAIRS)))
    print_table(("family", "before", "after SFT", "after DPO", "questions"), rows)
    reached = [n for n in recipe.FAMILIES if after[n][0] >= recipe.GOAL and n != recipe.MEMORIZED]
    goal = f"{recipe.GOAL:.0%} on a family that cannot be memorized, and of the preferences"
    good = bool(reached) and polite[1] >= recipe.GOAL
    print(f"goal ({goal}): {'reached, by ' + ', '.join(reached) if good else 'NOT reached'}")
    return good


def _artifacts(paths: dict[str, Path], seconds: float) -> None:
    say("10. What there is now")
    run, last = paths["run"], paths["dpo"]
    what = {
        run / "resolved.yaml": "every setting with its source; `ernie run` on it repeats this run",
        run / EVENTS_NAME: "what happened, one JSON object per line",
        run / "report.html": "curves; open it in a browser",
        run / "data_report.json": "what became of every row",
        run / "ckpt": "checkpoints: `ernie ckpt verify`",
        run / "model": "the fine-tuned model",
        last / "model": "the model after both stages; its run directory has the same files",
        paths["exported"]: "the same in the Hugging Face format, checked",
    }
    width = max(len(str(path)) for path in what)
    for path, text in what.items():
        print(f"  {path!s:<{width}}  {text}")
    print(f"\ntalk to it:  ernie chat --model {last / 'model'}\ntook {seconds:.0f} s")
