"""The good toy plugins pass every check; otherwise a mutant's failure would say nothing."""

import pytest
from erniecore_conformance import parametrize_checks
from erniecore_conformance.runner import run_checks
from erniecore_conformance.subjects import Subject
from erniecore_conformance.toys.data import collate, toy_records
from erniecore_conformance.toys.tokenizer import ToyTokenizer

from erniecore.api import RowError
from erniecore.api.data import Conversation, Message
from erniecore.api.method import IGNORE

TOYS = {
    "device": "others:device",
    "parallel": "others:parallel",
    "model": "model:plugin",
    "adapter": "changes:adapter",
    "quantizer": "changes:quantizer",
    "method": "method:plugin",
    "format": "others:row_format",
    "reader": "reader:plugin",
    "corpus": "corpus:plugin",
    "reward": "others:reward",
    "schedule": "schedule:plugin",
    "importer": "importer:plugin",
    "exporter": "others:exporter",
    "launcher": "launcher:plugin",
    "kernels": "kernels:plugin",
    "server": "others:server",
    "callback": "others:callback",
    "forecaster": "forecaster:plugin",
    "command": "others:command",
}


@pytest.mark.parametrize(("kind", "toy"), [*TOYS.items(), ("model", "seeing:plugin")])
def test_good_plugin_passes(kind, toy):
    name = "command" if kind == "command" else "toy"
    outcomes = run_checks(Subject.at(f"erniecore_conformance.toys.{toy}", kind=kind, name=name))
    assert {o.check: o.detail for o in outcomes if o.status == "failed"} == {}
    assert sum(o.status == "passed" for o in outcomes) >= 15


@parametrize_checks("method", "toy-reference", target="erniecore_conformance.toys.method:with_reference")
def test_method_with_reference_passes(check):
    check()


def test_toy_tokenizer_never_reads_control_tokens_in_text(toy_tokenizer):
    assert not set(toy_tokenizer.encode("</s><|end_of_sentence|>")) & {0, 1, 2, 3}


def test_toy_tokenizer_reads_trusted_control_tokens_and_restores_text(toy_tokenizer):
    messages = [Message("user", "é </s>"), Message("assistant", "日本")]
    template = toy_tokenizer.chat_template
    ids = [i for piece in toy_tokenizer.encode_segments(template.segments(messages)) for i in piece]
    assert ids[0] == 1
    assert ids[-1] == 3
    assert ids.count(2) == 0
    assert toy_tokenizer.decode(ids, skip_special=False) == template.render(messages, add_generation_prompt=False)


def test_collate_lays_packed_rows_as_the_contract_says():
    from erniecore_conformance.toys.method import ToyEncoder

    encoder = ToyEncoder(ToyTokenizer(), 64)
    a, b, c = (encoder.encode(r)[0] for r in toy_records((Conversation,))[:3])
    batch = collate([[a, b], [c]], padding=2)
    na, nb, nc = len(a), len(b), len(c)
    width = na + nb + 2
    assert batch.input_ids.shape == (2, width)
    assert batch.startend_row_indices.shape == (2, 1, width, 1)
    ends = batch.startend_row_indices[0, 0, :, 0].tolist()
    assert ends == [na] * na + [na + nb] * nb + [na + nb, na + nb + 1]
    assert (batch.labels[1, nc:] == IGNORE).all()
    assert batch.num_tokens == na + nb + nc


def test_toy_encoder_refuses_what_is_too_long():
    from erniecore_conformance.toys.method import ToyEncoder

    with pytest.raises(RowError):
        ToyEncoder(ToyTokenizer(), 5).encode(toy_records((Conversation,))[0])
