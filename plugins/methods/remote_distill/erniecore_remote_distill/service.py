"""What a teacher does with the questions of its students, without sockets and without a model: it checks them, keeps them in
order and within bounds, and keeps replies until they are fetched. ``teacher_server.py`` calls these methods for sites whose
names TLS has proved; the model works in one thread.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from erniecore_distill.cache import TopLogProbs
from erniecore_wan.payload import PayloadRefused

from erniecore.api import EnvironmentFault
from erniecore_remote_distill.messages import Question, bytes_per_position, pack_reply, unpack_question

#: of one site: questions that wait, bytes of replies that are kept; bytes of one reply
MAX_WAITING, KEPT_BYTES, MAX_REPLY = 64, 256 << 20, 32 << 20
#: seconds between two events about the replies of one site
_QUIET = 10.0


@dataclass(frozen=True)
class Facts:
    """What a teacher is.

    Attributes:
        fingerprint: SHA-256 of its weights. tokenizer: digest of its tokenizer. vocab_size: logits of a position.
        dtype: of its weights in memory. most: the largest ``top_k`` that it grants.
        longest: tokens of a sample, at most.
    """

    fingerprint: str
    tokenizer: str
    vocab_size: int
    dtype: str
    most: int
    longest: int


@dataclass
class Student:
    """What is known of a site. ``up``, ``down``: bytes of its questions and replies."""

    here: bool = True
    questions: int = 0
    samples: int = 0
    positions: int = 0
    up: int = 0
    down: int = 0
    told_at: float = 0.0


class TeacherService:
    """Questions and replies of one teacher. Every public method may be called by any thread.

    Args:
        directory: for ``events.jsonl``.
        model: the k most likely tokens of a question's learned positions; called by :meth:`work` alone.
    """

    def __init__(self, directory: Path, facts: Facts, model: Callable[[Question], TopLogProbs]) -> None:
        self.facts, self._model, self._path = facts, model, directory / "events.jsonl"
        self._changed, self._file_lock = threading.Condition(), threading.Lock()
        self._waiting: OrderedDict[tuple[str, str], Question] = OrderedDict()
        self._replies: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self.students: dict[str, Student] = {}
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self.emit("teaching", **asdict(facts))
        except OSError as error:
            found = str(error.strerror or error)
            raise EnvironmentFault("the teacher cannot write here", where=str(directory), found=found) from error

    def emit(self, event: str, **fields: object) -> None:
        """One line of ``events.jsonl``."""
        line = json.dumps({"event": event, "time": time.time(), **fields})
        with self._file_lock, self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def join(self, site: str) -> Facts:
        """A student is here; what it must know."""
        with self._changed:
            if site not in self.students or not self.students[site].here:
                self.students.setdefault(site, Student()).here = True
                self.emit("joined", site=site)
        return self.facts

    def leave(self, site: str) -> None:
        """A student is done."""
        with self._changed:
            if site in self.students:
                self.students[site].here = False
                self._tell(site, "left")

    @property
    def done(self) -> bool:
        """Whether students have been here and all have left."""
        with self._changed:
            return bool(self.students) and not any(student.here for student in self.students.values())

    def ask(self, site: str, data: bytes) -> str:
        """Take a question; the name of its reply, the same for the same bytes.

        Raises:
            PayloadRefused: ``damaged``, ``wrong-model``, ``wrong-tokenizer``, ``too-large`` or ``flood``.
        """
        question = unpack_question(data, self.facts.vocab_size)
        self._check(question)
        name = hashlib.sha256(data).hexdigest()[:32]
        with self._changed:
            self.join(site)
            key = site, name
            if key in self._replies or key in self._waiting:
                return name
            if sum(other == site for other, _ in self._waiting) >= MAX_WAITING:
                raise PayloadRefused("flood", f"{MAX_WAITING} questions of {site} wait already")
            self._waiting[key] = question
            student = self.students[site]
            student.questions, student.up = student.questions + 1, student.up + len(data)
            student.samples += len(question.samples)
            student.positions += question.num_learned
            self._changed.notify_all()
        return name

    def _check(self, question: Question) -> None:
        facts, asked = self.facts, question.asked
        if asked.teacher != facts.fingerprint:
            raise PayloadRefused(
                "wrong-model", f"the student wants the teacher {asked.teacher}; this is {facts.fingerprint}"
            )
        if asked.tokenizer != facts.tokenizer:
            raise PayloadRefused(
                "wrong-tokenizer", f"the student's is {asked.tokenizer}; the teacher's {facts.tokenizer}"
            )
        if asked.top_k > facts.most:
            raise PayloadRefused("too-large", f"top_k={asked.top_k}; this teacher says at most {facts.most} tokens")
        longest = max(len(ids) for ids, _ in question.samples)
        if longest > facts.longest:
            raise PayloadRefused("too-large", f"a sample of {longest} tokens; at most {facts.longest}")
        size = question.num_learned * bytes_per_position(asked.top_k, facts.vocab_size, asked.form)
        if size > MAX_REPLY:
            raise PayloadRefused("too-large", f"a reply of {size} bytes; at most {MAX_REPLY}")

    def reply(self, site: str, name: str, seconds: float) -> bytes | None:
        """A reply; ``None`` if the model has not come to it after so many seconds.

        Raises:
            PayloadRefused: ``unknown``: it was never asked, or not since the teacher began, or the reply was dropped.
        """
        key = site, name
        with self._changed:
            self._changed.wait_for(lambda: key not in self._waiting, seconds)
            if key in self._waiting:
                return None
            if key not in self._replies:
                raise PayloadRefused("unknown", "there is no such question; ask it again")
            return self._replies[key]

    def fetched(self, site: str, count: int) -> None:
        """A student has fetched so many bytes."""
        with self._changed:
            student = self.students[site]
            student.down += count
            if time.monotonic() - student.told_at >= _QUIET:
                self._tell(site, "answered")

    def _tell(self, site: str, event: str) -> None:
        student = self.students[site]
        student.told_at = time.monotonic()
        counts = {"samples": student.samples, "positions": student.positions, "up": student.up, "down": student.down}
        self.emit(event, site=site, questions=student.questions, **counts)

    def work(self, seconds: float) -> bool:
        """Reply the question that waits longest; whether there was one within so many seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._waiting), seconds):
                return False
            key, question = next(iter(self._waiting.items()))
        data = pack_reply(self._model(question), self.facts.vocab_size, question.asked.form)
        with self._changed:
            self._replies[key] = data
            del self._waiting[key]
            own = [other for other in self._replies if other[0] == key[0]]
            while sum(len(self._replies[other]) for other in own) > KEPT_BYTES:
                del self._replies[own.pop(0)]
            self._changed.notify_all()
        return True
