"""Runs a model over evaluation items: the objective's loss per group, and generated answers against the reference.

What the numbers mean is ``suites.py``; reading rows and choosing plugins is ``eval_data.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from erniecore.data.collate import collate
from erniecore.engine.generation.respond import Completion, Responder
from erniecore.engine.generation.sampling import Sampling
from erniecore.engine.scoring.evaluate import measure
from erniecore.engine.scoring.suites import (
    Board,
    Item,
    Score,
    by_group,
    learned_size,
    question_of,
    rows_of_batches,
    same_answer,
)
from erniecore.errors import DataError, NumericsError

if TYPE_CHECKING:
    from erniecore.types import Batch, ModelBundle, Objective, Sample


@dataclass(frozen=True, slots=True)
class Answered:
    """A generated answer beside its reference."""

    item: Item
    question: str
    reference: str
    completion: Completion

    @property
    def correct(self) -> bool:
        """Exact match, white space aside."""
        return same_answer(self.completion.content, self.reference)


def add_losses(board: Board, items: Sequence[Item], objective: Objective, bundle: ModelBundle, batch_size: int) -> None:
    """Add loss, tokens and bytes of every group to ``board``; a token weighs the same wherever it is. Of an objective
    whose loss is no likelihood (``is_nll = False``), its metrics instead.

    Raises ``NumericsError`` for a loss that is not finite."""
    assert bundle.tokenizer is not None
    pad_id = bundle.tokenizer.pad_id
    for group, members in by_group(items).items():
        samples = [sample for item in members for sample in item.samples]
        sums = measure(objective, bundle.model, _batches(samples, batch_size, pad_id))
        loss = sums["loss"][0] / sums["loss"][1]
        if not math.isfinite(loss):
            raise NumericsError(
                "the loss is not finite",
                where=group or "all rows",
                found=str(loss),
                fix="the model's numbers overflow: it diverged in training; use an earlier checkpoint",
            )
        tokens, text_bytes = learned_size(samples, bundle.tokenizer)
        score = Score(rows=len(members), tokens=tokens, text_bytes=text_bytes)
        if objective.is_nll:
            score.nll = loss * tokens
        else:
            score.metrics = sums
        board.add(group, score)


def _batches(samples: Sequence[Sample], batch_size: int, pad_id: int) -> Iterator[Batch]:
    for rows in rows_of_batches(samples, batch_size):
        yield collate(rows, pad_id=pad_id)


def add_answers(
    board: Board,
    items: Sequence[Item],
    bundle: ModelBundle,
    *,
    sampling: Sampling,
    max_new_tokens: int,
    batch_size: int,
    speculative: str = "off",
    on_answer: Callable[[Answered], Any] = lambda answered: None,
) -> list[Completion]:
    """Generate an answer to every conversation's last question and count those that equal the reference.

    Returns all answers. Prompts of similar length begin together; the random stream of an item is its place in ``items``.

    Raises:
        DataError: no item has a question. UsageError: a prompt that leaves no room for ``max_new_tokens``.
    """
    assert bundle.tokenizer is not None
    responder = Responder(bundle.model, bundle.tokenizer, generation=bundle.generation, speculative=speculative)
    asked = []
    for index, item in enumerate(items):
        question = question_of(item.record)
        if question is not None:
            tools = getattr(item.record, "tools", ())
            asked.append((index, item, question, responder.encode(question[0], tools)))
    if not asked:
        raise DataError("no row has a question to answer", expected="conversations that end with the assistant")
    asked.sort(key=lambda entry: len(entry[3].ids))
    completions = responder.answers(
        [entry[3] for entry in asked],
        sampling=sampling,
        max_new_tokens=max_new_tokens,
        streams=[entry[0] for entry in asked],
        batch_size=batch_size,
    )
    found = []
    for place, completion in completions:
        found.append(completion)
        _, item, (messages, reference), _ = asked[place]
        answered = Answered(item, messages[-1].content, reference.content, completion)
        board.add(item.group, Score(asked=1, correct=int(answered.correct)))
        on_answer(answered)
    return found
