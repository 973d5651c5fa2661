"""`ernie config init`: a file with every setting says what its absence would say, and explains each key."""

import re
from pathlib import Path

import pytest

from erniecore.api.settings import load, section_keys, values
from erniecore.cli.app import main

EXAMPLES = Path(__file__).parents[4] / "examples"
CHOICES = {
    "sft": "model=ernie45 method=sft",
    "dpo": "model=ernie45 method=dpo adapter=lora optimizer=adamw8bit",
    "pt": "model=ernie45-moe method=pt quantizer=fp8-qat",
    "grpo": "model=ernie45 method=grpo rewards=[exact-match] callbacks=[console,tensorboard] parallel=hybrid",
}


@pytest.mark.parametrize("name", sorted(CHOICES))
def test_every_setting_with_its_default(name, tmp_path, capsys):
    overrides = CHOICES[name].split()
    assert main(["config", "init", *overrides, "--out", str(tmp_path / "all.yaml")]) == 0
    text = (tmp_path / "all.yaml").read_text()
    plain, again = load(None, overrides, {}, {}), load(tmp_path / "all.yaml", (), {}, {})
    assert values(again.settings) == values(plain.settings)
    method = plain.plugins["method"]
    for key in section_keys("", "method", method.Config):
        assert re.search(rf"^  {key.key.partition('.')[2]}: ", text, re.MULTILINE)
        assert " ".join(key.description.split()[:5]) in " ".join(text.replace("\n  #", "").split())
    assert max(map(len, text.splitlines())) <= 130
    assert "written: " in capsys.readouterr().err
    assert main(["config", "init", *overrides, "--out", str(tmp_path / "all.yaml")]) == 2


@pytest.mark.parametrize(
    ("file", "overrides"),
    [("sft-all", "model=ernie45 method=sft"), ("dpo-all", "model=ernie45 method=dpo adapter=lora")],
)
def test_the_examples_are_the_defaults(file, overrides):
    found, plain = load(EXAMPLES / f"{file}.yaml", (), {}, {}), load(None, overrides.split(), {}, {})
    assert values(found.settings) == values(plain.settings)


def test_a_run_needs_a_method(capsys):
    assert main(["config", "init", "model=ernie45"]) == 2
    assert "method" in capsys.readouterr().err
