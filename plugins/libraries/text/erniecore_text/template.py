"""Chat templates: one jinja source renders training samples, prompts and exports.

``render`` gives the text; ``segments`` the same text cut into what the template wrote and what users wrote. The cut
is found by rendering once more with unguessable sentinels instead of the users' texts, and it is checked: the spans
joined must equal the real rendering, else the template changes texts and is refused. Where ``verbatim.py`` proves that
a template cannot, a conversation is rendered once per shape. Not a place for tokenizers.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

from erniecore.api import DataError, EnvironmentFault, ErnieError, Json, RowError, shorten
from erniecore.api.data import Message, codes
from erniecore.api.model import Segment
from erniecore_text.render_process import RemoteRendering
from erniecore_text.render_server import MEMORY, SECONDS
from erniecore_text.rendering import LIMIT, REFUSED, RESOURCES, SYNTAX, RenderFault, Rendering
from erniecore_text.sentinels import RenderedSpan, Sentinels, plain_messages
from erniecore_text.verbatim import (
    SILENT,
    Ask,
    RenderPlan,
    Shape,
    filled,
    plan_of,
    probe,
    shape_of,
    text_of,
)

#: renderings with sentinels that are remembered
MAX_SHAPES = 4096
#: characters of a conversation that is not rendered anew; beyond, the limits on size decide
_MAX_PLANNED = 1 << 20
_PROBE = (Message("user", "a"),)


_FIX = "repair the template (chat_template.jinja), or choose another with model.template"


class JinjaChatTemplate:
    """See ``erniecore.api.ChatTemplate``. Immutable and picklable.

    Templates see ``messages`` (``role``, ``content``, and where not empty ``reasoning_content`` and ``tool_calls`` as
    ``{"type": "function", "function": {"name", "arguments"}}``), ``tools`` or none, ``add_generation_prompt``,
    ``variables`` (such as ``bos_token``) and, where ``thinking`` is not ``None``, what published templates call it:
    ``enable_thinking`` and ``options.thinking_mode`` (``open`` or ``close``).

    Args:
        source: the jinja text.
        turn_end: token that ends an assistant turn on the input side.
        stop: token that the model learns instead of it.
        file: where the source was read, for errors.
        trusted: the source is one of our own, byte for byte, and is rendered in this process. All others are rendered in a
            process of their own, within ``SECONDS`` of processor time and ``MEMORY`` bytes.

    Raises:
        DataError: the source does not compile. EnvironmentFault: not within the limits of time and memory.
    """

    def __init__(
        self,
        source: str,
        turn_end: str = "<|end_of_sentence|>",
        stop: str = "</s>",
        variables: Json | None = None,
        file: str = "",
        trusted: bool = False,
    ) -> None:
        self.source, self.turn_end, self.stop = source, turn_end, stop
        self.variables, self.file, self.trusted = dict(variables or {}), file, trusted
        self._sentinels = Sentinels()
        try:
            kind = Rendering if trusted else RemoteRendering
            self._rendering = kind(source, self._sentinels.prefix, self.variables)
        except RenderFault as fault:
            raise self._error(fault) from fault
        self._verbatim = self._rendering.verbatim
        self._shapes: dict[str, str] = {}
        self._plans: dict[Shape, RenderPlan] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.source, self.turn_end, self.stop, self.variables, self.file, self.trusted)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Json] = (),
        *,
        add_generation_prompt: bool = True,
        thinking: bool | None = None,
    ) -> str:
        """The prompt as one string.

        Raises:
            RowError: the template refuses the conversation (its ``raise_exception``).
            DataError: it does what none may, such as a recursion without end. EnvironmentFault: it takes too long, or too
                much memory.
        """
        ask = Ask(add_generation_prompt, thinking)
        plan = self._plan(messages, tools, ask)
        if plan is not None:
            return text_of(plan, messages)
        return self._run(plain_messages(messages), list(tools) or None, ask)

    def shared_shape(self, messages: Sequence[Message], tools: Sequence[Json], ask: Ask = SILENT) -> Shape | None:
        """What all conversations have in common that are rendered as this one but for their texts; ``None``: nobody knows."""
        if (
            not self._rendering.verbatim
            or tools
            or sum([len(m.content) + len(m.reasoning) for m in messages]) > _MAX_PLANNED
        ):
            return None
        return shape_of(messages, ask)

    def _plan(self, messages: Sequence[Message], tools: Sequence[Json], ask: Ask) -> RenderPlan | None:
        """How conversations of this shape are rendered, where that does not depend on their texts."""
        shape = self.shared_shape(messages, tools, ask)
        if shape is None:
            return None
        plan = self._plans.get(shape)
        if plan is None:
            if len(self._plans) >= MAX_SHAPES:
                self._plans.clear()
            like = probe(shape, secrets.token_hex(12))
            plan = self._plans[shape] = plan_of(self._segments(like, (), ask), like)
        return plan

    def expect(self, messages: Sequence[Message], tools: Sequence[Json], ask: Ask) -> None:
        """This conversation is going to be rendered. A template of others may be rendered meanwhile, in its process."""
        if not isinstance(self._rendering, RemoteRendering) or any(m.media for m in messages):
            return
        if self.shared_shape(messages, tools, ask) is None:
            self._rendering.expect(plain_messages(messages), list(tools) or None, ask.variables())

    def _run(self, messages: list[dict[str, Any]], tools: Any, ask: Ask) -> str:
        try:
            return self._rendering.text(messages, tools, ask.variables())
        except RenderFault as fault:
            raise self._error(fault) from fault

    def _error(self, fault: RenderFault) -> ErnieError:
        """A fault in the words of the user: of the template, or of the row that it was given."""
        place = "chat template" + (f", line {fault.line}" if fault.line else "")
        where = f"{self.file}: {place}" if self.file else place
        if fault.kind == SYNTAX:
            return DataError(
                "the chat template is not valid jinja",
                code=codes.TEMPLATE_BROKEN,
                where=where,
                found=shorten(fault.found),
                fix=_FIX,
            )
        if fault.kind == RESOURCES:  # no error of the row: the next one would take as long
            return EnvironmentFault(
                "the chat template takes too long, or too much memory",
                code="ERN-E030",
                where=where,
                found=fault.found,
                expected=f"at most {SECONDS:g} s and {MEMORY >> 20} MiB for a rendering",
                fix=_FIX,
            )
        if fault.kind == LIMIT:
            return DataError(
                "the chat template goes beyond its limits",
                code=codes.TEMPLATE_BROKEN,
                where=where,
                found=fault.found,
                fix=_FIX,
            )
        if fault.kind == REFUSED:
            return RowError(f"the chat template refuses it: {fault.found}", code=codes.TEMPLATE_REFUSED, where="$")
        return RowError(
            "the chat template fails on this conversation",
            code=codes.TEMPLATE_REFUSED,
            where="$",
            found=f"{where}: {fault.found}",
        )

    def _render_with_sentinels(self, messages: list[dict[str, Any]], tools: Any, ask: Ask) -> str:
        """``_run``, remembered: with sentinels for texts, conversations of one shape are all alike."""
        key = repr((messages, tools, ask))
        if key not in self._shapes:
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            self._shapes[key] = self._run(messages, tools, ask)
        return self._shapes[key]

    def segments(
        self,
        messages: Sequence[Message],
        tools: Sequence[Json] = (),
        *,
        add_generation_prompt: bool = False,
        thinking: bool | None = None,
    ) -> list[Segment]:
        """The text in segments; adjacent ones of the same nature are joined.

        An assistant message is ``generated`` from behind its generation prompt to its end token. Where the message
        does not start as the generation prompt does, from behind the part that they share.

        Raises:
            RowError: as ``render``, and for a template that changes the users' texts.
        """
        ask = Ask(add_generation_prompt, thinking)
        plan = self._plan(messages, tools, ask)
        return self._segments(messages, tools, ask) if plan is None else filled(plan, messages)

    def _segments(self, messages: Sequence[Message], tools: Sequence[Json], ask: Ask) -> list[Segment]:
        real = self._run(plain_messages(messages), list(tools) or None, ask)
        for keep_edges in (False, True):
            with_sentinels = _WithSentinels(self, messages, tools, keep_edges)
            rendered = self._sentinels.split(with_sentinels.text(len(messages), ask), with_sentinels.texts)
            if "".join(p.text for p in rendered) == real:
                return _segments(rendered, with_sentinels.generated(ask))
        raise RowError(
            "the chat template changes the text of a message",
            code=codes.TEMPLATE_CHANGES_TEXT,
            where="$",
            expected="a template that writes each text unchanged",
            fix="remove filters and conditions on message contents from the template, or the tags in the text",
        )

    @cached_property
    def generation_prompts(self) -> tuple[str, ...]:
        """What ``add_generation_prompt`` appends to a prompt that ends with a user's message: as the template has it, and
        with and without reasoning."""
        without = self.render(_PROBE, add_generation_prompt=False)
        texts = [self.render(_PROBE, add_generation_prompt=True, thinking=t) for t in (None, True, False)]
        return tuple(text[len(without) :] if text.startswith(without) else "" for text in texts)


class _WithSentinels:
    """Renderings of one conversation with sentinels for texts; each of them is made once."""

    def __init__(
        self, template: JinjaChatTemplate, messages: Sequence[Message], tools: Sequence[Json], edges: bool
    ) -> None:
        self._template, self._roles = template, [m.role for m in messages]
        sentinels = template._sentinels
        self.texts: list[tuple[str, int]] = []
        self._messages = sentinels.messages(messages, self.texts, keep_edges=edges)
        self._tools = sentinels.tree(list(tools), -1, self.texts) or None
        self._known: dict[tuple[int, Ask], str] = {}

    def text(self, count: int, ask: Ask = SILENT) -> str:
        """The first ``count`` messages."""
        key = count, ask
        if key not in self._known:
            self._known[key] = self._template._render_with_sentinels(self._messages[:count], self._tools, ask)
        return self._known[key]

    def generated(self, ask: Ask) -> list[tuple[int, int, int]]:
        """(start, end, message) of what the model writes, in the text with sentinels."""
        spans, full = [], self.text(len(self._messages), ask)
        for i, role in enumerate(self._roles):
            if role != "assistant":
                continue
            until, before = self.text(i + 1), self.text(i)
            if not (full.startswith(until) and until.startswith(before)):
                continue
            start = len(before) + _begins(self._template.generation_prompts, until[len(before) :])
            end = until.rfind(self._template.turn_end, start)
            if end >= 0:
                spans.append((start, end + len(self._template.turn_end), i))
        return spans


def _begins(prompts: Sequence[str], block: str) -> int:
    """Where a message begins behind the first generation prompt that it starts with; else behind what it shares with the
    usual one. Never cuts a word or a tag in two."""
    prompt = next((p for p in prompts if block.startswith(p)), prompts[0])
    if block.startswith(prompt):
        return len(prompt)
    length = next(n for n, (a, b) in enumerate(zip(prompt + "\0", block + "\1", strict=False)) if a != b)
    while length and not (block[length - 1].isspace() or block[length - 1] == ">"):
        length -= 1
    return length


def _segments(rendered: Sequence[RenderedSpan], generated: Sequence[tuple[int, int, int]]) -> list[Segment]:
    """``rendered`` cut at the ends of ``generated`` (in coordinates of the text with sentinels). Users' texts are never cut."""
    out: list[Segment] = []
    cuts = [edge for start, end, _ in generated for edge in (start, end)]
    for span in rendered:
        inner = [c for c in cuts if span.start < c < span.end] if span.trusted else []
        edges = [span.start, *inner, span.end]
        for start, end in pairwise(edges):
            owner = next((m for s, e, m in generated if s <= start and end <= e), -1)
            text = span.text if not inner else span.text[start - span.start : end - span.start]
            message = span.message if span.message >= 0 else owner
            out.append(Segment(text, span.trusted, message, generated=owner >= 0))
    return out
