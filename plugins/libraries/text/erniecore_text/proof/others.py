"""The exported chat template as others render it: by transformers in a process of its own, or, where no interpreter has
transformers, by our sandboxed renderer from the same file, which the report says.

The process gets no network and runs no code of the model directory. It works while this one does something else.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple, Protocol

from erniecore.api import ErnieError, Json
from erniecore.api.data import Message
from erniecore.api.model import Segment, Tokenizer
from erniecore_text import tokenizer_files
from erniecore_text.proof.trained import TrainedPrompt, encoded
from erniecore_text.sentinels import plain_messages

#: variable that names an interpreter with transformers
VARIABLE = "ERNIE_HF_PYTHON"
#: seconds for the process, and after which it ends itself
SECONDS = 120
_SCRIPT = """
import json, signal, sys
asked = json.load(sys.stdin)
signal.alarm(asked["seconds"])
import transformers
tokenizer = transformers.AutoTokenizer.from_pretrained(asked["directory"], local_files_only=True)
found = []
for prompt in asked["prompts"]:
    switch = {} if prompt["thinking"] is None else {
        "enable_thinking": prompt["thinking"], "options": {"thinking_mode": "open" if prompt["thinking"] else "close"}}
    try:
        found.append(list(tokenizer.apply_chat_template(
            prompt["messages"], tools=prompt["tools"] or None, add_generation_prompt=True, return_dict=False, **switch)))
    except Exception as error:
        found.append(f"{type(error).__name__}: {error}")
json.dump({"version": transformers.__version__, "prompts": found}, sys.stdout)
"""


class Rendered(NamedTuple):
    """Token ids of each prompt, or why there are none; ``name``: who rendered; ``note``: why it was not transformers."""

    name: str
    prompts: list[list[int] | str]
    note: str = ""


class Rendering(Protocol):
    """Prompts that are being rendered."""

    def result(self) -> Rendered:
        """Token ids of all prompts; waits until they are there."""

    def close(self) -> None:
        """End what is not finished."""


def rendering_of(directory: Path, tokenizer: Tokenizer, prompts: Sequence[TrainedPrompt]) -> Rendering:
    """Render ``prompts`` from the files in ``directory``, with transformers if an interpreter has it: this one, else
    ``$ERNIE_HF_PYTHON``. ``tokenizer``: of the directory, for the renderer that takes its place."""
    sandboxed = SandboxedRendering(directory, tokenizer, prompts)
    if importlib.util.find_spec("transformers") is not None:
        return TransformersProcess(sys.executable, directory, prompts, sandboxed)
    named = os.environ.get(VARIABLE, "")
    if named:
        return TransformersProcess(named, directory, prompts, sandboxed)
    sandboxed.reason = f"no transformers in this environment, and ${VARIABLE} names no interpreter that has it"
    return sandboxed


def asked_messages(prompt: TrainedPrompt) -> list[dict[str, Any]]:
    """The messages as templates get them. Images are the placeholders that training has for them: their number is a matter of
    the image and not of the template."""
    shown: list[Message] = []
    for index, message in enumerate(prompt.messages):
        if message.media:
            content = "".join(s.text for s in prompt.segments if s.message == index and not s.generated)
            message = Message(message.role, content, message.reasoning, message.tool_calls)
        shown.append(message)
    return plain_messages(shown)


class SandboxedRendering:
    """Our renderer with the template file of the directory: text first, and then its tokens, as servers do it.

    Attributes:
        reason: why it is not transformers.
    """

    def __init__(self, directory: Path, tokenizer: Tokenizer, prompts: Sequence[TrainedPrompt]) -> None:
        self._directory, self._tokenizer, self._prompts = directory, tokenizer, prompts
        self.reason = ""

    def result(self) -> Rendered:
        """See :class:`Rendering`. Raises ``ErnieError`` for a tokenizer or template that cannot be read."""
        from erniecore_text.template import JinjaChatTemplate

        template = tokenizer_files.read_template(self._directory, tokenizer_files.read(self._directory)[1])
        name = "the sandboxed renderer in place of transformers"
        if not isinstance(template, JinjaChatTemplate):
            return Rendered(name, ["the directory has no chat template"] * len(self._prompts), self.reason)
        found: list[list[int] | str] = []
        for prompt in self._prompts:
            text = ""
            try:
                messages = [_as_message(message) for message in asked_messages(prompt)]
                text = template.render(messages, prompt.tools, thinking=prompt.thinking)
                found.append(encoded(self._tokenizer, [Segment(text, True)]))
            except ErnieError as error:
                found.append(str(error))
        return Rendered(name, found, self.reason)

    def close(self) -> None:
        """There is no process that could run on."""


def _as_message(plain: Json) -> Message:
    from erniecore.api.data import ToolCall

    calls = [call["function"] for call in plain.get("tool_calls", ())]
    texts = [a if isinstance(a, str) else json.dumps(a, ensure_ascii=False) for a in (c["arguments"] for c in calls)]
    made = tuple(ToolCall(call["name"], text) for call, text in zip(calls, texts, strict=True))
    return Message(plain["role"], plain["content"], plain.get("reasoning_content", ""), made)


class TransformersProcess:
    """transformers in a process of its own; if it cannot render there at all, ``sandboxed`` does."""

    def __init__(
        self, interpreter: str, directory: Path, prompts: Sequence[TrainedPrompt], sandboxed: SandboxedRendering
    ) -> None:
        self._interpreter, self._sandboxed, self._began = interpreter, sandboxed, time.monotonic()
        asked = [{"messages": asked_messages(p), "tools": list(p.tools), "thinking": p.thinking} for p in prompts]
        with ExitStack() as files:  # closed by `close`
            self._input, self._output, self._errors = (files.enter_context(TemporaryFile()) for _ in range(3))
            self._files = files.pop_all()
        request = {"directory": str(directory.resolve()), "prompts": asked, "seconds": SECONDS}
        self._input.write(json.dumps(request).encode("utf-8", "surrogatepass"))
        self._input.seek(0)
        self._process: subprocess.Popen[bytes] | None = None
        self._fault = ""
        offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        try:
            self._process = subprocess.Popen(
                [interpreter, "-I", "-c", _SCRIPT],
                stdin=self._input, stdout=self._output, stderr=self._errors, env={**os.environ, **offline},
            )  # fmt: skip
        except OSError as error:
            self._fault = error.strerror or str(error)

    def result(self) -> Rendered:
        """What transformers has; what our renderer has where it cannot render there."""
        try:
            found = self._found()
        finally:
            self.close()
        if found is not None:
            return found
        self._sandboxed.reason = f"transformers cannot render there: {self._interpreter}: {self._fault}"
        return self._sandboxed.result()

    def _found(self) -> Rendered | None:
        if self._process is None:
            return None
        try:
            status = self._process.wait(max(0.0, SECONDS - (time.monotonic() - self._began)) + 5.0)
        except subprocess.TimeoutExpired:
            self._fault = f"no answer within {SECONDS} s"
            return None
        if status:
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
            self._fault = lines[-1] if lines else f"exit code {status}"
            return None
        self._output.seek(0)
        told = json.loads(self._output.read().decode())
        return Rendered(f"transformers {told['version']}", told["prompts"])

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._files.close()
