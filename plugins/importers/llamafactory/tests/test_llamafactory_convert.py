"""What LLaMA-Factory's arguments mean together."""

import json
from pathlib import Path

import pytest
from erniecore_llamafactory.convert import convert, purpose_of
from erniecore_llamafactory.convert_model import published
from erniecore_llamafactory.convert_training import zero_of
from erniecore_llamafactory.datasets import DatasetInfo
from erniecore_llamafactory.draft import Surroundings

from erniecore.config import yaml

FIXTURES = Path(__file__).with_name("fixtures")
INFO = DatasetInfo("data", json.loads((FIXTURES / "dataset_info.json").read_text()))
ACCELERATOR = Surroundings("accelerator", frozenset({"float32", "bfloat16", "float16"}), info=INFO)


def made(around=ACCELERATOR, **given):
    return convert({"do_train": True, **given}, around)


def settings(around=ACCELERATOR, **given):
    """The settings of a file that trains."""
    outcome = made(around, **given)
    assert not outcome.problems
    return {key: setting.value for key, setting in outcome.settings.items()}


def notes(key, **given):
    return " ".join(f"[{n.kind}] {n.text}" for n in made(**given).notes if key in n.keys)


def problem(key, **given):
    return made(**given).problems[key]


# ---- model


@pytest.mark.parametrize(
    ("name", "plugin"),
    [
        ("baidu/ERNIE-4.5-0.3B-PT", "ernie45"),
        ("baidu/ERNIE-4.5-21B-A3B-Thinking", "ernie45-moe"),
        ("ERNIE-4.5-VL-28B-A3B-PT/", "ernie45-vl"),
        ("Qwen/Qwen3-4B-Instruct-2507", ""),
    ],
)
def test_published_names_choose_the_plugin(name, plugin):
    assert published(name) == plugin
    assert settings(model_name_or_path=name).get("model.name", "") == plugin


def test_another_family_is_read_and_named():
    outcome = made(model_name_or_path="Qwen/Qwen3-4B")
    assert outcome.settings["model.path"].value == "Qwen/Qwen3-4B"
    assert "Qwen/Qwen3-4B is no directory here" in outcome.advice["model.path"]
    assert "no published ERNIE model" in notes("model_name_or_path", model_name_or_path="Qwen/Qwen3-4B")


def test_a_directory_speaks_for_itself():
    found = settings(Surroundings(config={"model_type": "ernie4_5"}), model_name_or_path="mine")
    assert found["model.path"] == "mine"
    assert "model.name" not in found


def test_new_weights():
    config = {"model_type": "ernie4_5", "hidden_size": 8}
    found = settings(Surroundings(config=config), model_name_or_path="mine", train_from_scratch=True)
    assert (found["model.architecture"], found["model.tokenizer"]) == (config, "mine")
    assert "config.json" in problem("model_name_or_path", model_name_or_path="x", train_from_scratch=True)


# ---- adapter


def test_lora_is_the_default_with_twice_the_rank():
    found = settings(lora_rank=4)
    assert (found["adapter.name"], found["adapter.rank"], found["adapter.alpha"]) == ("lora", 4, 8.0)
    assert "LoRA, the default" in notes("finetuning_type", lora_rank=4)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"use_rslora": True}, "rslora"),
        ({"use_dora": True}, "dora"),
        ({"loraplus_lr_ratio": 16.0}, "lora-plus"),
        ({"use_rslora": True, "loraplus_lr_ratio": 4}, "rslora"),
    ],
)
def test_variants_of_lora(given, name):
    found = settings(finetuning_type="lora", **given)
    assert found["adapter.name"] == name
    assert found.get("adapter.ratio", 1) == given.get("loraplus_lr_ratio", 1)


@pytest.mark.parametrize("more", [{"use_rslora": True}, {"loraplus_lr_ratio": 2}])
def test_dora_goes_with_nothing_else(more):
    assert "DoRA" in problem("use_dora", use_dora=True, **more)


