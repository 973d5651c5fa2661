"""What is planned is what is built: the bytes of weights that the plan sums are those of the built model, for every model plugin
and every quantizer that a run trains on.
"""

from __future__ import annotations

import paddle  # noqa: TID253
import pytest
from erniecore_model_init.new_model import BASE_RECIPE, parse_size

from erniecore import registry
from erniecore.api import building
from erniecore.capabilities import QuantizerCapability
from erniecore.engine.models import quantized
from erniecore.engine.models.filling import fill
from erniecore.engine.models.random_weights import attach_random
from erniecore.engine.preparation.model import packed_bytes
from erniecore.engine.preparation.plan import count_parameters
from erniecore.host import assemble

#: quantizers that search for long: they pack one layer
ONE_LAYER = {name: {"layers": ["model.layers.0.self_attn.k_proj"]} for name in ("ccq-2.06", "ccq-2.5")}


def models():
    """Names of model plugins that say how large their smallest model is."""
    plugins = {entry.name: building.model_plugin(entry.name) for entry in registry.entries("model")}
    return sorted(name for name, plugin in plugins.items() if BASE_RECIPE in building.recipes(plugin))


def quantizers():
    """Names of quantizers whose weights are packed before a run trains."""
    found = {entry.name: registry.load("quantizer", entry.name) for entry in registry.entries("quantizer")}
    frozen = {QuantizerCapability.TRAIN, QuantizerCapability.EMPTY}
    return sorted(name for name, plugin in found.items() if frozen <= plugin.capabilities)


def built(name):
    """An empty model of the plugin's smallest recipe, with what the state adapter says of it."""
    plugin = building.model_plugin(name)
    architecture, _, template = parse_size(plugin, BASE_RECIPE)
    bundle, _ = building.build_bundle(plugin, {"architecture": architecture, "template": template}, None, "float32")
    attach_random(bundle.model, bundle.adapter, 0)
    return bundle


def bytes_of(model):
    stored = {id(t): t for t in [*model.parameters(), *(dict(model.state_dict()).values())]}
    return sum(int(t.size) * t.element_size() for t in stored.values())


def planned(bundle, plugin, config):
    maps = bundle.adapter.maps("pt")
    host = assemble({"quantizer": plugin} if plugin else {})
    packed = packed_bytes(host, config, maps)
    counted = count_parameters(maps, None, packed)
    return 4 * (counted.total - counted.packed) + counted.packed_bytes


@pytest.mark.parametrize("name", models())
@pytest.mark.parametrize("quantizer", ["", *quantizers()])
def test_planned_bytes_are_those_of_the_model(name, quantizer):
    bundle = built(name)
    plugin = registry.load("quantizer", quantizer) if quantizer else None
    config = plugin.Config(**ONE_LAYER.get(quantizer, {})) if plugin else None
    expected = planned(bundle, plugin, config)
    model = bundle.model
    with paddle.no_grad():
        if plugin is not None:
            model = quantized.apply(plugin, config, model, "train")
        fill(model)
    assert bytes_of(model) == expected
    assert (expected < planned(bundle, None, None)) == bool(quantizer)


@pytest.mark.parametrize("head", ["int8", "bf16"])
def test_planned_bytes_of_a_packed_head_are_those_of_the_model(head):
    bundle, plugin = built("ernie45"), registry.load("quantizer", "wint8")
    config = plugin.Config(head=head)
    expected = planned(bundle, plugin, config)
    with paddle.no_grad():
        model = quantized.apply(plugin, config, bundle.model, "train")
        fill(model)
    assert bytes_of(model) == expected
    assert expected < planned(bundle, plugin, plugin.Config())
