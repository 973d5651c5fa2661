"""The plugins keep the rules that their kinds keep."""

import pytest
from erniecore_adversarial.reward import plugin
from erniecore_conformance import parametrize_checks
from erniecore_model_init.new_model import init_model
from erniecore_text.training import train

from erniecore.api.building import add_score_head
from erniecore.api.model_files import save_model_directory, with_score_head
from erniecore.api.run import open_model


@parametrize_checks("method", "adversarial")
def test_conformance_of_adversarial(check):
    check()


@parametrize_checks("format", "adversarial")
def test_conformance_of_the_format(check):
    check()


@parametrize_checks("command", "rerank")
def test_conformance_of_rerank(check):
    check()


@parametrize_checks("command", "generate-rows")
def test_conformance_of_generate_rows(check):
    check()


@pytest.fixture(scope="module", autouse=True)
def a_judge(tmp_path_factory):
    """The reward function's checks need the directory of a judge: random weights will do."""
    home = tmp_path_factory.mktemp("judge")
    (home / "tok").mkdir()
    train(["the quick brown fox jumps over the lazy dog 0123456789"] * 20, 340).save(home / "tok")
    size = (
        "hidden_size=16,intermediate_size=32,num_hidden_layers=1,num_attention_heads=2,num_key_value_heads=1,head_dim=8"
    )
    init_model("ernie45", size, home / "tok", home / "base", seed_value=1)
    bundle = open_model(home / "base")
    add_score_head(bundle.model)
    save_model_directory(with_score_head(bundle), home / "model")
    plugin.conformance_config = {"model": str(home / "model")}
    yield
    del plugin.conformance_config


@parametrize_checks("reward", "natural-text")
def test_conformance_of_natural_text(check):
    check()
