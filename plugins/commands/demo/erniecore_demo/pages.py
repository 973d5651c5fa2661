"""Images of words and numbers with their text, made from a seed: the data of the vision example.

As in ``tasks.py`` the two splits share no text, so that a score on ``heldout`` measures reading, not remembering. Words are
made up of syllables. Pillow's own font, which it brings along; no tokenizer, no model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from erniecore_demo.tasks import DIGITS, Row, Split, is_heldout

if TYPE_CHECKING:
    from PIL import Image

CONSONANTS, VOWELS = "bdfgklmnprst", "aeiou"
#: of every image; multiples of what becomes a token, so that nothing is resized
WIDTH, HEIGHT = 84, 28
#: from one letter to the next, and where they begin and stand: a typewriter's
PITCH, LEFT, LINE = 14, 7, 22
#: of the font, in pixels, and how far the paper may have slipped
SIZES, SLIP = (19, 22), 2.0
#: brightness of paper and ink, and the spread of the grain
PAPER, INK, GRAIN = (200, 255), (0, 90), 6.0


def word(random: Random) -> str:
    """``kato``, ``dim``: one or two syllables."""
    parts = [random.choice(CONSONANTS) + random.choice(VOWELS) for _ in range(random.randint(1, 2))]
    return "".join(parts) + (random.choice(CONSONANTS) if len(parts) == 1 or random.random() < 0.3 else "")


def number(random: Random) -> str:
    """``407``: three or four digits."""
    return "".join(random.choice(DIGITS) for _ in range(random.randint(3, 4)))


#: name -> maker of one random text
FAMILIES: Mapping[str, Callable[[Random], str]] = {"word": word, "number": number}


def draw(text: str, random: Random) -> Image.Image:
    """The text as a typewriter writes it: in one of several sizes and many shades, slipped, on paper with grain."""
    import numpy as np
    from PIL import Image, ImageDraw

    font, image = _font(random.randint(*SIZES)), Image.new("L", (WIDTH, HEIGHT), random.randint(*PAPER))
    ink, x, y = random.randint(*INK), random.uniform(-SLIP, SLIP), random.uniform(-SLIP, SLIP)
    pen = ImageDraw.Draw(image)
    for i, letter in enumerate(text):
        pen.text((LEFT + PITCH * i + x, LINE + y), letter, fill=ink, font=font, anchor="ms")
    grain = np.random.default_rng(random.getrandbits(32)).normal(0, GRAIN, (HEIGHT, WIDTH))
    return Image.fromarray(np.clip(np.asarray(image) + grain, 0, 255).astype(np.uint8))


@lru_cache
def _font(size: int) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size=size)


def rows(split: Split, count: int, folder: Path, *, seed: int = 0) -> Iterator[Row]:
    """``count`` rows ``{"messages": [an image, its text], "images": [file], "task": family}``, the families in turn. The
    files are written into ``folder / split``; a text may come again, in another image."""
    (folder / split).mkdir(parents=True, exist_ok=True)
    random = Random(f"{seed}/{split}/pages")
    for index in range(count):
        name = list(FAMILIES)[index % len(FAMILIES)]
        text, file = text_of(name, split, random), f"{split}/{index}.png"
        draw(text, random).save(folder / file)
        turns = [{"role": "user", "content": "<image>"}, {"role": "assistant", "content": text}]
        yield {"messages": turns, "images": [file], "task": name}


def text_of(name: str, split: Split, random: Random) -> str:
    """A random text of this family and split."""
    while True:
        text = FAMILIES[name](random)
        if is_heldout(name, text) == (split == "heldout"):
            return text
