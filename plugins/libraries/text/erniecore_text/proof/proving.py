"""The proof from beginning to end: started before the work that takes time, such as reading a model, and finished after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from erniecore.api import ErnieError, Json
from erniecore.api.data import MediaReader, Message
from erniecore.api.model import Tokenizer
from erniecore_text.proof.compare import Mismatch, Report, compare
from erniecore_text.proof.others import Rendering, rendering_of
from erniecore_text.proof.rows import ProofRow, run_directory, run_rows, shipped_rows
from erniecore_text.proof.trained import Trained, TrainedPrompt, trained_prompts

#: what a server gives its model: (messages, tools, thinking) -> ids
Renderer: TypeAlias = Callable[[Sequence[Message], Sequence[Json], bool | None], Sequence[int]]
#: what a difference is
Policy: TypeAlias = Literal["error", "warn"]
_FIX = "export the model again with the template and tokenizer of its run, or go on with {option}"


class Proof:
    """Prompts of rows, as training has them, on their way to be compared. A context: what runs ends with it.

    Args:
        directory: model directory that is served. tokenizer: the one that reads it.
        trained: tokenizer of training where no run is known; ``None``: ``tokenizer``.
        run: the directory of the run, or of its model, if it is not where ``directory`` is.
        servers: name -> what renders for it. option: what the user writes for a warning in place of the error.
    """

    def __init__(
        self,
        directory: Path,
        tokenizer: Tokenizer,
        *,
        option: str,
        trained: Tokenizer | None = None,
        run: Path | None = None,
        servers: Mapping[str, Renderer] | None = None,
    ) -> None:
        self.report, self._option, self._tokenizer = Report(), option, tokenizer
        self.prompts: list[TrainedPrompt] = []
        self._others: Rendering | None = None
        rows, known = self._rows(run_directory(run or directory))
        self._trained = known or trained or tokenizer
        if self._trained.chat_template is None:
            self.report.notes.append("not compared: the tokenizer has no chat template")
            return
        self._encode(rows)
        for name, render in (servers or {}).items():
            compare(self._trained, name, self.prompts, [_rendered(render, p) for p in self.prompts], self.report)
        if self.prompts:
            self._others = rendering_of(directory, tokenizer, self.prompts)

    def __enter__(self) -> Proof:
        return self

    def __exit__(self, *_: object) -> None:
        if self._others is not None:
            self._others.close()

    def check(self, policy: Policy) -> list[str]:
        """Warnings about the differences that are known so far.

        Raises:
            CheckpointError: ``ERN-K031``, a prompt differs, and ``policy`` is ``error``.
        """
        found = self.report.mismatches
        if not found:
            return []
        error = found[0].error(self._trained, len(found) - 1, _FIX.format(option=self._option))
        if policy == "error":
            raise error
        return [f"warning: {error.code} {error}"]

    def finish(self, policy: Policy) -> list[str]:
        """Wait for all; what to tell the user. Raises as :meth:`check`."""
        self._compare_others()
        return [*self.check(policy), *self.report.lines()]

    def add(self, name: str, found: Sequence[Sequence[int] | str]) -> None:
        """Compare what a server that encodes texts has for the first of :attr:`prompts`."""
        compare(self._trained, name, self.prompts[: len(found)], found, self.report, as_text=True)

    def _compare_others(self) -> None:
        if self._others is None:
            return
        rendered, self._others = self._others.result(), None
        if rendered.note:
            self.report.notes.append(rendered.note)
        compare(self._trained, rendered.name, self.prompts, rendered.prompts, self.report, as_text=True)

    def _rows(self, run: Path | None) -> tuple[list[ProofRow], Tokenizer | None]:
        found: list[ProofRow] = []
        tokenizer: Tokenizer | None = None
        if run is not None:
            found, tokenizer, notes = run_rows(run)
            self.report.notes += notes
        if found:
            self.report.source = f"{len(found)} rows of the run {run}"
            return found, tokenizer
        images = isinstance(self._tokenizer.chat_template, MediaReader)
        found = shipped_rows(images=images)
        self.report.source = f"{len(found)} shipped rows"
        return found, tokenizer

    def _encode(self, rows: Sequence[ProofRow]) -> None:
        made: Trained = trained_prompts(self._trained, rows)
        self.prompts = made.prompts
        self.report.rows, self.report.prompts = made.num_rows, len(made.prompts)
        self.report.refused = sum(made.refused.values())
        self.report.sides.append("training")
        for where, error in made.differing:
            nobody = TrainedPrompt(f"{where} {error.where}", (), (), None, (), ())
            self.report.mismatches.append(Mismatch("generation", nobody, str(error)))


def _rendered(render: Renderer, prompt: TrainedPrompt) -> Sequence[int] | str:
    try:
        return render(prompt.messages, prompt.tools, prompt.thinking)
    except ErnieError as error:
        return str(error)
