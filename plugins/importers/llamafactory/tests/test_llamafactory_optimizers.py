"""Which optimizer LLaMA-Factory's arguments mean, and what is said where there is none such."""

import pytest
from erniecore_llamafactory.convert import convert
from erniecore_llamafactory.draft import Surroundings


def made(**given):
    return convert({"do_train": True, **given}, Surroundings("accelerator", frozenset({"float32", "bfloat16"})))


def settings(**given):
    outcome = made(**given)
    assert not outcome.problems
    return {key: setting.value for key, setting in outcome.settings.items()}


def notes(key, **given):
    return " ".join(f"[{n.kind}] {n.text}" for n in made(**given).notes if key in n.keys)


def problem(key, **given):
    return made(**given).problems[key]


def test_optimizers_that_there_are_not_are_named():
    assert "not lion_8bit" in notes("optim", optim="lion_8bit")
    assert "[differs] GaLore there is not here" in notes("use_galore", use_galore=True)
    assert "use_apollo" in notes("optim", optim="galore_adamw")
    assert notes("use_galore", use_galore=False) == ""


@pytest.mark.parametrize("name", ["adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit", "adamw_torch_8bit"])
def test_moments_of_8_bits(name):
    assert settings(optim=name, adam_beta2=0.99)["optimizer.name"] == "adamw8bit"
    assert bool(notes("optim", optim=name)) == name.startswith("paged")


def test_apollo_is_apollo():
    found = settings(use_apollo=True, apollo_rank=64, apollo_scale=4, adam_beta1=0.95)
    assert {key: value for key, value in found.items() if key.startswith("optimizer.")} == {
        "optimizer.name": "apollo", "optimizer.rank": 64, "optimizer.period": 200, "optimizer.factor": 2.0,
        "optimizer.scaling": "channel", "optimizer.beta1": 0.95,
    }  # fmt: skip
    plain = {
        "use_apollo": True,
        "apollo_target": "all",
        "apollo_proj": "random",
        "apollo_scale_front": True,
        "optim": "adamw_torch",
    }
    assert not any(notes(key, **plain) for key in plain)
    assert made(**plain).dropped["optim"] == "`use_apollo` decides"
    for key, value in {
        "apollo_target": "q_proj",
        "apollo_proj": "svd",
        "apollo_proj_type": "right",
        "apollo_layerwise": True,
    }.items():
        assert "[differs]" in notes(key, use_apollo=True, **{key: value})
    assert problem("apollo_scale_type", use_apollo=True, apollo_scale_type="rows") == "must be one of channel, tensor"
    assert problem("apollo_scale", use_apollo=True, apollo_scale=0) == "must be above 0"
    assert made(apollo_rank=8).dropped["apollo_rank"] == "only of `use_apollo`"


def test_apollo_of_transformers():
    mini = "rank=1, scale=128.0,scale_type=tensor,proj=random"
    found = settings(optim="apollo_adamw", optim_args=mini, optim_target_modules="all-linear")
    assert found["optimizer.factor"] == pytest.approx(128**0.5)
    assert (found["optimizer.rank"], found["optimizer.scaling"], found["optimizer.period"]) == (1, "tensor", 200)
    found = settings(optim="apollo_adamw")
    assert (found["optimizer.rank"], found["optimizer.scaling"], found["optimizer.factor"]) == (128, "channel", 1.0)
    assert "[differs]" in notes("optim_args", optim="apollo_adamw", optim_args="proj=svd")
    assert "no such setting of APOLLO: rnk" in notes("optim_args", optim="apollo_adamw", optim_args="rnk=2")
    assert "rank must be a number" in problem("optim_args", optim="apollo_adamw", optim_args="rank=many")


def test_muon_is_muon():
    found = settings(use_muon=True, optim="adamw_torch", learning_rate=1e-5)
    assert found["optimizer.name"] == "muon"
    assert found["train.learning_rate"] == 1e-5
    assert made(use_muon=True, optim="adamw_torch").dropped["optim"] == "`use_muon` decides"
    assert "optimizer.name" not in settings(use_muon=False)
