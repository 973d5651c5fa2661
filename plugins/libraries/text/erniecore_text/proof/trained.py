"""What training has in front of each answer of a row: the tokens, and what others are asked for to get the same ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from erniecore.api import Json, RowError
from erniecore.api.data import Message, codes
from erniecore.api.model import Segment, Tokenizer
from erniecore_text.in_use import served_prompt
from erniecore_text.proof.rows import ProofRow
from erniecore_text.turns import TurnEncoder

#: answers of a row that are looked at: so many first ones, and the last
TURNS = 4


@dataclass(frozen=True)
class TrainedPrompt:
    """The prompt of one answer.

    Attributes:
        where: row and message. messages, tools: what is asked. thinking: as of ``ChatTemplate``; how training asks.
        ids: that training has. segments: that they are the tokens of.
    """

    where: str
    messages: tuple[Message, ...]
    tools: tuple[Json, ...]
    thinking: bool | None
    ids: tuple[int, ...]
    segments: tuple[Segment, ...]


class Trained(NamedTuple):
    """Prompts, how many rows have one, the refusals of the template by reason, and rows that could not be trained as they are
    served, with the error that says so."""

    prompts: list[TrainedPrompt]
    num_rows: int
    refused: Counter[str]
    differing: list[tuple[str, RowError]]


def trained_prompts(tokenizer: Tokenizer, rows: Iterable[ProofRow]) -> Trained:
    """The prompts of all rows, encoded as for training.

    Raises:
        EnvironmentFault: the tokenizer has no chat template, or lacks the template's end tokens.
    """
    turns = TurnEncoder(tokenizer)
    found = Trained([], 0, Counter(), [])
    count = 0
    for row in rows:
        before = len(found.prompts)
        try:
            found.prompts.extend([_prompt(turns, row, turn) for turn in _answers(row.messages)])
        except RowError as error:
            del found.prompts[before:]
            if error.code == codes.PROMPT_DIFFERS:
                found.differing.append((row.where, error))
            else:
                found.refused[f"{error.code} {error.message}"] += 1
        count += len(found.prompts) > before
    return found._replace(num_rows=count)


def _answers(messages: Sequence[Message]) -> list[int]:
    turns = [i for i, message in enumerate(messages) if message.role == "assistant" and message.learn and i]
    return turns if len(turns) <= TURNS else [*turns[:TURNS], turns[-1]]


def _prompt(turns: TurnEncoder, row: ProofRow, turn: int) -> TrainedPrompt:
    history = row.messages[:turn]
    asked = [*(replace(message, learn=False) for message in history), row.messages[turn]]
    completion = turns.encode_turns(asked, row.tools, "$.messages")
    assert completion is not None  # one turn
    ids, where = tuple(completion.prompt), f"{row.where} $.messages[{turn}]"
    usual: TrainedPrompt | None = None
    for thinking in (None, True, False):
        segments = served_prompt(turns.template, history, row.tools, thinking)
        made = TrainedPrompt(where, history, row.tools, thinking, ids, tuple(segments))
        if tuple(encoded(turns.tokenizer, segments)) == ids:
            return made
        usual = usual or made
    assert usual is not None
    return usual  # nothing asks for these tokens: the comparison shows which


def encoded(tokenizer: Tokenizer, segments: Sequence[Segment]) -> list[int]:
    """Ids of all segments together."""
    return list(chain.from_iterable(tokenizer.encode_segments(segments)))
