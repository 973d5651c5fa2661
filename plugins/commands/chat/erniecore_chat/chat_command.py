"""``ernie chat``: a conversation in the terminal, or of lines piped in. Keeps the history; knows a few slash commands."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from erniecore_generation import options as generation_options
from erniecore_generation.completions import parse_completion
from erniecore_generation.options import (
    Device,
    MinP,
    NewTokens,
    Repetition,
    Seed,
    Speculative,
    Temperature,
    Thinking,
    TopK,
    TopP,
)

from erniecore.api import DataError, EnvironmentFault, UsageError, counted, nearest
from erniecore.api.adapter import AdapterChoice
from erniecore.api.command import JsonOption, note, opens_models, show, show_error, show_json, use_color
from erniecore.api.data import MARKERS, Message
from erniecore.api.files import printable
from erniecore_chat import conversation_commands
from erniecore_chat.chat_screen import ReplyScreen
from erniecore_chat.remote import RemoteReply, RemoteResponder
from erniecore_chat.talked_with import local_responder, read_tools, remote_responder

if TYPE_CHECKING:
    from erniecore_generation.respond import Completion, Responder
    from erniecore_generation.sampling import Sampling

    from erniecore.api import Json

HELP = """/reset          forget the conversation
/undo           take the last message back, and its reply
/retry          reply to the last message again
/prefer new|old FILE  after /retry: add both replies to a file, as a preference; the better one stays
/system [TEXT]  set or show the system message (forgets the conversation)
/adapter [NAME] show the adapters, or use another one; off: the model alone
/image FILE     show the model an image with the next message, where it says <image>; may be repeated
/video FILE     the same of a video, where it says <video>
/set [NAME VALUE] show or change temperature, top_p, top_k, min_p, repetition_penalty, seed, max_new_tokens
/tool RESULT    give the result of a tool that the reply has called
/load FILE [N]  continue the conversation in a row of a file
/save FILE      write the conversation as one JSON line, a row of the `messages` format
//TEXT          send a message that begins with /
/help           this list
/quit           leave (also Ctrl-D)"""

_Model = Annotated[
    Path | None,
    typer.Option("--model", metavar="DIR", help="Model directory, run or checkpoint; with --url: its name."),
]
_Url = Annotated[
    str, typer.Option("--url", metavar="URL", help="Talk to a server instead, at its OpenAI-compatible address.")
]
_KeyFile = Annotated[str, typer.Option("--key-file", metavar="FILE", help="API key for --url [$ERNIE_API_KEY].")]
_Tools = Annotated[
    Path | None, typer.Option("--tools", metavar="FILE", help="JSON list of functions that the model may call.")
]


@opens_models
def chat(
    model: _Model = None,
    url: _Url = "",
    key_file: _KeyFile = "",
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
    tools: _Tools = None,
    device: Device = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Chat with a model. Samples as the model's generation_config.json says, unless an option overrides it.

    /help lists the commands. Ctrl-C stops the reply. Lines that are pasted together are one message; without a terminal every
    line of the input is one; with --json every reply is.
    """
    offered = read_tools(tools)
    options: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    options["repetition_penalty"] = repetition_penalty
    chosen = generation_options.sampling_from({}, seed, **options)  # fails early, before paddle
    given = {name for name, value in options.items() if value is not None}
    responder: Any
    if url:
        local = {"--adapter": adapter, "--speculative": speculative != "off", "--device": device != "cpu"}
        responder = remote_responder(url, model, key_file, given, thinking, [name for name in local if local[name]])
        given |= {"seed"} if seed else set()
        sampling = chosen
    else:
        how: Any = {"adapters": adapter or [], "speculative": speculative, "thinking": thinking}
        responder, generation = local_responder(model, device, **how)
        sampling = generation_options.sampling_from(generation, seed, **options)
    on_terminal = sys.stdin.isatty()
    told: Any = {"labels": on_terminal and not as_json, "as_json": as_json, "tools": offered, "given": given}
    _converse(Talk(responder, sampling, system=system, max_new_tokens=max_new_tokens, **told), on_terminal)


def _converse(talk: Talk, on_terminal: bool) -> None:
    """Take messages until there are no more."""
    if on_terminal:
        note("Type a message, or /help.")
    for message in read_messages(on_terminal):
        if not talk.take(message):
            break


def read_messages(on_terminal: bool) -> Iterator[str]:
    """What the user types or pastes, without what is empty; lines that are pasted together are one message."""
    if on_terminal:
        import readline  # editing and history of input()

        readline.parse_and_bind("set enable-bracketed-paste on")  # Python switches it off, for its own prompt
    while True:
        try:
            line = input("You: ") if on_terminal else sys.stdin.readline()
        except EOFError:
            show("")
            return
        except KeyboardInterrupt:
            if not on_terminal:
                raise
            note("\n/quit or Ctrl-D leaves.")
            continue
        if not on_terminal and not line:
            return
        if line.strip():
            yield line.rstrip("\n")


