"""Universal knowledge-text prediction (ERNIE 3.0, arXiv:2107.02137) on a synthetic knowledge graph: do triples and sentences that
are predicted from one another teach relations better than the same tokens, masked as a text?

Which relation a sentence says is decided by its verb and its preposition together, by neither alone. Facts that are tested have
pairs of entities that were never trained on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers.common import Experiment, Found, Results, Verdict
from benchmarks.papers.runs import learn
from erniecore.api.data import Document
from erniecore.api.method import Sample, Segment

ENTITIES, RELATIONS, VERBS, PREPOSITIONS, FILLERS = 200, 10, 5, 4, 20
FACTS, TESTED, LABELED = 2000, 400, 60
BATCH, RATE, WARMUP = 32, 2e-3, 20
#: steps of fine-tuning on the labeled sentences, and how often it is tested
TUNING, EVERY = 40, 10
SAME_TOKENS, WITH_UKTP = "masked", "with UKTP"
#: rows of one pass of a test: with more, the attention of this size goes head by head
AT_ONCE = 25
SPECIAL = ("<pad>", "<s>", "</s>", "<mask:1>")
Ints = NDArray[np.int64]


class Fact(NamedTuple):
    """A triple and a sentence that says it; ``relation`` from 0."""

    head: str
    relation: int
    tail: str
    sentence: str

    def row(self, arm: str) -> Mapping[str, Any]:
        """The row of the format ``knowledge`` that an arm learns from."""
        name = f"r{self.relation}"
        if arm == WITH_UKTP:
            return {
                "passage": self.sentence,
                "triple": {"head": self.head, "relation": name, "tail": self.tail},
            }
        return {"passage": f"{self.head} {name} {self.tail} | {self.sentence}"}


class Words:
    """A tokenizer of words between spaces, with the members of ``erniecore.api.method.Tokenizer`` that encoders use."""

    pad_id, bos_id, eos_id = 0, 1, 2
    chat_template = None

    def __init__(self) -> None:
        named = [f"{letter}{i}" for letter, count in _KINDS.items() for i in range(count)]
        self.ids = {word: i for i, word in enumerate((*SPECIAL, "|", "In", "with", ".", *named))}
        self.special_tokens = {word: self.ids[word] for word in SPECIAL}
        self.vocab_size = len(self.ids)

    def encode(self, text: str) -> list[int]:
        """Ids of the words."""
        return [self.ids[word] for word in text.split()]

    def encode_segments(self, segments: Sequence[Segment]) -> list[list[int]]:
        """Words do not reach over segments."""
        return [self.encode(segment.text) for segment in segments]


_KINDS = {"e": ENTITIES, "r": RELATIONS, "v": VERBS, "p": PREPOSITIONS, "f": FILLERS}


def facts(seed: int, count: int) -> list[Fact]:
    """Facts of pairs that differ, in random order; each relation is said by two pairs of verb and preposition."""
    rng = random.Random(seed)
    said = [(verb, preposition) for verb in range(VERBS) for preposition in range(PREPOSITIONS)]
    rng.shuffle(said)
    out: dict[tuple[int, int], Fact] = {}
    while len(out) < count:
        pair = rng.randrange(ENTITIES), rng.randrange(ENTITIES)
        if pair[0] == pair[1] or pair in out:
            continue
        relation = rng.randrange(RELATIONS)
        verb, preposition = said[2 * relation + rng.randrange(2)]
        other, words = f"e{rng.randrange(ENTITIES)}", [f"f{rng.randrange(FILLERS)}" for _ in range(2)]
        head, tail = (f"e{entity}" for entity in pair)
        text = f"In {words[0]} {head} v{verb} {words[1]} p{preposition} {tail} with {other} ."
        out[pair] = Fact(head, relation, tail, text)
    return list(out.values())


def run(arm: str, seed: int, steps: int, out: Path) -> Found:
    """Pre-train one arm, then what its module for understanding knows: at once, and after fine-tuning on a few sentences."""
    import paddle

    made = facts(seed, FACTS + LABELED + TESTED)
    known, labeled, tested = made[:FACTS], made[FACTS : FACTS + LABELED], made[FACTS + LABELED :]
    paddle.seed(seed)
    model = _model()
    final = _pretrain(model, arm, known, seed, steps)
    asked = _relation_accuracy(model, tested)
    curve = _fine_tune(model, labeled, tested, seed)
    return Found({"fine-tuned": curve[-1][1], "masked relation": asked, "loss": final}, {"fine-tuning": curve})


def _model() -> Any:
    from erniecore_ernie3.architecture import Architecture
    from erniecore_ernie3.model import Ernie3

    width = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    return Ernie3(
        Architecture.parse(
            {
                "model_type": "ernie3",
                "vocab_size": Words().vocab_size,
                **width,
                **{f"task_{name}": size for name, size in width.items()},
                "num_hidden_layers": 3,
                "num_task_layers": 1,
                "num_labels": RELATIONS,
                "memory_length": 0,
                "layer_norm_eps": 1e-5,
                "rope_theta": 10000.0,
            }
        )
    )


def _pretrain(model: Any, arm: str, known: Sequence[Fact], seed: int, steps: int) -> float:
    """All arms have as many steps of as many rows; returns the mean loss of the last tenth."""
    from erniecore_ernie3_pretrain.config import Ernie3PretrainConfig
    from erniecore_ernie3_pretrain.encoder import Ernie3Encoder
    from erniecore_ernie3_pretrain.objective import Ernie3Objective
    from erniecore_ernie3_pretrain.rows import parse

    from erniecore.api.method import Origin

    config = Ernie3PretrainConfig(document=0, reorder=0, distance=0, uktp=float(arm == WITH_UKTP), segment_length=0)
    words: Any = Words()
    encoder, objective = Ernie3Encoder(words, 64, config.weights()), Ernie3Objective(config, model, words)
    samples: list[Sample] = []
    for i, fact in enumerate(known):
        record: Document = parse(fact.row(arm), Origin("facts", i + 1))
        samples += encoder.encode(record)
    parameters = [p for name, p in model.named_parameters() if not name.startswith("nlg.")]
    losses = learn(objective, samples, parameters, seed, steps, BATCH, RATE, WARMUP)
    return float(np.mean(losses[-max(1, steps // 10) :]))


def _rows(found: Sequence[Fact], hidden: bool) -> Ints:
    """``<s> head [mask] tail </s> sentence </s>``, all of one length."""
    words = Words()
    middle = "<mask:1> " if hidden else ""
    return np.array([words.encode(f"<s> {one.head} {middle}{one.tail} </s> {one.sentence} </s>") for one in found])


def _relation_accuracy(model: Any, tested: Sequence[Fact]) -> float:
    """How often the hidden relation is, of all relations, the most likely one."""
    import paddle

    words = Words()
    names = paddle.to_tensor([words.ids[f"r{i}"] for i in range(RELATIONS)])
    return _right(model, tested, True, lambda hidden: model.logits(hidden[:, 2]).gather(names, axis=1))


def _fine_tune(model: Any, labeled: Sequence[Fact], tested: Sequence[Fact], seed: int) -> list[tuple[float, float]]:
    """(step, accuracy on the tested facts) of the classifier over the first position, all weights learning."""
    import paddle
    import paddle.nn.functional as F

    ids, targets = _rows(labeled, False), np.array([one.relation for one in labeled])
    parameters = [p for name, p in model.named_parameters() if not name.startswith("nlg.")]
    optimizer = paddle.optimizer.AdamW(1e-3, parameters=parameters, weight_decay=0.01)
    order, curve = np.random.default_rng(seed + 1), [(0.0, _accuracy(model, tested))]
    for step in range(1, TUNING + 1):
        model.train()
        chosen = order.permutation(len(ids))[: LABELED // 2]
        first = model.understand(paddle.to_tensor(ids[chosen]))[:, 0]
        F.cross_entropy(model.heads.labels(first), paddle.to_tensor(targets[chosen])).backward()
        optimizer.step()
        optimizer.clear_grad()
        if step % EVERY == 0:
            curve.append((float(step), _accuracy(model, tested)))
    return curve


def _accuracy(model: Any, tested: Sequence[Fact]) -> float:
    return _right(model, tested, False, lambda hidden: model.heads.labels(hidden[:, 0]))


def _right(model: Any, tested: Sequence[Fact], hidden: bool, scores: Callable[[Any], Any]) -> float:
    """Share of the facts whose relation has the highest of the ``scores`` [rows, relations] of hidden states."""
    import paddle

    model.eval()
    ids, hits = _rows(tested, hidden), 0
    with paddle.no_grad():
        for start in range(0, len(ids), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            found = scores(model.understand(paddle.to_tensor(ids[part]))).numpy().argmax(1)
            hits += int((found == np.array([one.relation for one in tested[part]])).sum())
    return hits / len(ids)


def judge(results: Results) -> tuple[Verdict, str]:
    """From the differences in the accuracy after fine-tuning, as the rule says."""
    pair = results.compare(WITH_UKTP, SAME_TOKENS, "fine-tuned")
    asked = results.compare(WITH_UKTP, SAME_TOKENS, "masked relation")
    verdict = pair.judged("higher")
    means = [results.mean(arm, "fine-tuned") for arm in (SAME_TOKENS, WITH_UKTP)]
    return verdict, (
        f"Accuracy after fine-tuning {means[0]:.3f} without and {means[1]:.3f} with UKTP: {pair.mean:+.3f}, 95 % interval "
        f"{pair.ends[0]:+.3f} to {pair.ends[1]:+.3f}. Of hidden relations, without fine-tuning: {asked.mean:+.3f}, interval "
        f"{asked.ends[0]:+.3f} to {asked.ends[1]:+.3f}."
    )


EXPERIMENT = Experiment(
    name="uktp",
    title="Knowledge-text prediction",
    question="Does predicting triples from texts and texts from triples teach relations better than masking the same tokens?",
    rule=f"seen: the 95 % interval of the paired difference ({WITH_UKTP} minus {SAME_TOKENS}) in the accuracy after "
    "fine-tuning is above 0, as the paper's gain is one after fine-tuning (SanWen, FinRE); contrary: below 0; not seen: else. "
    "The accuracy of hidden relations is reported beside it: it is what UKTP trains, so it does not decide.",
    size=f"ernie3 with 2 universal layers and 1 task layer of 64, {ENTITIES} entities, {RELATIONS} relations that verb and "
    f"preposition say together, {FACTS} facts, {{steps}} steps of {BATCH} rows, then {LABELED} labeled sentences and {TUNING} "
    f"steps of fine-tuning; {TESTED} facts of other pairs are tested; AdamW at {RATE:g}.",
    baseline=SAME_TOKENS,
    arms=(SAME_TOKENS, WITH_UKTP),
    measures={
        "fine-tuned": "accuracy of the relation of tested facts after fine-tuning (chance 0.1)",
        "masked relation": "accuracy of the hidden relation between head and tail, with the sentence, before fine-tuning",
        "loss": "mean loss of the last tenth of pre-training in nats, of other objectives in each arm",
    },
    run=run,
    judge=judge,
    seeds=5,
    steps=300,
    axes={"fine-tuning": ("steps of fine-tuning", "accuracy")},
)
