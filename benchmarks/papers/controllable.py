"""Controllable language modeling (ERNIE 3.0 Titan, arXiv:2112.12731): does a model that learns half of its texts behind prompts
stay within 1 % of the perplexity of a plain one where nothing is asked of it?

Text: sentences of made-up words. A topic decides the nouns, a sentiment and a genre what stands between them; which noun follows
which is a table of the topic. The plain model is the same method without prompts (``plain: 1``), so that both read the same rows
in the same order and are asked for the same tokens.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.papers.common import Experiment, Found, Results, Verdict
from benchmarks.papers.online_distill import trained

SIZE = (
    "hidden_size=64,intermediate_size=160,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=4,head_dim=16"
)
#: ids of the model: those of the tokenizer, at most, and the soft tokens
VOCABULARY, PIECES = 768, 760
GENRES = {"list": 4, "story": 4}
TOPICS, SENTIMENTS = ("weather", "animals", "kitchen", "travel"), ("glad", "sad", "plain")
NOUNS, TONES, JOINS = 6, 3, 2
#: words of a text, rows of a step, held-out rows, peak of the rate
SHORTEST, LONGEST, BATCH, EVALUATED, RATE = 3, 24, 32, 400, 5e-3
#: of the perplexity
MARGIN = math.log(1.01)
PLAIN, CONTROLLABLE = "plain", "controllable"
TWICE = "controllable, twice the steps"
#: (plain, dropout, times the steps)
ARMS: Mapping[str, tuple[float, float, int]] = {
    PLAIN: (1.0, 0.0, 1),
    CONTROLLABLE: (0.5, 0.5, 1),
    TWICE: (0.5, 0.5, 2),
}


class Language:
    """Texts of a seed, with their attributes."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
        count = len(TOPICS) * NOUNS + len(SENTIMENTS) * TONES + len(GENRES) * JOINS
        words = iter(self.draw.sample([a + b for a in syllables for b in syllables], count))
        self.nouns = {topic: [next(words) for _ in range(NOUNS)] for topic in TOPICS}
        self.tones = {sentiment: [next(words) for _ in range(TONES)] for sentiment in SENTIMENTS}
        self.joins = {genre: [next(words) for _ in range(JOINS)] for genre in GENRES}
        self.tables = {
            noun: [self.draw.gammavariate(0.3, 1.0) for _ in range(NOUNS)]
            for group in self.nouns.values()
            for noun in group
        }

    def row(self) -> Mapping[str, Any]:
        """A row of the format ``attributes``: of the words a fifth each are of the sentiment and of the genre."""
        topic, sentiment, genre = (self.draw.choice(of) for of in (TOPICS, SENTIMENTS, tuple(GENRES)))
        nouns = self.nouns[topic]
        noun = first = self.draw.choice(nouns)
        found = [first]
        for _ in range(self.draw.randint(SHORTEST, LONGEST) - 1):
            kind = self.draw.random()
            if kind < 0.2:
                found.append(self.draw.choice(self.tones[sentiment]))
            elif kind < 0.4:
                found.append(self.draw.choice(self.joins[genre]))
            else:
                noun = self.draw.choices(nouns, self.tables[noun])[0]
                found.append(noun)
        known = {"genre": genre, "topic": topic, "sentiment": sentiment, "keywords": [first]}
        return {"body": " ".join(found), **known}

    def topic_of(self, text: str) -> str:
        """The topic of most of its nouns; of none, where it has none."""
        counts = {topic: sum(word in nouns for word in text.split()) for topic, nouns in self.nouns.items()}
        topic = max(counts, key=lambda one: counts[one])
        return topic if counts[topic] else ""


