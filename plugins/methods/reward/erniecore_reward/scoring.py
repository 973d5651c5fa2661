"""Scores of a trained reward model: for Python, for the command ``ernie score``, and as a reward function of other
methods. Importing this module is light.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.api import CheckpointError, DataError, Json, UsageError
from erniecore.api.data import MediaReader, Message

if TYPE_CHECKING:
    from paddle import Tensor

    from erniecore.api.model import ModelBundle


class RewardModel:
    """A reward model in evaluation mode.

    Args:
        bundle: a model with a ``score`` head, and its tokenizer. batch_size: completions at a time.

    Raises:
        UsageError: the model has no score head. CheckpointError: it has no tokenizer.
    """

    def __init__(self, bundle: ModelBundle, *, batch_size: int = 8) -> None:
        from erniecore.api.layers import child
        from erniecore_reward.encoder import RewardTurnEncoder

        if child(bundle.model, "score") is None:
            raise UsageError(
                "this is no reward model: it has no score head",
                found=", ".join(bundle.architecture.get("architectures") or ()),
                expected="…ForSequenceClassification in config.json",
                fix="train one with --method reward",
            )
        if bundle.tokenizer is None:
            raise CheckpointError("this reward model has no tokenizer", expected="tokenizer.model beside the weights")
        self.model, self.batch_size = bundle.model, batch_size
        self.turns = RewardTurnEncoder(bundle.tokenizer)
        self.longest = int(bundle.architecture.get("max_position_embeddings") or 0)

    @classmethod
    def open(
        cls,
        directory: str | Path,
        *,
        adapter: str | Path | None = None,
        device: str = "cpu",
        dtype: str = "float32",
        **options: Any,
    ) -> RewardModel:
        """From a model directory, a run (also of an adapter) or a checkpoint.

        Args:
            adapter: a saved one that goes onto it. device: a device plugin; empty within a run: the one that is open.
            options: of the class.
        """
        from erniecore.api.run import open_model

        return cls(open_model(directory, adapter=adapter, device=device, dtype=dtype), **options)

    def scores(
        self, conversations: Sequence[Sequence[Message | Mapping[str, Any]]], tools: Sequence[Json] = ()
    ) -> list[float]:
        """The reward of each conversation's last message, given all before it.

        Args:
            conversations: messages (``Message``, or mappings with ``role`` and ``content``), the last one the
                assistant's.
            tools: that were offered, in all of them.

        Raises:
            DataError: a conversation that does not end with the assistant, that the chat template refuses, or that is
                longer than the model's context; nothing is cut.
        """
        from erniecore_reward.encoder import encode_completion

        rows, media = [], []
        for index, conversation in enumerate(conversations):
            messages = [as_message(message) for message in conversation]
            if len(messages) < 2 or messages[-1].role != "assistant":
                raise DataError("a conversation must end with the assistant's message", where=f"conversation {index}")
            rows.append(encode_completion(self.turns, messages[:-1], messages[-1], tools))
            media.append(self._media_of(messages, rows[-1]))
            if self.longest and len(rows[-1]) > self.longest:
                raise DataError(
                    "a conversation is longer than the model's context",
                    where=f"conversation {index}",
                    found=f"{len(rows[-1])} tokens",
                    expected=f"at most {self.longest}",
                )
        return self._read(rows, media)

    def _media_of(self, messages: Sequence[Message], ids: Sequence[int]) -> tuple[str, ...]:
        """``Sample.media`` of a conversation. Raises ``DataError`` where the model reads texts."""
        first = next((m for message in messages for m in message.media), None)
        if first is None:
            return ()
        if not isinstance(self.turns.template, MediaReader):
            fix = "score with a reward model that sees, such as one of paddleocr-vl"
            raise DataError("this reward model reads texts", where=first.where, found=first.source[:80], fix=fix)
        return self.turns.template.references(messages, ids)

    def scores_of_texts(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """The reward of each (prompt, completion) in the words of the chat template: a prompt as the model was given it,
        special tokens included, and what was written behind it without the token that ended it."""
        from erniecore.api.method import Segment

        end = self.turns.template.turn_end
        rows = []
        for prompt, text in pairs:
            segments = [Segment(prompt, True), Segment(text, False, generated=True), Segment(end, True, generated=True)]
            rows.append([i for ids in self.turns.tokenizer.encode_segments(segments) for i in ids])
        return self._read(rows)

    def _read(self, rows: Sequence[Sequence[int]], media: Sequence[tuple[str, ...]] = ()) -> list[float]:
        """Longest together, so that little is padded; padding stands behind, where causal attention never looks."""
        import paddle

        from erniecore_reward.objective import read

        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        found = [0.0] * len(rows)
        self.model.eval()
        with paddle.no_grad():
            for start in range(0, len(order), self.batch_size):
                part = order[start : start + self.batch_size]
                hidden_BSH = self._hidden([rows[i] for i in part], [media[i] for i in part] if media else ())
                lasts = paddle.to_tensor([[j, len(rows[i]) - 1] for j, i in enumerate(part)])
                for i, reward in zip(part, read(self.model, hidden_BSH.gather_nd(lasts)).tolist(), strict=True):
                    found[i] = reward
        return found

    def _hidden(self, rows: Sequence[Sequence[int]], media: Sequence[tuple[str, ...]]) -> Tensor:
        """Final hidden states [B, S, H] of rows of ids, with what stands for the images of each."""
        import paddle

        if not any(media):
            width = max(map(len, rows))
            return self.model.features(paddle.to_tensor([[*ids, *[0] * (width - len(ids))] for ids in rows])).hidden
        from erniecore_preference.scoring import inputs_of

        from erniecore.api.training import collate
        from erniecore_reward.encoder import read_sample

        samples = [[read_sample(ids, images)] for ids, images in zip(rows, media, strict=True)]
        reader: Any = self.turns.template
        batch = reader.complete(collate(samples, pad_id=0), samples)
        return self.model.features(paddle.to_tensor(batch.input_ids), **inputs_of(batch)).hidden


def as_message(given: Message | Mapping[str, Any]) -> Message:
    """A ``Message``, from one or from a mapping with ``role`` and ``content``. Every assistant's turn counts here."""
    if isinstance(given, Message):
        return given if given.learn else replace(given, learn=True)
    if not {"role", "content"} <= set(given) or not isinstance(given["content"], str):
        raise DataError("a message needs `role` and `content`", found=", ".join(map(str, given)))
    return Message(given["role"], given["content"], str(given.get("reasoning_content") or ""))


def score(
    model: str | Path,
    conversations: Sequence[Sequence[Message | Mapping[str, Any]]],
    *,
    device: str = "cpu",
    batch_size: int = 8,
) -> list[float]:
    """The reward of each conversation's last message; see :class:`RewardModel`, which keeps the model for further calls."""
    return RewardModel.open(model, device=device, batch_size=batch_size).scores(conversations)
