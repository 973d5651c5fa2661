"""Small instruction tasks with one right answer, made from a seed: the data of the embedded example.

Every task comes in two splits that share no question, so that a score on ``heldout`` measures what was
understood, not what was remembered. Plain Python: no tokenizer, no model, no files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, Literal, TypeAlias

Split = Literal["train", "heldout"]
Row: TypeAlias = dict[str, Any]
#: question, answer
Item: TypeAlias = tuple[str, str]

DIGITS, KEYS = "0123456789", "abcdefgh"
#: one question in so many is held out
HELDOUT_SHARE = 5

#: the two ways to greet
CASUAL, POLITE = "hi", "good day"

_NAME = "I am a tiny ERNIE."
_MAKER = "I was trained on this machine a moment ago."
_SUBJECTS: dict[str, tuple[str, ...]] = {
    _NAME: ("who you are", "your name", "what you are called", "what they call you"),
    _MAKER: ("who trained you", "where you come from", "when you were trained", "how old you are"),
}
_OPENINGS = (
    "tell me {}", "please tell me {}", "say {}", "can you say {}", "i want to know {}", "explain {}", "do you know {}",
    "let me know {}",
)  # fmt: skip


def _digits(random: Random, low: int, high: int) -> str:
    return "".join(random.choice(DIGITS) for _ in range(random.randint(low, high)))


def copy(random: Random) -> Item:
    """``copy 4071`` -> ``4071``."""
    text = _digits(random, 3, 4)
    return f"copy {text}", text


def reverse(random: Random) -> Item:
    """``reverse 4071`` -> ``1704``."""
    text = _digits(random, 3, 4)
    return f"reverse {text}", text[::-1]


def first(random: Random) -> Item:
    """``first of 4071`` -> ``4``."""
    text = _digits(random, 3, 4)
    return f"first of {text}", text[0]


def last(random: Random) -> Item:
    """``last of 4071`` -> ``1``."""
    text = _digits(random, 3, 4)
    return f"last of {text}", text[-1]


def sort(random: Random) -> Item:
    """``sort 4071`` -> ``0147``."""
    text = _digits(random, 3, 4)
    return f"sort {text}", "".join(sorted(text))


def recall(random: Random) -> Item:
    """``a=3 b=7 c=1 get b`` -> ``7``."""
    keys = random.sample(KEYS, random.randint(2, 4))
    values = [random.choice(DIGITS) for _ in keys]
    pairs = " ".join(f"{key}={value}" for key, value in zip(keys, values, strict=True))
    at = random.randrange(len(keys))
    return f"{pairs} get {keys[at]}", values[at]


def count(random: Random) -> Item:
    """``count 7 in 7071`` -> ``2``."""
    text = _digits(random, 3, 4)
    digit = random.choice(text) if random.random() < 0.8 else random.choice(DIGITS)
    return f"count {digit} in {text}", str(text.count(digit))


def add(random: Random) -> Item:
    """``add 7 8`` -> ``15`` (100 questions in all)."""
    a, b = random.randrange(10), random.randrange(10)
    return f"add {a} {b}", str(a + b)


def identity(random: Random) -> Item:
    """``please tell me your name`` -> a fixed sentence; held out are ways of asking."""
    answer = random.choice(sorted(_SUBJECTS))
    return random.choice(_OPENINGS).format(random.choice(_SUBJECTS[answer])), answer


def greet(random: Random) -> Item:
    """``greet 4071`` -> ``hi 4071`` or ``good day 4071``, as often the one as the other: see :func:`pairs`."""
    text = _digits(random, 3, 4)
    return f"greet {text}", f"{random.choice((CASUAL, POLITE))} {text}"


#: name -> maker of one random item
FAMILIES: Mapping[str, Callable[[Random], Item]] = {
    "copy": copy,
    "reverse": reverse,
    "first": first,
    "last": last,
    "sort": sort,
    "recall": recall,
    "count": count,
    "add": add,
    "identity": identity,
    "greet": greet,
}


def is_heldout(task: str, question: str) -> bool:
    """Which split a question belongs to: decided by its text alone, so no seed can move it."""
    digest = hashlib.blake2b(f"{task}\n{question}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % HELDOUT_SHARE == 0


def rows(
    split: Split, count: int, *, seed: int = 0, families: Sequence[str] = tuple(FAMILIES), longer: float = 0.0
) -> Iterator[Row]:
    """``count`` rows ``{"messages": [user, assistant], "task": family}``, the families in turn.

    Args:
        longer: share of rows that have another question and answer before their own, so that a model also learns
            to answer the latest question of a chat. ``task`` is the family of the last one.

    Raises:
        KeyError: a family that does not exist.
    """
    streams = {name: Random(f"{seed}/{split}/{name}") for name in families}
    lengths = Random(f"{seed}/{split}")
    for index in range(count):
        name = families[index % len(families)]
        items = [_item(name, split, streams[name])]
        if lengths.random() < longer:
            before = lengths.choice(families)
            items.insert(0, _item(before, split, lengths))
        yield {"messages": [message for item in items for message in _messages(item)], "task": name}


def pairs(split: Split, count: int, *, seed: int = 0) -> Iterator[Row]:
    """``count`` preferences ``{"messages": [user], "chosen", "rejected"}``: a polite greeting before a casual one."""
    random = Random(f"{seed}/{split}/pairs")
    for _ in range(count):
        question, _ = _item("greet", split, random)
        whom = question.split()[-1]
        chosen, rejected = ({"role": "assistant", "content": f"{how} {whom}"} for how in (POLITE, CASUAL))
        yield {"messages": [{"role": "user", "content": question}], "chosen": chosen, "rejected": rejected}


def _messages(item: Item) -> list[dict[str, str]]:
    question, answer = item
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _item(name: str, split: Split, random: Random) -> Item:
    while True:
        item = FAMILIES[name](random)
        if is_heldout(name, item[0]) == (split == "heldout"):
            return item