def prepared(seed: int, steps: int, out: Path) -> Path:
    """Rows, tokenizer and new model of a seed, alike for all arms."""
    from erniecore_model_init.new_model import init_model
    from erniecore_text.training import train_nearest

    home = out / f"seed-{seed}-{steps}"
    if (home / "new").is_dir():
        return home
    home.mkdir(parents=True, exist_ok=True)
    language = Language(seed)
    evaluated = [language.row() for _ in range(EVALUATED)]
    rows = [language.row() for _ in range(2 * steps * BATCH)]
    for name, part in (("held-out", evaluated), ("train", rows)):
        (home / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf-8")
    (home / "tokenizer").mkdir(exist_ok=True)
    train_nearest(lambda: _texts(rows[:2000]), PIECES).save(home / "tokenizer")
    init_model("ernie45", f"{SIZE},vocab_size={VOCABULARY}", home / "tokenizer", home / "new", seed_value=seed)
    return home


def _texts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the tokenizer must know: texts, and what prompts say."""
    prompts = [f"Topic: {r['topic']}\nKeywords: {r['keywords'][0]}\nSentiment: {r['sentiment']}\n" for r in rows[:300]]
    return [row["body"] for row in rows] + prompts + [f"About {n} words\n" for n in range(1, LONGEST + 1)] * 12


def model_of(arm: str, seed: int, steps: int, out: Path) -> tuple[Path, list[tuple[float, float]]]:
    """A run of an arm, and its held-out loss without attributes by step. One that ended is not run again."""
    plain, dropout, times = ARMS[arm]
    home = prepared(seed, steps, out)
    own = home / arm.replace(" ", "-").replace(",", "")
    changes = {
        "method.name": "controllable",
        "method.genres": json.dumps(GENRES),
        "method.plain": plain,
        "method.dropout": dropout,
        "method.eval_plain": "true",
        "model.path": home / "new",
        "data.max_seq_len": 160,
        "data.packing": "none",
        "train.batch_size": BATCH,
        "train.learning_rate": RATE,
        "train.schedule": "cosine",
        "eval.every": max(1, times * steps // 5),
        "eval.max_steps": 0,
    }
    if not (own / "curve.json").is_file():
        _, events = trained(own, seed, times * steps, changes)
        found = [(float(e["step"]), float(e["loss"])) for e in events if e["event"] == "eval"]
        (own / "curve.json").write_text(json.dumps(found), encoding="utf-8")
    return own, [(x, y) for x, y in json.loads((own / "curve.json").read_text(encoding="utf-8"))]


def run(arm: str, seed: int, steps: int, out: Path) -> Found:
    """Held-out loss without and with attributes, and whether a topic that is asked for is written."""
    from erniecore.api.run import open_model

    own, curve = model_of(arm, seed, steps, out)
    bundle, language = open_model(own / "model"), Language(seed)
    wanted = [TOPICS[i % len(TOPICS)] for i in range(80)]
    asked = written(bundle, [{"topic": topic} for topic in wanted], seed)
    dropped = written(bundle, [{} for _ in wanted], seed)
    hits = [
        sum(language.topic_of(text) == topic for text, topic in zip(texts, wanted, strict=True)) / len(wanted)
        for texts in (asked, dropped)
    ]
    rows = (own.parent / "held-out.jsonl").read_text(encoding="utf-8").splitlines()
    values = {
        "loss without": curve[-1][1],
        "loss with": _loss_with(bundle, [json.loads(row) for row in rows]),
        "topic asked": hits[0],
        "topic dropped": hits[1],
    }
    return Found(values, {"without": curve} if ARMS[arm][2] == 1 else {})


def written(bundle: Any, asked: Sequence[Mapping[str, Any]], seed: int) -> list[str]:
    """A text for each of the attributes, sampled at temperature 1."""
    from erniecore_controllable.prompt import prompt_ids
    from erniecore_controllable.rows import Attributes
    from erniecore_generation.rollout import roll_out
    from erniecore_generation.sampling import Sampling

    prompts = [prompt_ids(bundle.tokenizer, GENRES, Attributes(**one)) for one in asked]
    sampling = Sampling(do_sample=True, temperature=1.0, seed=seed)
    found = roll_out(bundle.model, bundle.tokenizer, prompts, sampling=sampling, max_new_tokens=4 * LONGEST)
    return [bundle.tokenizer.decode([i for i in one.ids.tolist() if i != bundle.tokenizer.eos_id]) for one in found]


def _loss_with(bundle: Any, rows: Sequence[Mapping[str, Any]]) -> float:
    """Nats per token of the held-out texts behind all of their attributes."""
    import paddle
    from erniecore_controllable.config import ControllableConfig
    from erniecore_controllable.encoder import ControllableEncoder
    from erniecore_controllable.objective import ControllableObjective
    from erniecore_controllable.rows import plugin as rows_format

    from erniecore.api.data import Origin
    from erniecore.api.training import collate

    encoder = ControllableEncoder(bundle.tokenizer, 160, GENRES)
    records = [rows_format.ernie_parse_row(row, Origin("held-out", i + 1)) for i, row in enumerate(rows)]
    samples = [sample for record in records for sample in encoder.encode(record)]
    objective = ControllableObjective(ControllableConfig(genres=GENRES), bundle.model, bundle.tokenizer)
    bundle.model.eval()
    total = count = 0.0
    with paddle.no_grad():
        for start in range(0, len(samples), 50):
            batch = collate([[one] for one in samples[start : start + 50]], pad_id=bundle.tokenizer.pad_id)
            value, weight = objective(batch, objective.normalizers(batch)).metrics["loss"]
            total, count = total + float(value), count + weight
    return total / count


def judge(results: Results) -> tuple[Verdict, str]:
    """By the interval of the difference at equal steps."""
    pair = results.compare(CONTROLLABLE, PLAIN, "loss without")
    low, high = pair.ends
    verdict: Verdict = "seen" if high <= MARGIN else "contrary" if low > MARGIN else "not seen"
    parts = [f"controllable {_percent(pair.mean)} ({_percent(low)} … {_percent(high)})"]
    other = results.compare(TWICE, PLAIN, "loss without")
    parts.append(f"with twice the steps {_percent(other.mean)} ({_percent(other.ends[0])} … {_percent(other.ends[1])})")
    hits = [results.mean(CONTROLLABLE, one) for one in ("topic asked", "topic dropped")]
    return verdict, (
        f"Perplexity without attributes against the plain model: {'; '.join(parts)}. Of texts of the controllable model "
        f"{hits[0]:.0%} are of the topic that was asked for, {hits[1]:.0%} where it was not asked for."
    )


def _percent(nats: float) -> str:
    """A difference in nats as one of the perplexity."""
    return f"{100 * math.expm1(nats):+.2f} %"


EXPERIMENT = Experiment(
    name="controllable",
    title="Controllable language modeling",
    question="Does learning half of the texts without any attribute keep the perplexity without attributes within 1 % of that "
    "of a plain language model (ERNIE 3.0 Titan, arXiv:2112.12731)?",
    rule="seen where the 95 % interval of the paired difference of held-out losses without attributes, controllable minus plain, "
    "at equal steps and rows, ends at or below ln 1.01 nats per token; contrary where it begins above; else not seen. Twice "
    "the steps are told and do not decide.",
    size="2 layers, hidden 64; a made-up language of 37 words, 4 topics, 3 sentiments, 2 genres of 4 soft tokens, texts of 3 to "
    f"24 words; {{steps}} steps of {BATCH} texts that never come again, {EVALUATED} held-out texts, AdamW {RATE:g} with cosine "
    "decay and 5 % warm-up. Probabilities of no attribute and of dropping one: a half each.",
    baseline=PLAIN,
    arms=tuple(ARMS),
    measures={
        "loss without": "held-out nats per token, without attributes",
        "loss with": "held-out nats per token, behind all attributes; the plain model has never seen one",
        "topic asked": "share of 80 texts whose nouns are mostly of the topic that was asked for",
        "topic dropped": "share of 80 texts of the same topic where none was asked for (chance 0.25)",
    },
    run=run,
    judge=judge,
    seeds=3,
    steps=300,
    axes={"without": ("step", "held-out loss without attributes, nats per token")},
)
