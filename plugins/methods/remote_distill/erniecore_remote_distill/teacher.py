"""The student's side: a teacher that is asked over a link for what the run does not know yet."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle  # noqa: TID253
from erniecore_distill.cache import Cache, TopLogProbs, key_of
from erniecore_distill.chunked import Comparison, TopTokens
from erniecore_distill.teachers import samples_of
from erniecore_system.durable import replace_file
from erniecore_wan.payload import PayloadRefused
from erniecore_wan.pinned_client import DeadlinePassed
from erniecore_wan.pinned_server import CHUNK

from erniecore.api import ConfigError, EnvironmentFault
from erniecore.api.method import IGNORE, Batch
from erniecore_remote_distill.client import TeacherClient
from erniecore_remote_distill.messages import (
    Asked,
    Question,
    bytes_per_position,
    pack_question,
    question_bytes,
    unpack_reply,
)
from erniecore_remote_distill.service import MAX_REPLY

if TYPE_CHECKING:
    from paddle import Tensor

    from erniecore_remote_distill.config import RemoteDistillConfig

#: bytes of the reply to one question, where a sample alone has no more: the next one is computed while this one travels
_REPLY = 4 << 20
#: file of the run that says to which teacher it keeps
_CHOSEN = "fingerprint"


@dataclass(frozen=True, slots=True)
class PartlyTaught:
    """What a teacher says about n positions, of which it has said nothing about some: there nothing is compared.

    Attributes:
        top: with any values where there is no reply. taught: bool [n].
    """

    top: TopTokens
    taught: Tensor

    def compare(self, rows: slice, logits: Tensor, comparison: Comparison) -> tuple[Tensor, Tensor]:
        """As ``Teaching.compare``; 0, and the token -1, where there is no reply."""
        divergence, best = self.top.compare(rows, logits, comparison)
        taught = self.taught[rows]
        return paddle.where(taught, divergence, paddle.zeros_like(divergence)), paddle.where(
            taught, best, paddle.full_like(best, -1)
        )


class RemoteTeacher:
    """The teacher at ``method.teacher_at``. It is called once a run has begun, see :meth:`begin`.

    Args:
        tokenizer: digest of the student's. vocabulary: logits of a position of the student.

    Attributes:
        cache: what was answered; ``None`` before the teacher was reached for the first time.
        skipped: keys of the samples that the present step does without. taught: positions of the last batch with a reply.
    """

    def __init__(self, config: RemoteDistillConfig, tokenizer: str, vocabulary: int) -> None:
        self._config, self._tokenizer, self._vocabulary = config, tokenizer, vocabulary
        self._home, self._emit = Path(), _silent
        self.client = TeacherClient(
            config.teacher_at, Path(config.key), Path(config.certificate), config.timeout, self._complain
        )
        self.cache: Cache | None = None
        self.skipped: frozenset[bytes] = frozenset()
        self.taught, self.asked_samples, self.asked_positions = 0, 0, 0
        self._fingerprint, self._joined = config.fingerprint, False

    def begin(self, out: Path, emit: Callable[..., None]) -> None:
        """A run begins or goes on. Meets the teacher, if it is there in time.

        Args:
            out: of the run. emit: takes its events.

        Raises:
            ConfigError: it is another teacher than the settings name. EnvironmentFault: another than before, or none.
        """
        self._home, self._emit = out / "teacher", emit
        known = self._home / _CHOSEN
        if not self._fingerprint and known.is_file():
            self._fingerprint = known.read_text(encoding="utf-8").strip()
        self.fetch({}, patient=False)

    # ---- asking
    def fetch(self, samples: Mapping[bytes, Batch], *, patient: bool) -> frozenset[bytes]:
        """Ask about samples that are not known yet; the keys of those that have no reply when ``patience`` is over.

        Args:
            patient: wait for all of them, whatever the settings say.
        """
        waits = patient or self._config.late == "wait"
        self.client.deadline = None if waits else time.monotonic() + self._config.patience
        missing = {key: one for key, one in samples.items() if self.cache is None or self.cache.get(key) is None}
        if self._joined and not missing:
            return frozenset()
        try:
            if not self._joined:
                self._join()
            for key, values in self._replies(missing):
                self._cached.add(key, values)
        except DeadlinePassed:
            self.client.close()
        except PayloadRefused as error:
            raise EnvironmentFault(
                f"the teacher refuses this student: {error.kind}",
                where=self._config.teacher_at,
                found=str(error),
                fix="student and teacher need one tokenizer, the teacher of the settings, and a top_k that it grants",
            ) from error
        finally:
            self.client.deadline = None
        return frozenset(key for key in missing if self.cache is None or self.cache.get(key) is None)

    def tell_late(self, step: int, samples: Sequence[Batch]) -> None:
        """An event: these samples of this rank are learned without the teacher in ``step``."""
        positions = sum(int((sample.labels != IGNORE).sum()) for sample in samples)
        self._emit("teacher_late", step=step, samples=len(samples), positions=positions, patience=self._config.patience)

    def leave(self) -> None:
        """This student is done. A teacher that is not there any more, or not within ``patience``, is not told."""
        self.client.deadline = time.monotonic() + self._config.patience
        with suppress(DeadlinePassed, PayloadRefused):
            self.client.leave()

    def _complain(self, reason: str) -> None:
        self._emit("teacher_link", reason=f"the teacher is not reached: {reason}")

    @property
    def _cached(self) -> Cache:
        assert self.cache is not None
        return self.cache

    def _join(self) -> None:
        """Meet the teacher, and check what it is."""
        config, facts = self._config, self.client.join()
        if facts.tokenizer != self._tokenizer or facts.vocab_size != self._vocabulary:
            found = f"{facts.vocab_size} logits, tokenizer {facts.tokenizer[:16]}; the student: {self._vocabulary}, "
            raise ConfigError.at(
                "method.teacher_at", f"the teacher's tokenizer is not the student's: {found}{self._tokenizer[:16]}"
            )
        if self._fingerprint and facts.fingerprint != self._fingerprint:
            raise EnvironmentFault(
                "another teacher than the one of this run",
                where=config.teacher_at,
                found=facts.fingerprint,
                expected=self._fingerprint,
                fix="start that one again, or begin another run with this one",
            )
        if config.top_k > facts.most:
            raise ConfigError.at("method.top_k", f"the teacher says at most {facts.most} tokens of each position")
        self._fingerprint, self._joined = facts.fingerprint, True
        self._home.mkdir(parents=True, exist_ok=True)
        replace_file(self._home / _CHOSEN, f"{facts.fingerprint}\n".encode())
        chosen = {"top_k": config.top_k, "temperature": config.temperature, "vocab_size": self._vocabulary}
        known = {"teacher": facts.fingerprint, "dtype": facts.dtype, **chosen, "format": 1}
        if config.form != "float32":
            known["form"] = config.form
        self.cache = Cache(Path(config.cache) if config.cache else self._home, known)
        self._emit("teacher_joined", address=config.teacher_at, fingerprint=facts.fingerprint, dtype=facts.dtype)

    def _replies(self, missing: Mapping[bytes, Batch]) -> Iterator[tuple[bytes, TopLogProbs]]:
        """Ask two questions at a time: the teacher computes one while the other one travels."""
        config = self._config
        asked = Asked(self._fingerprint, self._tokenizer, config.top_k, config.temperature, config.form)
        open_: deque[tuple[list[bytes], Question, bytes, str]] = deque()
        for keys in self._divided(missing):
            samples = [(missing[key].input_ids[0], missing[key].labels[0] != IGNORE) for key in keys]
            question = Question(asked, samples)
            data = pack_question(question)
            open_.append((keys, question, data, self.client.ask(data)))
            if len(open_) == 2:
                yield from self._fetched(*open_.popleft())
        while open_:
            yield from self._fetched(*open_.popleft())

    def _fetched(
        self, keys: list[bytes], question: Question, data: bytes, name: str
    ) -> Iterator[tuple[bytes, TopLogProbs]]:
        reply = self.client.reply(data, name)
        values = unpack_reply(reply, question.num_learned, question.asked, self._vocabulary)
        self.asked_samples += len(keys)
        self.asked_positions += question.num_learned
        ends = np.cumsum([learned.sum() for _, learned in question.samples])[:-1]
        for key, *parts in zip(keys, *(np.split(part, ends) for part in values), strict=True):
            yield key, TopLogProbs(*parts)

    def _divided(self, missing: Mapping[bytes, Batch]) -> Iterator[list[bytes]]:
        """Keys in questions of at most one chunk, whose replies are not long."""
        config, own, room, size = self._config, list[bytes](), CHUNK - 4096, 0
        each = bytes_per_position(config.top_k, self._vocabulary, config.form)
        for key, sample in missing.items():
            up = question_bytes(sample.input_ids.shape[1])
            down = int((sample.labels != IGNORE).sum()) * each
            if up > room or down > MAX_REPLY:
                raise ConfigError.at(
                    "method.top_k", f"a sample of {sample.input_ids.shape[1]} tokens has a reply of {down} bytes; at "
                    f"most {MAX_REPLY}: choose a smaller one, or data.max_seq_len",
                )  # fmt: skip
            if own and (room < up or size + down > _REPLY):
                yield own
                own, room, size = [], CHUNK - 4096, 0
            own, room, size = [*own, key], room - up, size + down
        if own:
            yield own

    # ---- what the loss needs
    def teaching(self, batch: Batch, chunk: int) -> PartlyTaught:
        """See ``erniecore_distill.teachers.Teacher``; asks about samples that nobody has asked about, as in an evaluation."""
        samples = keyed(batch)
        unknown = {key: one for key, one in samples if key not in self.skipped}
        gone = self.skipped | self.fetch(unknown, patient=False)
        parts, taught = [], []
        for key, sample in samples:
            learned = int((sample.labels != IGNORE).sum())
            values = None if key in gone else self._cached.get(key)
            parts.append(self._nothing(learned) if values is None else values)
            taught.append(np.full(learned, values is not None))
        ids, log_p, rest = (np.concatenate(found) for found in zip(*parts, strict=True))
        known = np.concatenate(taught)
        self.taught = int(known.sum())
        top = TopTokens(
            paddle.to_tensor(ids.astype(np.int64)), paddle.to_tensor(log_p), paddle.to_tensor(rest[:, None])
        )
        return PartlyTaught(top, paddle.to_tensor(known))

    def _nothing(self, count: int) -> TopLogProbs:
        """Values of ``count`` positions that stand where there is no reply: all outcomes alike."""
        k = self._config.top_k
        each = np.float32(-np.log(k + 1))
        ids = np.tile(np.arange(k, dtype=np.int32), (count, 1))
        return TopLogProbs(ids, np.full((count, k), each), np.full(count, each))


def keyed(batch: Batch) -> Sequence[tuple[bytes, Batch]]:
    """The samples of a batch that are learned, with their keys, in order. Raises ``ConfigError`` for images."""
    found = []
    for sample in samples_of(batch):
        if any(sample.media):
            raise ConfigError.at("method.teacher_at", "rows have images, and only ids travel: leave them out")
        found.append((key_of(sample.input_ids, sample.labels != IGNORE, ()), sample))
    return found


def _silent(event: str, **fields: Any) -> None:
    """Takes events before there is a run."""
