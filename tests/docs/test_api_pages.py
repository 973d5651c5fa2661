"""Each page of the public interface opens with a plugin that is complete: it loads, is assembled, and its model learns."""

import importlib.util
from pathlib import Path

import pytest

from erniecore import sections
from erniecore.host import assemble
from erniecore.kinds import KINDS
from erniecore.plugin import Plugin

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))


def loaded(path):
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_a_complete_plugin(path):
    plugin = loaded(path).plugin
    kind = KINDS[plugin.kind]
    assert isinstance(plugin, Plugin)
    assert (kind.layer or kind.name) == path.stem
    assert all(type(capability) is kind.capabilities for capability in plugin.capabilities)
    assert not kind.config or issubclass(plugin.Config, sections.BASES[kind.config])
    assemble({plugin.kind: plugin})  # refuses hooks that are missing, unknown or called otherwise
    assert plugin.Config().model_dump() is not None


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_page_opens_with_its_example(path):
    page = (ROOT / "docs" / "reference" / "api" / f"{path.stem}.md").read_text()
    assert page.index("## The smallest complete plugin") < page.index("## Names")
    assert path.read_text().rstrip() in page


def test_kinds_that_are_written_by_others_have_an_example():
    written = {"adapter", "callback", "data", "device", "export", "method", "model", "parallel", "quantizer", "reward"}
    assert written <= {path.stem for path in EXAMPLES}


def test_model_method_and_quantizer_compute_together():
    import numpy as np
    import paddle

    parts = {path.stem: loaded(path) for path in EXAMPLES}
    architecture = parts["model"].plugin.ernie_read_architecture(parts["model"].plugin.Config())
    model = parts["model"].plugin.ernie_build_model(architecture)
    quantizer = parts["quantizer"].plugin
    model = quantizer.ernie_quantize_model(quantizer.Config(bits=4), model, "train")
    method = parts["method"].plugin
    objective = method.ernie_build_objective(method.Config(), model)

    class Arguments:
        def encode(self, text):
            return [ord(letter) for letter in text]

    encoder = method.ernie_build_encoder(Arguments(), 8)
    sample = encoder.encode(parts["method"].Document("abcabcabcabc"))[0]
    assert len(sample) == 8
    from erniecore.api.training import collate

    batch = collate([[sample]], pad_id=0)
    before = objective(batch, objective.normalizers(batch))
    before.loss.backward()
    with paddle.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.set_value(parameter - 0.5 * parameter.grad)
    after = objective(batch, objective.normalizers(batch))
    assert np.isfinite(float(before.loss))
    assert float(after.loss) < float(before.loss)
