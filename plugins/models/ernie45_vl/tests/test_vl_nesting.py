"""config.json in the nested form says what the flat one says; the exporter that writes it keeps the rules of its kind."""

import json
from dataclasses import replace

import pytest
from erniecore_conformance import parametrize_checks
from erniecore_ernie45_vl.architecture import VlArchitecture
from erniecore_ernie45_vl.nesting import nested

CHANGES = {
    "as it is": {},
    "every other layer": {"moe_layer_interval": 2, "moe_layer_start_index": [0, 1]},
    "no time, no shared experts": {"freq_allocation": 0, "moe_num_shared_experts": 0, "tie_word_embeddings": False},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_both_forms_are_the_same_architecture(golden, changes):
    hub = json.loads((golden("vl_moe").directory / "config.hub_style.json").read_text()) | changes
    written = nested({**hub, "a_key_of_tomorrow": 3})
    assert written["text_config"]["a_key_of_tomorrow"] == 3
    assert not {"rope_3d", "moe_layer_start_index", "im_patch_id"} & (written.keys() | written["text_config"].keys())
    flat, again = VlArchitecture.parse(hub), VlArchitecture.parse(json.loads(json.dumps(written)))
    layers = range(flat.num_hidden_layers)
    assert [again.is_moe(i) for i in layers] == [flat.is_moe(i) for i in layers]
    placed = {"source": {}, "first_moe_layer": 0, "last_moe_layer": 0, "moe_interval": 1}
    assert replace(again, **placed) == replace(flat, **placed)
    assert nested(written) == written


def test_it_has_the_keys_that_transformers_wrote(golden):
    theirs = golden("vl_moe").config
    ours = nested(json.loads((golden("vl_moe").directory / "config.hub_style.json").read_text()))
    usual = {"initializer_range", "moe_norm_min", "output_router_logits", "router_aux_loss_coef", "rope_parameters"}
    for part in ("text_config", "vision_config"):
        assert ours[part].items() >= {key: value for key, value in theirs[part].items() if key not in usual}.items()
    assert ours["text_config"]["rope_parameters"] == theirs["text_config"]["rope_parameters"]
    assert all(ours[key] == value for key, value in theirs.items() if key.endswith("_token_id"))


@parametrize_checks("exporter", "hf-nested")
def test_conformance(check):
    check()
