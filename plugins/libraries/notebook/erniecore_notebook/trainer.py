"""``erniecore.Trainer``: a run that one watches, stops, continues and uses from Python. What it does is what ``ernie run``,
``ernie generate`` and ``ernie export`` do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import erniecore
from erniecore.api import ErnieError, Exit, UsageError, hookimpl
from erniecore.api.callback import RunView
from erniecore.api.events import metrics
from erniecore_notebook.display import NotebookDisplay, in_notebook

if TYPE_CHECKING:
    from erniecore.api.export import ModelBundle

Messages = Sequence[Mapping[str, Any]]


class Trainer:
    """A run, from Python.

    Args:
        settings: sections and keys as in a YAML file, ``{"model": {"path": …}, "method": "sft", …}``, or such a file.
        overrides: ``section.key=value``.
        console: ``auto``: below the cell of a notebook, else as ``ernie run``; or ``lines``, ``live``, ``json``, ``none``.
        listeners: objects with hooks of the reference, such as ``ernie_step_end``, marked with ``erniecore.api.hookimpl``; called
            where the run has one process, as is the display of a notebook.

    Attributes:
        out: the run directory; None before the run has one.
        status: ``finished``, ``preempted`` (stopped, and saved) or empty.
    """

    def __init__(
        self, settings: str | Path | Mapping[str, Any], overrides: Sequence[str] = (), *, console: str = "auto",
        listeners: Sequence[object] = (),
    ) -> None:  # fmt: skip
        self.settings, self.overrides, self.console = settings, tuple(overrides), console
        self.listeners = tuple(listeners)
        self.out: Path | None = None
        self.status = ""
        self._bundle: ModelBundle | None = None

    def train(self) -> str:
        """Train to the end, or until the stop button (Ctrl-C, SIGTERM): then a checkpoint is saved, and the next call goes on
        from there. A second interrupt while it is being saved ends at once, with ``KeyboardInterrupt``.

        Returns:
            :attr:`status`.

        Raises:
            ErnieError: wrong settings or data, and whatever else ends ``ernie run`` with an error.
        """
        self.forget_model()
        self.status = ""
        display = NotebookDisplay() if self.console == "auto" and in_notebook() else None
        where = [] if self.out is None else [f"run.out={_quoted(self.out)}"]
        listeners = [_Place(self._keep_place), *([display] if display else []), *self.listeners]
        console = "none" if display else self.console
        try:
            self.out = erniecore.run(self.settings, [*self.overrides, *where], console=console, listeners=listeners).out
        except ErnieError as error:
            if error.exit_code != Exit.PREEMPTED:
                raise
            self.out = self.out or self._named()
            self.status = "preempted"
            if self.console != "none":
                print(f"{error.message}; train() goes on from there")
        else:
            self.status = "finished"
        return self.status

    @property
    def history(self) -> dict[str, list[Any]]:
        """Name of a metric -> its value at each step, ``step`` among them; metrics of evaluations are ``eval/…``, with
        ``eval/step``. None where a step has no such number. All sessions of the run, each step once."""
        from erniecore_runs.record import opened

        record = opened(self._trained())
        return {
            **_columns(list(record.steps.values()), ""),
            **_columns(list({event["step"]: event for event in record.evals}.values()), "eval/"),
        }

    @property
    def bundle(self) -> ModelBundle:
        """The trained model with its tokenizer, as ``erniecore.open_model`` gives it; opened once, until the next training."""
        if self._bundle is None:
            self._bundle = erniecore.open_model(self._trained())
        return self._bundle

    @property
    def model(self) -> Any:
        """The trained model, in evaluation mode."""
        return self.bundle.model

    def forget_model(self) -> None:
        """Free the memory of :attr:`model`."""
        self._bundle = None

    def generate(self, prompt: str | Messages, *, max_new_tokens: int | None = None, **options: Any) -> str:
        """What the trained model says.

        Args:
            prompt: what a user says, or messages with ``role`` and ``content``.
            max_new_tokens: None: 256, or what the context leaves.
            options: ``do_sample``, ``temperature``, ``top_p``, ``seed`` …, as of ``erniecore_generation.respond.generate_text``;
                greedy without any.

        Raises:
            UsageError: nothing was trained; an empty or too long prompt. CheckpointError: the model has no tokenizer.
        """
        from erniecore_generation.respond import generate_text

        from erniecore.api.data import Message

        given: Messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        messages = [Message(**message) for message in given]
        bundle = self.bundle
        if bundle.tokenizer is None:
            raise UsageError(
                "this model has no tokenizer", where=str(self.out), fix="pass token ids to erniecore.generate"
            )
        [found] = generate_text(bundle.model, bundle.tokenizer, [messages], max_new_tokens=max_new_tokens, **options)
        return found.text

    def export(self, out: str | Path, to: str = "hf") -> Path:
        """Write the trained model for others, by ``erniecore.export``; returns where it is.

        Raises:
            UsageError: nothing was trained, or an adapter, which is to be merged first. CheckpointError: the target is not free.
        """
        return Path(erniecore.export(self._trained(), out, to))

    def _trained(self) -> Path:
        if self.out is None:
            raise UsageError("nothing was trained yet", fix="call train() first")
        return self.out

    def _named(self) -> Path | None:
        """``run.out`` as the settings have it; listeners do not hear of it where a run has several processes."""
        from erniecore.api.settings import assignments, load

        given = self.settings
        file, sections = (None, assignments(given)) if isinstance(given, Mapping) else (Path(given), [])
        out = load(file, [*sections, *self.overrides]).settings.run.out
        return Path(out) if out else None

    def _keep_place(self, place: Path) -> None:
        self.out = place


class _Place:
    """Tells where the run is, also of one that ends with an error."""

    def __init__(self, tell: Callable[[Path], None]) -> None:
        self._tell = tell

    @hookimpl
    def ernie_event(self, run: RunView, event: Mapping[str, Any]) -> None:
        """The first event names the directory."""
        if event["event"] == "run_start":
            self._tell(run.out)


def _columns(events: Sequence[Mapping[str, Any]], prefix: str) -> dict[str, list[Any]]:
    """One list per metric, as long as there are events, and the list of steps."""
    found = [metrics(event) for event in events]
    names = dict.fromkeys(name for values in found for name in values)
    steps = {f"{prefix}step": [event["step"] for event in events]} if events else {}
    return {**steps, **{f"{prefix}{name}": [values.get(name) for values in found] for name in names}}


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
