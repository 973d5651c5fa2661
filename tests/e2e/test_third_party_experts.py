"""A mixture of experts that knows nothing of our plugins, written with ``erniecore.api`` alone, gets expert parallelism,
balance updates over all ranks and quantized experts: two real processes."""

import ast
import json
import shutil
from pathlib import Path

import pytest
from erniecore_checkpoint.reader import load_checkpoint

SOURCE = Path(__file__).parents[1] / "fixtures" / "acme_moe" / "acme_moe"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A directory for PYTHONPATH where the distribution ``acme-moe`` is installed."""
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(SOURCE, site / "acme_moe")
    info = site / "acme_moe-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: acme-moe\nVersion: 1.0\nRequires-Dist: erniecore<0.2\n"
    )
    (info / "entry_points.txt").write_text("[erniecore.models]\nacme-moe = acme_moe.plugin:plugin\n")
    return site


def test_it_imports_the_public_interface_alone():
    for file in SOURCE.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ernie"):
                public = (
                    node.module.startswith("erniecore.api") or node.module == "erniecore_text"
                )  # a library to depend on
                assert public, (file.name, node.module)


def trained(installed, run_ernie, home, out, *words):
    settings = {
        "model.name": "acme-moe",
        "model.tokenizer": home / "tok",
        "method.name": "sft",
        "data.train": home / "train.jsonl",
        "data.max_seq_len": 32,
        "train.batch_size": 2,
        "train.max_steps": 4,
        "train.learning_rate": 3e-3,
        "run.out": out,
        "log.every": 1,
    }
    arguments = [f"{key}={value}" for key, value in settings.items()]
    done = run_ernie("run", *arguments, *words, env={"PYTHONPATH": str(installed)})
    assert done.code == 0, done.err
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    return [event["loss"] for event in events if event["event"] == "step"]


def weights_of(out):
    return load_checkpoint(out / "ckpt" / "step-00000004").tensors["model"]


SPREAD = ("parallel.name=hybrid", "parallel.expert=2", "parallel.data=2")


def test_experts_on_two_ranks_learn_as_on_one(installed, run_ernie, home, tmp_path):
    one = trained(installed, run_ernie, home, tmp_path / "one", "train.accumulation=2")
    two = trained(installed, run_ernie, home, tmp_path / "two", *SPREAD)
    assert two == pytest.approx(one, abs=2e-5)
    alone, spread = weights_of(tmp_path / "one"), weights_of(tmp_path / "two")
    biases = [name for name in alone if name.endswith("mlp.bias")]
    assert len(biases) == 2
    for name in biases:  # loads were counted over the tokens of both ranks
        assert abs(alone[name]).max() > 0
        assert alone[name].tolist() == pytest.approx(spread[name].tolist(), abs=1e-7)
    for name in (name for name in alone if ".experts." in name):
        assert abs(alone[name] - spread[name]).max() < 2e-4


def test_quantized_experts_on_two_ranks_train_an_adapter(installed, run_ernie, home, tmp_path):
    words = ("quantizer.name=wint4-8", "adapter.name=lora", "adapter.rank=4")
    one = trained(installed, run_ernie, home, tmp_path / "one", *words, "train.accumulation=2")
    two = trained(installed, run_ernie, home, tmp_path / "two", *words, *SPREAD)
    assert two == pytest.approx(one, abs=2e-5)
    assert min(two[1:]) < two[0]
