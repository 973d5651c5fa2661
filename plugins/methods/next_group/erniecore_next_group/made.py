"""Made data with which a small model learns to read and to make images and tones: shapes and digits in a corner of an image,
with their words; tones with theirs; motifs that repeat. What is held out was never seen in training: other combinations of
shape, color and corner, of note and timbre, other motifs. numpy only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from erniecore_ernie5.audio_tokens import AudioTokens, Codes
from erniecore_sampler.order import generator
from numpy.typing import NDArray

from erniecore_next_group.files import png, wav

SIZE, HALF = 16, 8
COLORS = {
    "red": (255, 0, 0),
    "green": (0, 255, 0),
    "blue": (0, 0, 255),
    "yellow": (255, 255, 0),
    "pink": (255, 0, 255),
    "cyan": (0, 255, 255),
    "white": (255, 255, 255),
}
CORNERS = {"top left": (0, 0), "top right": (0, HALF), "bottom left": (HALF, 0), "bottom right": (HALF, HALF)}
#: rows of 5 x 7 dots
_DIGITS = {
    "zero": "01110 10001 10011 10101 11001 10001 01110",
    "one": "00100 01100 00100 00100 00100 00100 01110",
    "two": "01110 10001 00001 00010 00100 01000 11111",
    "three": "11111 00010 00100 00010 00001 10001 01110",
    "four": "00010 00110 01010 10010 11111 00010 00010",
    "five": "11111 10000 11110 00001 00001 10001 01110",
    "six": "00110 01000 10000 11110 10001 10001 01110",
    "seven": "11111 00001 00010 00100 01000 01000 01000",
    "eight": "01110 10001 10001 01110 10001 10001 01110",
    "nine": "01110 10001 10001 01111 00001 00010 01100",
}
#: overtones in semitones above the note, the loudest first
TIMBRES: dict[str, tuple[int, ...]] = {"pure": (), "hollow": (12,), "bright": (12, 19)}
#: notes that leave room for the overtones
NOTES = 16
#: share that is held out
EVAL_SHARE = 0.15
#: frames of a tone with words, of what is given of a motif, and of what goes on
TONE, GIVEN, REST = 4, 12, 12


def shapes() -> dict[str, NDArray[np.bool_]]:
    """Name -> dots [8, 8]."""
    y, x = np.mgrid[:HALF, :HALF] - 3.0
    middle = (abs(x) <= 3) & (abs(y) <= 3)
    found = {
        "circle": x**2 + y**2 <= 9,
        "square": middle,
        "diamond": abs(x) + abs(y) <= 3,
        "cross": middle & ((x == 0) | (y == 0)),
        "frame": middle & ((abs(x) == 3) | (abs(y) == 3)),
        "triangle": middle & (abs(x) <= (y + 3) / 2),
    }
    for name, rows in _DIGITS.items():
        dots = np.zeros((HALF, HALF), np.bool_)
        dots[:7, 1:6] = [[dot == "1" for dot in row] for row in rows.split()]
        found[name] = dots
    return found


def image_of(shape: str, color: str, corner: str) -> NDArray[np.uint8]:
    """Pixels [16, 16, 3] of a shape on black."""
    pixels = np.zeros((SIZE, SIZE, 3), np.uint8)
    top, left = CORNERS[corner]
    pixels[top : top + HALF, left : left + HALF][shapes()[shape]] = COLORS[color]
    return pixels


def tone(note: int, timbre: str, soft: bool, audio: AudioTokens) -> list[int]:
    """The codes [L] of a frame of a tone."""
    above = TIMBRES[timbre][: audio.levels - 1]
    codes = [audio.code(note, soft), *(audio.code(note + semitones, soft) for semitones in above)]
    return codes + [0] * (audio.levels - len(codes))


def split(items: Sequence[Any], seed: int, purpose: str) -> tuple[list[Any], list[Any]]:
    """(for training, held out), in a random order."""
    order = generator(seed, purpose).permutation(len(items))
    count = round(EVAL_SHARE * len(items))
    return [items[i] for i in order[count:]], [items[i] for i in order[:count]]


def motifs(seed: int, count: int, audio: AudioTokens) -> tuple[list[Codes], list[Codes]]:
    """(for training, held out): sounds [GIVEN + REST, L] of one to three tones that repeat, each tone two frames long.
    A motif that is held out is not one for training."""
    rng = generator(seed, "motifs")
    found: dict[bytes, Codes] = {}
    while len(found) < count:
        timbre, soft = rng.choice(list(TIMBRES)), bool(rng.integers(2))
        notes = rng.integers(NOTES, size=rng.integers(1, 4))
        motif = np.array([tone(int(note), timbre, soft, audio) for note in notes for _ in range(2)], np.int16)
        sound = np.tile(motif, (-(-(GIVEN + REST) // len(motif)), 1))[: GIVEN + REST]
        found.setdefault(sound.tobytes(), sound)
    return split(list(found.values()), seed, "held-out motifs")


def write(out: Path, seed: int, num_motifs: int, audio: AudioTokens) -> dict[str, int]:
    """Files of images and tones, ``train.jsonl`` and ``held-out.jsonl`` under ``out``; how many rows each has."""
    for folder in ("images", "tones"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[dict[str, Any]]] = {"train": [], "held-out": []}
    for name, row in (*_pictures(out, seed), *_tones(out, seed, audio), *_motif_rows(out, seed, num_motifs, audio)):
        rows[name].append(row)
    for name, found in rows.items():
        order = generator(seed, name).permutation(len(found))
        lines = "".join(json.dumps(found[i]) + "\n" for i in order)
        (out / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return {name: len(found) for name, found in rows.items()}


def _pictures(out: Path, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    names = split(list(product(COLORS, shapes(), CORNERS)), seed, "images")
    for name, chosen in zip(("train", "held-out"), names, strict=True):
        for color, shape, corner in chosen:
            words, file = f"{color} {shape} {corner}", f"images/{color}-{shape}-{corner.replace(' ', '-')}.png"
            (out / file).write_bytes(png(image_of(shape, color, corner)))
            yield from ((name, row) for row in both_ways({"text": words}, {"image": file}))


def _tones(out: Path, seed: int, audio: AudioTokens) -> Iterator[tuple[str, dict[str, Any]]]:
    names = split(list(product(range(NOTES), TIMBRES, (False, True))), seed, "tones")
    for name, chosen in zip(("train", "held-out"), names, strict=True):
        for note, timbre, soft in chosen:
            words = f"{'soft' if soft else 'loud'} {timbre} {audio.name(note)}"
            file = f"tones/{words.replace(' ', '-').replace('#', 's')}.wav"
            codes = np.array([tone(note, timbre, soft, audio)] * TONE, np.int16)
            (out / file).write_bytes(wav(audio.decode(codes), audio))
            yield from ((name, row) for row in both_ways({"text": words}, {"audio": file}))


def _motif_rows(out: Path, seed: int, count: int, audio: AudioTokens) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, sounds in zip(("train", "held-out"), motifs(seed, count, audio), strict=True):
        for number, sound in enumerate(sounds):
            files = []
            for part, codes in (("begin", sound[:GIVEN]), ("rest", sound[GIVEN:])):
                files.append(f"tones/{name}-{number}-{part}.wav")
                (out / files[-1]).write_bytes(wav(audio.decode(codes), audio))
            yield name, {"given": [{"audio": files[0]}], "made": [{"audio": files[1]}]}


def both_ways(text: dict[str, str], media: dict[str, str]) -> Iterator[dict[str, Any]]:
    """A row from words to what they say, and one back."""
    yield {"given": [text], "made": [media]}
    yield {"given": [media], "made": [text]}
