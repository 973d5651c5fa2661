"""What a model makes of parts: an image scale by scale, audio frame by frame, text token by token, behind a cache of everything
before. The most likely bit, code and token each time, or with a temperature a drawn one.

Letters: S new positions, d bits of a token, T frames, L levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle  # noqa: TID253
from erniecore_ernie5.audio_tokens import Codes
from erniecore_ernie5.image_tokens import Floats
from erniecore_ernie5.model import Ernie5ForCausalLM, MediaFeatures
from erniecore_ernie5.sequence import MediaTokens, Tokens, joined
from erniecore_ernie5.tokenizer import Ernie5Tokenizer
from erniecore_generation.cache import StaticCache
from erniecore_sampler.order import generator
from numpy.typing import NDArray

from erniecore_next_group.objective import INPUTS


class Maker:
    """One sequence that grows.

    Args:
        model, tokenizer: of one directory. room: the most tokens. temperature: 0: the most likely each time.
    """

    def __init__(
        self,
        model: Ernie5ForCausalLM,
        tokenizer: Ernie5Tokenizer,
        *,
        room: int = 2048,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.model, self.tokenizer, self.media = model, tokenizer, tokenizer.media
        self.cache = StaticCache(model.arch.num_hidden_layers, room)
        self.temperature, self.random = temperature, generator(seed, "parts")
        self.at = 0.0
        self._hidden: Any = None

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def feed(self, tokens: Tokens, after: float, codes: list[int] | None = None) -> None:
        """Read further tokens; ``after``: the position behind them. ``codes``: gets those of the next frame."""
        arrays = {name: getattr(tokens, name)[None] for name in INPUTS}
        inputs = {name: paddle.to_tensor(values) for name, values in arrays.items()}
        choose = None if codes is None else lambda level, hidden: self._next_code(level, hidden, codes)
        features = self.model.features(paddle.to_tensor(tokens.ids[None]), cache=self.cache, choose=choose, **inputs)
        if codes is not None and isinstance(features, MediaFeatures):
            level = self.media.audio.levels - 1
            codes.append(1 + self._choose(self.model.code_logits(level, features.levels[level][0, -1]).numpy()))
        self._hidden, self.at = features.hidden[0], after

    def text(self, ids: Sequence[int]) -> None:
        """Let the model read the ids of a text."""
        self.feed(self.media.text(ids, self.at, learned=False), self.at + len(ids))

    def draw(self) -> Floats:
        """An image [G, G, d], which then also is read; not rounded."""
        media, known, markers = self.media, self.media.image.nothing(), self.media.markers
        self.text([markers.image_start])
        start = self.at
        for scale, side in enumerate(media.image.scales):
            self.feed(media.group(scale, media.image.pooled(known, side), start), start)
            odds: NDArray[Any] = self.model.bit_logits(self._hidden).numpy()
            known = media.image.added(known, scale, np.where(self._likely(odds), 1, -1).astype(np.int8))
        self.feed(media.read(media.image.rounded(known), start), media.after_image(start))
        self.text([markers.image_end])
        return known

    def frames(self, most: int, begin: bool = True) -> Codes:
        """Up to ``most`` frames [T, L] of a sound; ``begin``: a new one, else that of which a frame was read last by
        :meth:`begin_audio`."""
        media, made = self.media, list[list[int]]()
        codes: list[int] = []
        if begin:
            self.feed(media.text([media.markers.audio_start], self.at, learned=False), self.at + 1, codes)
        else:
            codes = self._pending
        while len(made) < most and codes[0] < media.end_code:
            made.append([code - 1 for code in codes])
            codes = []
            self.feed(media.frames(np.array(made[-1:], np.int16), self.at), self.at + 1, codes)
        self.text([media.markers.audio_end])
        return np.array(made, np.int16).reshape(-1, media.audio.levels)

    def begin_audio(self, codes_TL: Codes) -> None:
        """Read the beginning of a sound, which :meth:`frames` goes on with."""
        tokens = [
            self.media.text([self.media.markers.audio_start], self.at, learned=False),
            self.media.frames(codes_TL, self.at + 1),
        ]
        self._pending: list[int] = []
        self.feed(joined(tokens), self.at + 1 + len(codes_TL), self._pending)

    def write(self, most: int) -> list[int]:
        """Ids of up to ``most`` tokens of text, until the end token or a token that begins or ends media."""
        stops, ids = {self.tokenizer.eos_id, *self.media.markers}, list[int]()
        while len(ids) < most:
            token = self._choose(self.model.logits(self._hidden[-1]).numpy())
            if token in stops:
                break
            ids.append(token)
            self.text([token])
        return ids

    def _next_code(self, level: int, hidden: Any, codes: list[int]) -> Any:
        """The code of a level at the last position, counted from 1; it enters there alone, and the end nowhere."""
        logits = self.model.code_logits(level, self.model.model.norm(hidden[0, -1]))
        codes.append(1 + self._choose(logits.numpy()))
        entering = np.zeros(hidden.shape[:2], np.int64)
        entering[0, -1] = codes[-1] if codes[0] < self.media.end_code else 0
        return paddle.to_tensor(entering)

    def _choose(self, logits: NDArray[Any]) -> int:
        if not self.temperature:
            return int(logits.argmax())
        return int((logits / self.temperature + self.random.gumbel(size=logits.shape)).argmax())

    def _likely(self, odds: NDArray[Any]) -> NDArray[np.bool_]:
        if not self.temperature:
            return np.asarray(odds > 0)
        return np.asarray(odds / self.temperature + self.random.logistic(size=odds.shape) > 0)


def started(model: Any, tokenizer: Ernie5Tokenizer, **options: Any) -> Maker:
    """A sequence that has the begin token."""
    maker = Maker(model, tokenizer, **options)
    maker.text([tokenizer.bos_id])
    return maker


def draw_text(maker: Maker, text: str) -> NDArray[np.uint8]:
    """Pixels of the image that the model makes of a text."""
    maker.text(maker.tokenizer.encode(text))
    return maker.media.image.pixels(maker.draw())


def describe_image(maker: Maker, pixels: NDArray[np.uint8], most: int = 32) -> str:
    """The text that the model makes of an image."""
    media = maker.media
    maker.text([media.markers.image_start])
    start = maker.at
    maker.feed(media.read(media.image.values(pixels), start), media.after_image(start))
    maker.text([media.markers.image_end])
    return maker.tokenizer.decode(maker.write(most)).strip()


def describe_audio(maker: Maker, codes_TL: Codes, most: int = 32) -> str:
    """The text that the model makes of a sound."""
    media = maker.media
    maker.text([media.markers.audio_start])
    maker.feed(media.frames(codes_TL, maker.at), maker.at + len(codes_TL))
    maker.text([media.markers.audio_end])
    return maker.tokenizer.decode(maker.write(most)).strip()


def play_text(maker: Maker, text: str, most: int) -> Codes:
    """Frames of the sound that the model makes of a text."""
    maker.text(maker.tokenizer.encode(text))
    return maker.frames(most)


def continue_sound(maker: Maker, codes_TL: Codes, most: int) -> Codes:
    """The frames with which the model goes on."""
    maker.begin_audio(codes_TL)
    return maker.frames(most, begin=False)


def media_of(tokenizer: Any) -> MediaTokens | None:
    """How a tokenizer knows images and audio, if it does."""
    return tokenizer.media if isinstance(tokenizer, Ernie5Tokenizer) else None
