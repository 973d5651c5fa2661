"""Each page of the public interface opens with a plugin that is complete: it loads, is assembled, and does what it says."""

import importlib
import importlib.util
import json
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from erniecore import sections
from erniecore.host import assemble
from erniecore.kinds import KINDS
from erniecore.plugin import Plugin

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
EXAMPLES = sorted(importlib.import_module("api_pages").EXAMPLES.values(), key=lambda path: path.stem)
sys.path.remove(str(ROOT / "docs"))
#: a command is a function, not a plugin object
PLUGINS = [path for path in EXAMPLES if path.stem != "command"]


def loaded(path):
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def example(name):
    (path,) = (path for path in EXAMPLES if path.stem == name)
    return loaded(path)


@pytest.mark.parametrize("path", PLUGINS, ids=lambda path: path.stem)
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
    assert page.index("## Example") < page.index("## Names")
    assert path.read_text().rstrip() in page


def test_kinds_that_are_written_by_others_have_an_example():
    kinds = {kind.layer or kind.name for kind in KINDS.values()}
    layers = {path.stem for path in (ROOT / "erniecore" / "api").glob("*.py")}
    assert kinds & layers == {path.stem for path in EXAMPLES}


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


def test_optimizer_steps_against_the_gradient():
    import paddle

    from erniecore.api.optimizer import ParameterRole, ShardSpec, TrainedParameter

    plugin = example("optimizer").plugin
    weight = paddle.create_parameter([2], "float32", default_initializer=paddle.nn.initializer.Constant(1.0))
    given = TrainedParameter("w", weight, ParameterRole.OTHER, ShardSpec((2,)), factor=0.5)
    optimizer = plugin.ernie_build_optimizer([given])
    (weight * paddle.to_tensor([2.0, -4.0])).sum().backward()
    optimizer.step(0.1)
    assert weight.tolist() == pytest.approx([0.9, 1.2])
    assert optimizer.num_updates == 1


def test_importer_converts_a_file():
    plugin = example("importer").plugin
    content = {"toy_rate": 0.1, "toy_steps": 7, "toy_color": "blue"}
    assert plugin.ernie_match_settings(content) == 3
    found = plugin.ernie_import_settings({**content, "toy_step": 1})
    assert {key: setting.value for key, setting in found.settings.items()} == {
        "train.learning_rate": 0.1,
        "train.max_steps": 7,
    }
    assert list(found.unknown) == ["toy_step"]


def test_kernel_computes_what_the_reference_does():
    import numpy as np
    import paddle
    from erniecore_ops import functions

    kernel = example("kernels").plugin.load("hadamard", lambda: 1)["hadamard"]
    x = paddle.to_tensor(np.arange(24, dtype=np.float32).reshape(3, 8))
    assert kernel.supports(x, 4)
    assert not kernel.supports(x, 3)
    np.testing.assert_allclose(kernel.run(x, 4).numpy(), functions.hadamard(x, 4).numpy(), rtol=1e-6)


def test_corpus_has_every_token_once(tmp_path):
    import numpy as np

    from erniecore.api.corpus import SamplerSettings, Source

    plugin = example("corpus").plugin
    np.save(tmp_path / "ids.npy", np.arange(50))
    source = Source(path=str(tmp_path / "ids.npy"))
    assert plugin.ernie_match_corpus(source.path)
    train, evaluation = plugin.ernie_open_corpus([source], 0.2)
    samples, sampler = train.load(SamplerSettings(max_seq_len=16, batch_size=1))
    chosen = [index for sequence in sampler.sequences(0, 0, sampler.num_sequences(0)) for index in sequence]
    assert [t for index in chosen for t in samples[index].labels] == list(range(1, 40))
    assert evaluation.describe() == "10 token ids"


def test_command_prints_a_table(tmp_path):
    app = typer.Typer()
    app.command()(example("command").command)
    events = [
        {"event": "run_start"},
        {"event": "step", "step": 1, "loss": 2.5},
        {"event": "step", "step": 2, "loss": 2.0},
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    result = CliRunner().invoke(app, [str(tmp_path)])
    assert [line.split() for line in result.output.splitlines()] == [["step", "loss"], ["1", "2.5000"], ["2", "2.0000"]]
    assert json.loads(CliRunner().invoke(app, [str(tmp_path), "--json"]).output) == {"1": 2.5, "2": 2.0}
