"""The plugins keep the rules that their kinds keep."""

import pytest
from erniecore_conformance import parametrize_checks
from erniecore_model_init.new_model import init_model
from erniecore_reward.function import plugin
from erniecore_text.training import train

from erniecore.api.building import add_score_head
from erniecore.api.run import open_model
from erniecore.engine.models.model_files import save_model_directory
from erniecore.engine.models.score_head import completed


@parametrize_checks("method", "reward")
def test_conformance_of_reward(check):
    check()


@parametrize_checks("command", "score")
def test_conformance_of_score(check):
    check()


@pytest.fixture(scope="module", autouse=True)
def a_reward_model(tmp_path_factory):
    """The reward function's checks need the directory of a reward model: random weights will do."""
    home = tmp_path_factory.mktemp("reward")
    (home / "tok").mkdir()
    train(["the quick brown fox jumps over the lazy dog 0123456789"] * 20, 340).save(home / "tok")
    size = (
        "hidden_size=16,intermediate_size=32,num_hidden_layers=1,num_attention_heads=2,num_key_value_heads=1,head_dim=8"
    )
    init_model("ernie45", size, home / "tok", home / "base", seed_value=1)
    bundle = open_model(home / "base")
    add_score_head(bundle.model)
    save_model_directory(completed(bundle), home / "model")
    plugin.conformance_config = {"model": str(home / "model")}
    yield
    del plugin.conformance_config


@parametrize_checks("reward", "reward-model")
def test_conformance_of_reward_model(check):
    check()
