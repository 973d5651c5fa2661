"""The prompt of attributes in ids: the same in training and when the model writes. numpy only.

    begin | soft tokens of the genre | Topic: …⏎ | Keywords: …, …⏎ | Sentiment: …⏎ | About L words⏎ | the text

Every part is encoded by itself, so that a prompt without it has the ids of the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from erniecore.api import RowError
from erniecore.api.method import Tokenizer
from erniecore_controllable.rows import Attributes

#: values of the field ``attribute``; 0 is begin and text
GENRE, TOPIC, KEYWORDS, SENTIMENT, LENGTH = 1, 2, 3, 4, 5
UNKNOWN = "ERN-D036"


class Part(NamedTuple):
    """Ids of one attribute."""

    attribute: int
    ids: list[int]


def soft_tokens(genres: Mapping[str, int], genre: str, first: int) -> list[int]:
    """The ids of a genre's soft tokens; ``first``: id of the first of all. Raises ``RowError`` for a genre without any."""
    if genre not in genres:
        raise RowError(
            "this genre has no soft tokens",
            code=UNKNOWN,
            where="$.genre",
            found=genre,
            expected=", ".join(genres) or "genres in method.genres",
            fix=f"set method.genres.{genre}=8",
        )
    for name, count in genres.items():
        if name == genre:
            return list(range(first, first + count))
        first += count
    raise AssertionError


def parts_of(tokenizer: Tokenizer, genres: Mapping[str, int], wanted: Attributes) -> list[Part]:
    """The parts of the prompt, in order. Raises ``RowError`` for an unknown genre."""
    texts = {
        TOPIC: f"Topic: {wanted.topic}\n" if wanted.topic else "",
        KEYWORDS: f"Keywords: {', '.join(wanted.keywords)}\n" if wanted.keywords else "",
        SENTIMENT: f"Sentiment: {wanted.sentiment}\n" if wanted.sentiment else "",
        LENGTH: f"About {wanted.words} words\n" if wanted.words else "",
    }
    found = [Part(GENRE, soft_tokens(genres, wanted.genre, tokenizer.vocab_size))] if wanted.genre else []
    return found + [Part(attribute, tokenizer.encode(text)) for attribute, text in texts.items() if text]


def prompt_ids(tokenizer: Tokenizer, genres: Mapping[str, int], wanted: Attributes) -> list[int]:
    """Begin and all parts, behind which the model writes."""
    return [tokenizer.bos_id, *(i for part in parts_of(tokenizer, genres, wanted) for i in part.ids)]