def test_targets():
    assert settings(lora_target="all")["adapter.targets"] == ["all-linear"]
    assert settings(lora_target="q_proj,v_proj")["adapter.targets"] == ["q_proj", "v_proj"]


def test_full_has_no_adapter():
    outcome = made(finetuning_type="full", lora_rank=8)
    assert outcome.settings["adapter"].value is None
    assert "no adapter" in outcome.dropped["lora_rank"]


def test_what_there_is_not():
    assert "there is no freeze here" in problem("finetuning_type", finetuning_type="freeze")


def test_oft_has_the_terms_of_peft():
    outcome = made(finetuning_type="oft", oft_block_size=16, oft_target="q_proj,v_proj", lora_rank=8)
    found = {key: value.value for key, value in outcome.settings.items() if key.startswith("adapter.")}
    assert found == {
        "adapter.name": "oft",
        "adapter.block_size": 16,
        "adapter.neumann_terms": 5,
        "adapter.targets": ["q_proj", "v_proj"],
    }
    assert "finetuning_type: lora" in outcome.dropped["lora_rank"]
    assert settings(finetuning_type="oft")["adapter.block_size"] == 32
    assert "oft_block_size" in problem("oft_rank", finetuning_type="oft", oft_rank=8)
    assert "finetuning_type: oft" in made(finetuning_type="lora", oft_block_size=16).dropped["oft_block_size"]


def test_an_earlier_adapter():
    assert settings(adapter_name_or_path="old")["adapter.path"] == "old"
    assert "ernie merge" in problem("adapter_name_or_path", adapter_name_or_path="a,b")


# ---- low bit and precision


@pytest.mark.parametrize(("bits", "name"), [(4, "nf4"), (8, "wint8")])
def test_quantizers(bits, name):
    assert settings(quantization_bit=bits)["quantizer.name"] == name


def test_other_bits_and_types_are_refused():
    assert "4 or 8" in problem("quantization_bit", quantization_bit=3)
    assert "nf4" in problem("quantization_type", quantization_bit=4, quantization_type="fp4")


@pytest.mark.parametrize(
    ("given", "dtype"),
    [({"bf16": True}, "bfloat16"), ({"pure_bf16": True}, "bfloat16"), ({"fp16": True}, "float16")],
)
def test_precision(given, dtype):
    assert settings(**given)["train.precision"] == dtype
    assert settings(Surroundings(), **given)["train.precision"] == "float32"


def test_both_precisions_are_a_contradiction():
    assert problem("fp16", fp16=True, bf16=True) == "not together with bf16"


# ---- what is learned


@pytest.mark.parametrize(
    ("given", "method"),
    [
        ({}, "sft"),
        ({"stage": "pt"}, "pt"),
        ({"stage": "rm"}, "reward"),
        ({"stage": "kto"}, "kto"),
        ({"stage": "dpo"}, "dpo"),
        *(({"stage": "dpo", "pref_loss": loss}, loss) for loss in ("hinge", "ipo", "orpo", "simpo")),
        ({"stage": "dpo", "pref_loss": "kto_pair"}, "kto-pair"),
    ],
)
def test_methods(given, method):
    assert settings(**given)["method.name"] == method


def test_ppo_is_refused():
    assert "grpo" in problem("stage", stage="ppo")


def test_settings_of_preferences():
    found = settings(stage="dpo", pref_ftx=0.5, dpo_label_smoothing=0.1)
    assert (found["method.beta"], found["method.sft_weight"], found["method.label_smoothing"]) == (0.1, 0.5, 0.1)
    simpo = settings(stage="dpo", pref_loss="simpo", pref_beta=2.0)
    assert (simpo["method.beta"], simpo["method.gamma"]) == (2.0, 0.5)
    assert settings(stage="dpo", pref_loss="ipo")["method.length_normalization"] == "mean"
    assert settings(stage="dpo", pref_loss="orpo", pref_ftx=0.5)["method.sft_weight"] == 1.5
    kto = settings(stage="kto", kto_chosen_weight=2.0)
    assert (kto["method.beta"], kto["method.desirable_weight"]) == (0.1, 2.0)
    assert "sigmoid alone" in problem("dpo_label_smoothing", stage="dpo", pref_loss="ipo", dpo_label_smoothing=0.1)


