"""``ernie chat``: a conversation in the terminal, or of lines piped in. Keeps the history; knows a few slash commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from erniecore.cli import answering, render
from erniecore.cli.answering import (
    Device,
    MinP,
    Model,
    NewTokens,
    Repetition,
    Seed,
    Speculative,
    Temperature,
    TopK,
    TopP,
)
from erniecore.errors import UsageError, nearest
from erniecore.types import Message

if TYPE_CHECKING:
    from erniecore.engine.generation.respond import Completion, Responder
    from erniecore.engine.generation.sampling import Sampling

HELP = """/reset          forget the conversation
/system [TEXT]  set or show the system message (forgets the conversation)
/adapter [NAME] show the adapters, or use another one; off: the model alone
/save FILE      write the conversation as one JSON line, a row of the `messages` format
/help           this list
/quit           leave (also Ctrl-D)"""


def chat(
    model: Model,
    adapter: Annotated[
        list[str] | None,
        typer.Option("--adapter", metavar="[NAME=]DIR", help="Saved adapter on the model; several: /adapter changes."),
    ] = None,
    system: Annotated[str, typer.Option("--system", metavar="TEXT", help="System message.")] = "",
    max_new_tokens: NewTokens = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: Repetition = None,
    seed: Seed = 0,
    speculative: Speculative = "off",
    device: Device = "cpu",
) -> None:
    """Talk to a model. Draws as the model's generation_config.json says, unless an option says otherwise.

    /help lists the commands. Ctrl-C stops an answer. Without a terminal every line of the input is one message.
    """
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    answering.sampling_from({}, seed, **options, repetition_penalty=repetition_penalty)  # fails early, before paddle
    bundle, tokenizer = answering.open_model(model, device, speculative=speculative)
    add_adapters(bundle.model, adapter or [])
    sampling = answering.sampling_from(bundle.generation, seed, **options, repetition_penalty=repetition_penalty)
    from erniecore.engine.generation.respond import Responder

    if tokenizer.chat_template is None:
        raise UsageError("this model has no chat template", next="ernie generate --raw")
    responder = Responder(bundle.model, tokenizer, generation=bundle.generation, speculative=speculative)
    on_terminal = sys.stdin.isatty()
    talk = Talk(responder, sampling, system=system, max_new_tokens=max_new_tokens, labels=on_terminal)
    if on_terminal:
        render.note("Type a message, or /help.")
    for line in read_lines(on_terminal):
        if not talk.take(line):
            break


def add_adapters(model: Any, words: Sequence[str]) -> None:
    """Saved adapters, each ``[NAME=]DIR``; the first is in use."""
    from erniecore.engine.models.adapters import load_adapter, named_directory

    places = [named_directory(word) for word in words]
    for name, directory in places:
        load_adapter(model, directory, name)
    if len(places) > 1 and hasattr(model, "set_adapter"):
        model.set_adapter(places[0][0])


def read_lines(on_terminal: bool) -> Iterator[str]:
    """What the user types, without empty lines."""
    if on_terminal:
        import readline  # noqa: F401 - editing and history of input()
    while True:
        try:
            line = input("You: ") if on_terminal else sys.stdin.readline()
        except EOFError:
            line = ""
            render.show("")
            return
        if not on_terminal and not line:
            return
        if line.strip():
            yield line.rstrip("\n")


class Talk:
    """One conversation: its messages, and what each line does to it."""

    def __init__(
        self,
        responder: Responder,
        sampling: Sampling,
        *,
        system: str = "",
        max_new_tokens: int | None = None,
        labels: bool = False,
    ) -> None:
        self.responder, self.sampling, self.system = responder, sampling, system
        self.max_new_tokens, self.labels = max_new_tokens, labels
        self.history: list[Message] = []
        self.turns = 0
        self.commands: dict[str, Callable[[str], bool]] = {
            "/reset": self._reset,
            "/system": self._set_system,
            "/adapter": self._adapter,
            "/save": self._save,
            "/help": self._help,
            "/quit": lambda rest: False,
            "/exit": lambda rest: False,
        }

    @property
    def messages(self) -> list[Message]:
        """The system message, if there is one, and the history."""
        return [*([Message("system", self.system)] if self.system else []), *self.history]

    def take(self, line: str) -> bool:
        """Do what a line asks for; whether to go on."""
        word, _, rest = line.strip().partition(" ")
        if word in self.commands:
            return self.commands[word](rest.strip())
        close = nearest(word, self.commands) if word.startswith("/") and "/" not in word[1:] else None
        if close:
            render.note(f"no such command: {word}; did you mean {close}?")
            return True
        self._answer(line)
        return True

    def _answer(self, line: str) -> None:
        self.history.append(Message("user", line))
        shown: list[str] = []

        def show(row: int, piece: str) -> None:
            shown.append(piece)
            sys.stdout.write(piece)
            sys.stdout.flush()

        try:
            prompt = self._fitting()
            if self.labels:
                sys.stdout.write("Assistant: ")
            [completion] = self.responder.answer(
                [prompt],
                sampling=self.sampling,
                max_new_tokens=self.max_new_tokens,
                streams=[self.turns],
                on_text=show,
            )
        except UsageError as error:
            self.history.pop()
            render.show_error(error)
            return
        except KeyboardInterrupt:
            if any(shown):
                self.history.append(Message("assistant", "".join(shown)))
            else:
                self.history.pop()
            render.note("\n(stopped)")
            return
        self.turns += 1
        self.history.append(message_of(completion))
        render.show("")
        if completion.finish_reason == "length":
            render.note(f"note: cut off after {len(completion.ids)} tokens")

    def _fitting(self) -> Any:
        """The prompt; oldest turns are left out for good when the context has no room for them and an answer."""
        limit = self.responder.model.architecture.get("max_position_embeddings")
        wanted = self.max_new_tokens or 32
        while True:
            prompt = self.responder.encode(self.messages)
            if limit is None or len(prompt.ids) + wanted <= int(limit) or len(self.history) < 3:
                return prompt
            del self.history[:2]
            render.note("note: the context is full: the oldest question and answer are forgotten")

    def _reset(self, rest: str) -> bool:
        self.history.clear()
        render.note("The conversation is forgotten.")
        return True

    def _set_system(self, rest: str) -> bool:
        if not rest:
            render.note(self.system or "There is no system message.")
            return True
        self.system = rest
        return self._reset("")

    def _adapter(self, rest: str) -> bool:
        model = self.responder.model
        if not hasattr(model, "set_adapter"):
            render.note("This model has no adapters to choose from; start with --adapter DIR.")
        elif not rest:
            render.note(", ".join([*model.adapter_names(), "off"]))
        else:
            try:
                model.set_adapter(None if rest == "off" else rest)
            except UsageError as error:
                render.show_error(error)
        return True

    def _save(self, rest: str) -> bool:
        if not rest or not self.history:
            render.note("usage: /save FILE" if not rest else "There is nothing to save.")
            return True
        row = {"messages": [_plain(m) for m in self.messages]}
        try:
            Path(rest).write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            render.note(f"cannot write {rest}: {error.strerror}")
        else:
            render.note(f"saved {rest}")
        return True

    def _help(self, rest: str) -> bool:
        render.note(HELP)
        return True


def message_of(completion: Completion) -> Message:
    """An answer as a message of the history."""
    return Message("assistant", completion.content, completion.reasoning, completion.tool_calls)


def _plain(message: Message) -> dict[str, Any]:
    """A message as the ``messages`` format writes it."""
    row: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        row["reasoning_content"] = message.reasoning
    if message.tool_calls:
        calls = [{"name": c.name, "arguments": c.arguments} for c in message.tool_calls]
        row["tool_calls"] = [{"type": "function", "function": call} for call in calls]
    return row
