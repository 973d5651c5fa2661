"""Text to tokens and back: tokenizers, chat templates, and conversations as turns of tokens. Imports no paddle."""

from erniecore_text.detokenize import TextStream
from erniecore_text.fitting import (
    COMPLETION_CUT,
    LATER_TURNS,
    PROMPT_CUT,
    Prompts,
    beginning,
    cut_turn,
)
from erniecore_text.in_use import served_prompt
from erniecore_text.template import JinjaChatTemplate
from erniecore_text.tokenizer import SentencePieceTokenizer
from erniecore_text.turns import EncodedCompletion, TurnEncoder, shortened

__all__ = [
    "COMPLETION_CUT",
    "LATER_TURNS",
    "PROMPT_CUT",
    "EncodedCompletion",
    "JinjaChatTemplate",
    "Prompts",
    "SentencePieceTokenizer",
    "TextStream",
    "TurnEncoder",
    "beginning",
    "cut_turn",
    "served_prompt",
    "shortened",
]
