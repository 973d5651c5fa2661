"""The prompt that the server would give its model for a conversation of a training file: the code that answers
``/v1/chat/completions``, without a server. So that prompts can be compared with those of training.
"""

from __future__ import annotations

from collections.abc import Sequence

from erniecore_text.proof.requests import as_request, media_roots
from pydantic import ValidationError

from erniecore.api import Json, UsageError
from erniecore.api.data import Message
from erniecore.api.model import Tokenizer
from erniecore_openai.errors import ApiError
from erniecore_openai.rendering import conversation_prompt
from erniecore_openai.schemas.chat import Conversation


def row_prompt(
    tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[Json], thinking: bool | None
) -> tuple[int, ...]:
    """Token ids. Raises ``UsageError`` for a conversation that no request has, or that the server refuses."""
    try:
        request = Conversation.model_validate(as_request(messages, tools, thinking))
        return conversation_prompt(tokenizer, request, roots=media_roots(messages)).ids
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError("no request can have this conversation", where=place, found=first["msg"]) from error
    except ApiError as error:
        raise UsageError("the server refuses the conversation", found=str(error.detail)) from error