#: what changes or keeps the conversation
_COMMANDS: dict[str, Callable[[Any, str], None]] = {
    "/undo": lambda talk, rest: conversation_commands.undo(talk),
    "/retry": lambda talk, rest: conversation_commands.retry(talk),
    "/prefer": conversation_commands.prefer,
    "/set": conversation_commands.set_option,
    "/tool": conversation_commands.tool_result,
    "/load": conversation_commands.load,
    "/save": conversation_commands.save,
}


class Talk:
    """One conversation: its messages, and what each line does to it."""

    def __init__(
        self,
        responder: Responder | RemoteResponder,
        sampling: Sampling,
        *,
        system: str = "",
        max_new_tokens: int | None = None,
        labels: bool = False,
        tools: tuple[Json, ...] = (),
        as_json: bool = False,
        given: set[str] | None = None,
    ) -> None:
        #: options of sampling that the user has chosen
        self.given: set[str] = set() if given is None else given
        self.responder: Any = responder
        self.sampling, self.system = sampling, system
        self.max_new_tokens, self.labels, self.as_json = max_new_tokens, labels, as_json
        self.history: list[Message] = []
        #: files that go with the next message, by kind
        self.shown: dict[str, list[str]] = {kind: [] for kind in MARKERS}
        self.tools: tuple[Json, ...] = tools
        self.former: tuple[Message, ...] = ()
        self.turns = 0
        self.commands: dict[str, Callable[[str], bool]] = {
            "/reset": self._reset,
            "/system": self._set_system,
            "/adapter": self._adapter,
            **{f"/{kind}": partial(self._show, kind) for kind in MARKERS},
            **{name: partial(self._run, command) for name, command in _COMMANDS.items()},
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
        """Reply to a message, with the images and videos that were shown before it."""
        from erniecore_generation.media import asked

        try:
            self.history.append(asked(line, self.shown["image"], self.shown["video"], prefix="/"))
        except UsageError as error:
            show_error(error)
            return
        self._forget_shown()
        self.reply()

    def reply(self) -> bool:
        """Reply to the last message; whether there is a reply. Without one the message is forgotten."""
        self.former = ()
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
                io.StringIO() if self.as_json else sys.stdout,
                thinking=thinking,
                reasoning=self.labels,
                color=self.labels and use_color(sys.stdout),
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
        except (UsageError, DataError, EnvironmentFault) as error:
            self.history.pop()
            show_error(error)
            return False
        except KeyboardInterrupt:
            if screen is not None:
                screen.close()
            kept = self._keep_said(parse_completion("".join(shown), thinking=thinking))
            note("\n(stopped)")
            return kept
        screen.close()
        self._finish(completion)
        return True

    def _keep_said(self, said: Any) -> bool:
        """What an interrupted reply has said joins the history; a message whose reply had not begun is forgotten."""
        kept = bool(said.content or said.tool_calls)
        if kept:
            self.history.append(Message("assistant", said.content, said.reasoning, said.tool_calls))
        else:
            self.history.pop()
        return kept

    def _finish(self, completion: Completion | RemoteReply) -> None:
        self.turns += 1
        self.history.append(message_of(completion))
        if self.as_json:
            told = completion.json() if isinstance(completion, RemoteReply) else None
            show_json(told or generation_options.completion_json(completion), indent=None)
        else:
            show("")
        sys.stdout.flush()  # notes follow on stderr
        if completion.tool_calls and self.labels:
            note("/tool RESULT gives what the tool returns.")
        if completion.finish_reason == "length":
            count = completion.new_tokens if isinstance(completion, RemoteReply) else len(completion.ids)
            note(f"note: truncated after {counted(count, 'token')}")

    def _fitting(self) -> Any:
        """The prompt. The oldest turns are dropped for good when the context has no room for them and a reply."""
        limit = self.responder.model.architecture.get("max_position_embeddings")
        wanted = self.max_new_tokens or 32
        while True:
            prompt = self.responder.encode(self.messages, self.tools)
            if limit is None or len(prompt.ids) + wanted <= int(limit) or len(self.history) < 3:
                return prompt
            del self.history[:2]
            note("note: the context is full: dropped the oldest user and assistant messages")

    def _show(self, kind: str, rest: str) -> bool:
        from erniecore_generation.media import asked

        if not rest:
            note(", ".join(map(printable, self.shown[kind])) or f"usage: /{kind} FILE")
            return True
        files = {"images": [rest] if kind == "image" else [], "videos": [rest] if kind == "video" else []}
        try:
            self.responder.encode([asked("", **files, prefix="/")])  # says now what is wrong with it
        except (UsageError, DataError) as error:
            show_error(error)
        else:
            self.shown[kind].append(rest)
        return True

    def _forget_shown(self) -> None:
        for files in self.shown.values():
            files.clear()

    def _reset(self, rest: str) -> bool:
        self.history.clear()
        self._forget_shown()
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

    def _run(self, command: Callable[[Talk, str], None], rest: str) -> bool:
        command(self, rest)
        return True

    def _help(self, rest: str) -> bool:
        note(HELP)
        return True


def message_of(completion: Completion | RemoteReply) -> Message:
    """A completion as an assistant message of the history."""
    return Message("assistant", completion.content, completion.reasoning, completion.tool_calls)