def test_what_a_stage_does_not_read():
    assert made(stage="sft", pref_beta=0.3).dropped["pref_beta"] == "`stage: sft` does not read it"


# ---- packing and template


@pytest.mark.parametrize(
    ("given", "how"),
    [
        ({}, "none"),
        ({"packing": True}, "greedy"),
        ({"neat_packing": True}, "greedy"),
        ({"stage": "pt"}, "sequential"),
        ({"stage": "pt", "packing": False}, "none"),
    ],
)
def test_packing(given, how):
    assert settings(**given)["data.packing"] == how


def test_packed_documents_see_each_other_as_there():
    assert settings(stage="pt")["method.document_mask"] is False
    assert "never see each other" in notes("packing", packing=True)
    assert notes("packing", packing=True, neat_packing=True) == ""


def test_templates_of_other_families_are_named():
    assert "not qwen3" in notes("template", template="qwen3")
    assert notes("template", template="ernie_nothink") == ""


# ---- run, steps and schedule


def test_defaults_that_are_not_ours_are_written_out():
    found = settings()
    assert (found["train.learning_rate"], found["train.weight_decay"], found["train.epochs"]) == (5e-5, 0.0, 3.0)
    assert (found["train.schedule"], found["train.batch_size"], found["checkpoint.every"]) == ("linear", 8, 500)
    assert (found["train.recompute"], found["data.max_seq_len"], found["data.packing"]) == ("full", 2048, "none")


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"save_strategy": "no"}, 0),
        ({"save_steps": 20}, 20),
        ({"save_steps": 0.1, "max_steps": 50}, 5),
        ({"save_strategy": "epoch", "max_steps": 30}, 10),
    ],
)
def test_checkpoints(given, found):
    assert settings(**given)["checkpoint.every"] == found


def test_an_epoch_of_unknown_length_is_said():
    assert "once the data is read" in notes("save_strategy", save_strategy="epoch")


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("cosine", "cosine"),
        ("constant_with_warmup", "constant-with-warmup"),
        ("polynomial", "polynomial"),
        ("warmup_stable_decay", "wsd"),
        ("cosine_with_restarts", "cosine-with-restarts"),
        ("inverse_sqrt", "inverse-sqrt"),
    ],
)
def test_schedules(said, name):
    assert settings(lr_scheduler_type=said)["train.schedule"] == name


def test_noise_on_embeddings_is_of_sft():
    assert settings(neftune_noise_alpha=5)["method.neftune_alpha"] == 5
    for other in ({"neftune_noise_alpha": None}, {"stage": "pt", "neftune_noise_alpha": 5}):
        assert "method.neftune_alpha" not in settings(**other)


def test_the_lowest_rate():
    kwargs = {"min_lr_rate": 0.1}
    found = settings(lr_scheduler_type="cosine_with_min_lr", learning_rate=1e-3, lr_scheduler_kwargs=kwargs)
    assert found["train.min_lr"] == pytest.approx(1e-4)
    assert settings(lr_scheduler_type="polynomial")["train.min_lr"] == 1e-7
    assert "must be one of linear" in problem("lr_scheduler_type", lr_scheduler_type="reduce_lr_on_plateau")


def test_restarts():
    given = {"lr_scheduler_type": "cosine_with_restarts"}
    assert settings(**given, lr_scheduler_kwargs={"num_cycles": 3})["train.cycles"] == 3
    assert "train.cycles" not in settings(**given)
    half = {**given, "lr_scheduler_kwargs": {"num_cycles": 1.5}}
    assert "train.cycles" not in settings(**half)
    assert "num_cycles of the schedule is not read" in notes("lr_scheduler_kwargs", **half)


