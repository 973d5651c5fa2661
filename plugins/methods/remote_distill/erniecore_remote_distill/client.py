"""A student's connection to its teacher, see ``erniecore_wan.pinned_client``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from erniecore_wan.payload import PayloadRefused
from erniecore_wan.pinned_client import Peer, PinnedClient

from erniecore_remote_distill.service import MAX_REPLY, Facts

#: seconds that the teacher may think about one request before it says that it still does
_WAIT = 20.0


class TeacherClient(PinnedClient):
    """One student. Bytes are those of questions and replies; see :class:`PinnedClient`."""

    def __init__(self, address: str, key: Path, certificate: Path, timeout: float, tell: Callable[[str], None]) -> None:
        peer = Peer("teacher", "method.teacher_at", "method.key", "method.certificate")
        super().__init__(address, key, certificate, timeout, tell, peer)
        self.most = MAX_REPLY + (1 << 20)

    def join(self) -> Facts:
        """What the teacher is."""
        found = self.json("POST", "/join")
        with self.readable("/join"):
            facts = Facts(**found)
            texts, numbers = (
                (facts.fingerprint, facts.tokenizer, facts.dtype),
                (facts.vocab_size, facts.most, facts.longest),
            )
            if not all(isinstance(text, str) for text in texts) or not all(
                0 < int(number) < 1 << 31 for number in numbers
            ):
                raise ValueError("facts that no teacher has")
        return facts

    def leave(self) -> None:
        """This site is done."""
        self.json("POST", "/leave")

    def ask(self, question: bytes) -> str:
        """Ask; the name of the reply. Raises ``PayloadRefused``."""
        found = self.json("POST", "/questions", question)
        self.sent += len(question)
        with self.readable("/questions"):
            return str(found["reply"])

    def reply(self, question: bytes, name: str) -> bytes:
        """The reply, once the teacher has it. A teacher that began anew meanwhile is asked again. Raises ``PayloadRefused``."""
        while True:
            try:
                wait = self.left(_WAIT)
                found = self.download(f"/replies/{name}", wait=wait)
            except PayloadRefused as error:
                if error.kind != "unknown":
                    raise
                name = self.ask(question)
                continue
            if found:
                return found
            self.check_deadline()
