"""``ernie chat``: a conversation in the terminal, or of lines piped in. Keeps the history; knows a few slash commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from erniecore_generation import options as generation_options
from erniecore_generation.completions import parse_completion
from erniecore_generation.options import (
    Device,
    MinP,
    Model,
    NewTokens,
    Repetition,
    Seed,
    Speculative,
    Temperature,
    Thinking,
    TopK,
    TopP,
)

from erniecore.api import DataError, UsageError, counted, nearest
from erniecore.api.adapter import AdapterChoice
from erniecore.api.command import note, opens_models, show, show_error, use_color
from erniecore.api.data import Message
from erniecore.api.files import printable
from erniecore_chat.chat_screen import ReplyScreen

if TYPE_CHECKING:
    from erniecore_generation.respond import Completion, Responder
    from erniecore_generation.sampling import Sampling

HELP = """/reset          forget the conversation
/system [TEXT]  set or show the system message (forgets the conversation)
/adapter [NAME] show the adapters, or use another one; off: the model alone
/image FILE     show the model an image with the next message, where it says <image>; may be repeated
/save FILE      write the conversation as one JSON line, a row of the `messages` format
//TEXT          send a message that begins with /
/help           this list
/quit           leave (also Ctrl-D)"""


@opens_models
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
    thinking: Thinking = None,
    speculative: Speculative = "off",
    device: Device = "cpu",
) -> None:
    """Chat with a model. Samples as the model's generation_config.json says, unless an option overrides it.

    /help lists the commands. Ctrl-C stops the reply. Lines that are pasted together are one message; without a terminal every
    line of the input is one.
    """
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    generation_options.sampling_from(
        {}, seed, **options, repetition_penalty=repetition_penalty
    )  # fails early, before paddle
    bundle, tokenizer = generation_options.open_model(model, device, speculative=speculative)
    policy = add_adapters(bundle.model, adapter or [])
    sampling = generation_options.sampling_from(
        bundle.generation, seed, **options, repetition_penalty=repetition_penalty
    )
    from erniecore_generation.respond import Responder

    if tokenizer.chat_template is None:
        raise UsageError("this model has no chat template", next=f"ernie generate --raw --model {model} --prompt TEXT")
    responder = Responder(policy, tokenizer, generation=bundle.generation, speculative=speculative, thinking=thinking)
    on_terminal = sys.stdin.isatty()
    talk = Talk(responder, sampling, system=system, max_new_tokens=max_new_tokens, labels=on_terminal)
    if on_terminal:
        note("Type a message, or /help.")
    for message in read_messages(on_terminal):
        if not talk.take(message):
            break


def add_adapters(model: Any, options: Sequence[str]) -> Any:
    """``model`` with saved adapters, each given as ``[NAME=]DIR``; the first is active."""
    from erniecore.api.run import load_adapter, named_directory

    places = [named_directory(option) for option in options]
    for name, directory in places:
        model = load_adapter(model, directory, name)
    if len(places) > 1 and isinstance(model, AdapterChoice):
        model.set_adapter(places[0][0])
    return model


def read_messages(on_terminal: bool) -> Iterator[str]:
    """What the user types or pastes, without what is empty; lines that are pasted together are one message."""
    if on_terminal:
        import readline  # editing and history of input()

        readline.parse_and_bind("set enable-bracketed-paste on")  # Python switches it off, for its own prompt
    while True:
        try:
            line = input("You: ") if on_terminal else sys.stdin.readline()
        except EOFError:
            line = ""
            show("")
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
        self.images: list[str] = []
        self.turns = 0
        self.commands: dict[str, Callable[[str], bool]] = {
            "/reset": self._reset,
            "/system": self._set_system,
            "/adapter": self._adapter,
            "/image": self._image,
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
        """Run a slash command, or reply to a message; returns whether to continue. What has several lines is a message."""
        word, _, rest = line.strip().partition(" ")
        single = "\n" not in line.strip()
        if single and word in self.commands:
            return self.commands[word](rest.strip())
        if single and word.startswith("//"):
            line = line.replace("//", "/", 1)
        elif single and word.startswith("/") and "/" not in word[1:]:
            close = nearest(word, self.commands)
            meant = f"did you mean {close}?" if close else "/help lists them"
            note(f"no such command: {printable(word)}; {meant} (to send it, write /{printable(word)})")
            return True
        self._reply(line)
        return True

    def _reply(self, line: str) -> None:
        """Reply to a message, with the images that were shown before it."""
        from erniecore_generation.media import asked

        try:
            self.history.append(asked(line, self.images, "/image"))
        except UsageError as error:
            show_error(error)
            return
        self.images = []
        self._complete()

    def _complete(self) -> None:
        shown: list[str] = []
        thinking = False
        screen: ReplyScreen | None = None

        def show_text(row: int, chunk: str) -> None:
            shown.append(chunk)
            if screen is not None:
                screen.feed(chunk)

        try:
            prompt = self._fitting()
            thinking = prompt.thinking
            screen = ReplyScreen(
                sys.stdout, thinking=thinking, reasoning=self.labels, color=self.labels and use_color(sys.stdout)
            )
            if self.labels:
                sys.stdout.write("Assistant: ")
            [completion] = self.responder.complete(
                [prompt],
                sampling=self.sampling,
                max_new_tokens=self.max_new_tokens,
                streams=[self.turns],
                on_text=show_text,
            )
        except (UsageError, DataError) as error:
            self.history.pop()
            show_error(error)
            return
        except KeyboardInterrupt:
            said = parse_completion("".join(shown), thinking=thinking)
            if screen is not None:
                screen.close()
            if said.content or said.tool_calls:
                self.history.append(Message("assistant", said.content, said.reasoning, said.tool_calls))
            else:  # a message whose completion had not begun is forgotten
                self.history.pop()
            note("\n(stopped)")
            return
        screen.close()
        self.turns += 1
        self.history.append(message_of(completion))
        show("")
        if completion.finish_reason == "length":
            note(f"note: truncated after {counted(len(completion.ids), 'token')}")

    def _fitting(self) -> Any:
        """The prompt. The oldest turns are dropped for good when the context has no room for them and a reply."""
        limit = self.responder.model.architecture.get("max_position_embeddings")
        wanted = self.max_new_tokens or 32
        while True:
            prompt = self.responder.encode(self.messages)
            if limit is None or len(prompt.ids) + wanted <= int(limit) or len(self.history) < 3:
                return prompt
            del self.history[:2]
            note("note: the context is full: dropped the oldest user and assistant messages")

    def _image(self, rest: str) -> bool:
        from erniecore_generation.media import asked

        if not rest:
            note(", ".join(map(printable, self.images)) or "usage: /image FILE")
            return True
        try:
            self.responder.encode([asked("", [rest], "/image")])  # says now what is wrong with it
        except (UsageError, DataError) as error:
            show_error(error)
        else:
            self.images.append(rest)
        return True

    def _reset(self, rest: str) -> bool:
        self.history.clear()
        self.images.clear()
        note("The conversation is forgotten.")
        return True

    def _set_system(self, rest: str) -> bool:
        if not rest:
            note(self.system or "There is no system message.")
            return True
        self.system = rest
        return self._reset("")

    def _adapter(self, rest: str) -> bool:
        model = self.responder.model
        if not isinstance(model, AdapterChoice):
            note("This model has no adapters to choose from; start with --adapter DIR.")
        elif not rest:
            note(", ".join([*model.adapter_names(), "off"]))
        else:
            try:
                model.set_adapter(None if rest == "off" else rest)
            except UsageError as error:
                show_error(error)
        return True

    def _save(self, rest: str) -> bool:
        if not rest or not self.history:
            note("usage: /save FILE" if not rest else "There is nothing to save.")
            return True
        row: dict[str, Any] = {"messages": [_plain(m) for m in self.messages]}
        if images := [str(Path(media.base, media.source)) for m in self.messages for media in m.media]:
            row["images"] = images
        try:
            Path(rest).write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            note(f"cannot write {rest}: {error.strerror}")
        else:
            note(f"saved {rest}")
        return True

    def _help(self, rest: str) -> bool:
        note(HELP)
        return True


def message_of(completion: Completion) -> Message:
    """A completion as an assistant message of the history."""
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