def test_warm_up_by_steps_or_share():
    assert settings(warmup_steps=10)["train.warmup_steps"] == 10
    assert settings(warmup_steps=0.1)["train.warmup_ratio"] == 0.1
    assert settings(warmup_ratio=0.1)["train.warmup_ratio"] == 0.1


@pytest.mark.parametrize(
    ("name", "stage", "offload"),
    [
        ("examples/deepspeed/ds_z0_config.json", 0, False),
        ("examples/deepspeed/ds_z2_config.json", 2, False),
        ("ds_z3_offload_config.json", 3, True),
        ({"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}}, 1, True),
    ],
)
def test_stages_of_zero(name, stage, offload):
    assert zero_of(name) == (stage, offload)


def test_a_deepspeed_file_is_read(tmp_path):
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    assert zero_of(str(tmp_path / "ds.json")) == (2, False)
    assert "sharding_stage=2" in notes("deepspeed", deepspeed=str(tmp_path / "ds.json"))
    assert settings(deepspeed="ds_z3_offload_config.json")["optimizer.offload"] is True


# ---- other commands


def example(name):
    return yaml.parse((FIXTURES / f"{name}.yaml").read_text(), name).data


@pytest.mark.parametrize(
    ("name", "purpose", "command"),
    [
        ("train_lora_qwen3_lora_sft", "train", ""),
        ("inference_qwen3_lora_sft", "chat", "ernie chat --model Qwen/Qwen3-4B-Instruct-2507 --adapter saves/"),
        ("merge_lora_qwen3_lora_sft", "export", "ernie merge saves/qwen3-4b/lora/sft --base Qwen/"),
    ],
)
def test_files_for_other_commands(name, purpose, command):
    given = example(name)
    assert purpose_of(given) == purpose
    assert convert(given, ACCELERATOR).command.startswith(command)
    assert bool(convert(given, ACCELERATOR).command) == bool(command)


def test_evaluation():
    given = {"do_eval": True, "eval_dataset": "identity", "model_name_or_path": "m", "stage": "sft"}
    assert purpose_of(given) == "eval"
    assert convert(given, ACCELERATOR).command.startswith("ernie eval --model m --data data/identity.json")


# ---- images and videos, and the best model


def test_sizes_frames_and_parts_of_a_vision_language_model():
    found = settings(
        Surroundings(config={"model_type": "ernie4_5_moe_vl"}), model_name_or_path="vl", finetuning_type="full",
        image_max_pixels=262144, video_maxlen=64, media_dir="pictures", freeze_multi_modal_projector=False,
    )  # fmt: skip
    assert (found["model.image_max_pixels"], found["model.video_max_frames"]) == (262144, 64)
    assert (found["model.video_frames"], found["model.media_roots"]) == ("linspace", ["pictures"])
    assert found["model.train"] == ["text", "vision_experts", "resampler"]
    dense = made(Surroundings(config={"model_type": "ernie4_5"}), model_name_or_path="text", image_max_pixels=9)
    assert "model.image_max_pixels" not in dense.settings
    assert "reads no images" in dense.dropped["image_max_pixels"]


def test_a_model_with_nothing_to_train_is_refused():
    around = Surroundings(config={"model_type": "ernie4_5_moe_vl"})
    outcome = made(around, model_name_or_path="vl", finetuning_type="full", freeze_language_model=True)
    assert "every part" in outcome.problems["freeze_language_model"]


def test_the_best_model_and_early_stopping():
    evaluated = {"val_size": 0.1, "eval_strategy": "steps", "eval_steps": 10}
    found = settings(
        load_best_model_at_end=True, metric_for_best_model="eval_accuracy", greater_is_better=True, **evaluated
    )
    assert (found["eval.best"], found["eval.greater_is_better"]) == ("accuracy", True)
    found = settings(early_stopping_steps=3, **evaluated)
    assert (found["eval.best"], found["eval.patience"]) == ("loss", 3)
    assert "eval.best" not in settings(metric_for_best_model="loss", **evaluated)
    assert "there is no evaluation" in made(early_stopping_steps=3).dropped["early_stopping_steps"]
