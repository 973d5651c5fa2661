"""Fixtures: a small tokenizer, with and without a made-up chat template."""

import pytest
from erniecore_text import JinjaChatTemplate, SentencePieceTokenizer
from erniecore_text.training import train

PLAIN = (
    "{{ '<|begin_of_sentence|>' }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ m.content + '\n' }}"
    "{% elif m.role == 'user' %}{{ 'User: ' + m.content + '\n' }}"
    "{% else %}{{ 'Assistant: ' + m.content + '<|end_of_sentence|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}"
)
WORDS = "the quick brown fox jumps over a lazy dog while User: and Assistant: talk about 12 good things\n"


@pytest.fixture(scope="session")
def trained():
    """A tokenizer without template."""
    texts = [WORDS * 3, *(f"{a} {b}. " for a in WORDS.split() for b in WORDS.split()), "你好，世界。天气很好"]
    return train(texts, 420)


@pytest.fixture(scope="session")
def plain():
    return JinjaChatTemplate(PLAIN)


@pytest.fixture(scope="session")
def tokenizer(trained, plain):
    """With the template of text models."""
    return SentencePieceTokenizer(trained.model, trained.files, plain)
