"""What ERNIEKit's keys mean together, the traps included: each notice names the value that counts."""

import pytest
from erniecore_erniekit.convert import convert
from erniecore_erniekit.draft import Surroundings

MODEL = {"model_name_or_path": "baidu/ERNIE-4.5-0.3B-Paddle"}
MOE = {"model_name_or_path": "baidu/ERNIE-4.5-21B-A3B-Paddle"}
ACCELERATOR = Surroundings("accelerator", frozenset({"float32", "bfloat16", "float16"}))


def settings(around=None, **given):
    """The settings of a file that trains."""
    outcome = convert({"do_train": True, **given}, around or ACCELERATOR)
    assert not outcome.problems
    return {key: setting.value for key, setting in outcome.settings.items()}


def note_on(key, **given):
    """The texts of the notices about a key."""
    return " ".join(
        f"[{n.kind}] {n.text}" for n in convert({"do_train": True, **given}, ACCELERATOR).notes if key in n.keys
    )


def problem(key, **given):
    return convert({"do_train": True, **given}, ACCELERATOR).problems[key]


# ---- which model


@pytest.mark.parametrize(
    ("name", "plugin"),
    [
        ("baidu/ERNIE-4.5-0.3B-Paddle", "ernie45"),
        ("baidu/ERNIE-4.5-0.3B-Base-PT", "ernie45"),
        ("ERNIE-4.5-21B-A3B-Thinking", "ernie45-moe"),
        ("./models/ERNIE-4.5-300B-A47B-Base-Paddle/", "ernie45-moe"),
        ("baidu/ERNIE-4.5-VL-28B-A3B-Thinking/", "ernie45-vl"),
        ("PaddlePaddle/PaddleOCR-VL-0.9B", "paddleocr-vl"),
    ],
)
def test_published_names_choose_the_plugin(name, plugin):
    made = settings(model_name_or_path=name)
    assert (made["model.name"], made["model.path"]) == (plugin, name)


def test_a_directory_speaks_for_itself():
    made = settings(Surroundings(config={"model_type": "ernie4_5"}), model_name_or_path="mine")
    assert made["model.path"] == "mine"
    assert "model.name" not in made


def test_training_from_new_weights():
    made = settings(**MOE, continue_training=False)
    assert (made["model.size"], made["model.tokenizer"]) == ("21b-a3b", MOE["model_name_or_path"])
    assert "model.path" not in made
    around = Surroundings(config={"model_type": "ernie4_5", "hidden_size": 8})
    made = settings(around, model_name_or_path="mine", continue_training=False)
    assert made["model.architecture"] == {"model_type": "ernie4_5", "hidden_size": 8}
    assert made["model.name"] == "ernie45"
    assert "config.json" in problem("model_name_or_path", model_name_or_path="mine", continue_training=False)


# ---- adapters


def test_the_default_is_lora():
    made = settings(**MODEL)
    assert (made["adapter.name"], made["adapter.rank"], made["adapter.alpha"]) == ("lora", 8, 16.0)
    assert "LoRA, the default" in note_on("fine_tuning", **MODEL)


@pytest.mark.parametrize(
    ("given", "adapter", "told"),
    [
        ({"fine_tuning": "Full", "lora": True}, None, "lora: true has no effect: fine_tuning is full, which decides"),
        ({"fine_tuning": "LoRA", "lora": False}, "lora", "lora: false has no effect: fine_tuning is lora"),
        ({"lora": False}, "lora", "fine_tuning is lora (its default)"),
        ({"lora": True}, "lora", ""),
        ({"fine_tuning": "full"}, None, ""),
    ],
)
def test_fine_tuning_overrides_lora(given, adapter, told):
    made = settings(**MODEL, **given)
    assert made.get("adapter.name") == adapter
    assert told in note_on("lora", **MODEL, **given)
    assert ("adapter" in made) == (adapter is None)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"lora_rank": 32}, {"adapter.name": "lora", "adapter.alpha": 64.0}),
        ({"lora_rank": 4, "lora_alpha": 3}, {"adapter.name": "lora", "adapter.alpha": 3.0}),
        ({"rslora": True, "lora_rank": 64}, {"adapter.name": "rslora", "adapter.alpha": 4.0}),
        ({"lora_plus_scale": 12}, {"adapter.name": "lora-plus", "adapter.alpha": 16.0, "adapter.ratio": 12.0}),
        (
            {"rslora_plus": True, "lora_rank": 16},
            {"adapter.name": "lora-plus", "adapter.alpha": 16.0, "adapter.ratio": 4.0},
        ),
        ({"lora_path": "old"}, {"adapter.path": "old"}),
    ],
)
def test_adapters(given, expected):
    assert expected.items() <= settings(**MODEL, fine_tuning="LoRA", **given).items()


def test_lora_plus_has_no_effect_on_quantized_weights():
    made = settings(**MODEL, compute_type="wint8", lora_plus_scale=4)
    assert made["adapter.name"] == "lora"
    assert "1: ERNIEKit ignores it" in note_on("lora_plus_scale", **MODEL, compute_type="wint8", lora_plus_scale=4)


def test_fine_tuning_that_means_nothing():
    assert problem("fine_tuning", fine_tuning="Lorra") == "must be LoRA or Full"
    assert problem("lora_rank", lora_rank=0) == "must be 1 or more"


# ---- precision


@pytest.mark.parametrize(
    ("kind", "precision", "quantizer"),
    [
        ("bf16", "bfloat16", None),
        ("fp16", "float16", None),
        ("fp8", "bfloat16", "fp8-qat"),
        ("wint8", "bfloat16", "wint8"),
        ("wint4/8", "bfloat16", "wint4-8"),
        ("nf4", "bfloat16", "nf4"),
    ],
)
def test_compute_types(kind, precision, quantizer):
    made = settings(compute_type=kind)
    assert (made["train.precision"], made.get("quantizer.name")) == (precision, quantizer)


def test_the_default_is_bfloat16_and_float32_where_there_is_nothing_else():
    assert settings()["train.precision"] == "bfloat16"
    assert settings(Surroundings())["train.precision"] == "float32"
    assert settings(Surroundings("other", frozenset()))["train.precision"] == "bfloat16"
    told = convert({"compute_type": "bf16"}).notes
    assert any("device cpu has no bfloat16" in n.text for n in told)


def test_compute_type_overrides_the_rest():
    given = {"compute_type": "bf16", "weight_quantize_algo": "weight_only_int8"}
    assert "quantizer.name" not in settings(**given)
    assert "no effect: compute_type is bf16" in note_on("weight_quantize_algo", **given)
    assert settings(weight_quantize_algo="weight_only_mix")["quantizer.name"] == "wint4-8"
    assert "1.3 ignores it" in note_on("weight_quantize_algo", weight_quantize_algo="weight_only_mix")
    assert settings(fp16=True)["train.precision"] == "bfloat16"
    assert "bf16: compute_type decides, not fp16" in note_on("fp16", fp16=True)
    assert settings(bf16=False)["train.precision"] == "bfloat16"
    assert "bf16: compute_type decides, not bf16" in note_on("bf16", bf16=False)


def test_fp8_brings_moments_of_low_precision():
    assert settings(compute_type="fp8")["optimizer.moments"] == "bfloat16"
    assert settings(use_lowprecision_moment=True)["optimizer.moments"] == "bfloat16"


def test_types_that_mean_nothing():
    assert "did you mean wint8?" in problem("compute_type", compute_type="wint88")
    assert "weight_only_mix" in problem("weight_quantize_algo", weight_quantize_algo="int3")


def test_low_precision_is_told_where_it_differs():
    assert "as O2" in note_on("fp16_opt_level", fp16_opt_level="O1")
    assert not note_on("fp16_opt_level", fp16_opt_level="O2")
    given = {"amp_master_grad": True, "gradient_accumulation_steps": 4}
    assert "add up in bfloat16" in note_on("amp_master_grad", **given)
    assert not any("amp_master_grad" in n.keys for n in convert({"do_train": True, **given}).notes)


# ---- routers


def test_router_losses_have_erniekits_default():
    made = settings(**MOE)
    assert made["model.router_aux_loss"] == 1e-5
    assert settings(**MOE, moe_z_loss_lambda=0.1)["model.router_z_loss"] == 0.1
    assert not any(key.startswith("model.router") for key in settings(**MODEL, moe_aux_loss_lambda=0.1))


def test_only_an_explicit_false_switches_the_selection_bias_off():
    assert settings(**MOE, moe_use_aux_free=False)["model.architecture"] == {"moe_use_aux_free": False}
    assert "model.architecture" not in settings(**MOE, moe_use_aux_free=True)


def test_an_orthogonal_loss_behind_the_optimizer():
    made = settings(**MOE, use_ortho_loss_callback=True, moe_orthogonal_loss_lambda=0.1)
    assert (made["model.router_orthogonal_decoupled"], made["model.router_orthogonal_loss"]) == (True, 0.1)


def test_prediction_layers():
    made = settings(**MOE, num_nextn_predict_layers=1)
    assert (made["model.mtp"], made["method.mtp_weight"]) == (True, 0.3)
    made = settings(**MOE, num_nextn_predict_layers=1, stage="DPO")
    assert "model.mtp" not in made
    assert "0: ERNIEKit" in note_on("num_nextn_predict_layers", **MOE, num_nextn_predict_layers=1, stage="DPO")
    assert "model.mtp" not in settings(**MODEL, num_nextn_predict_layers=1)


# ---- preferences


@pytest.mark.parametrize(
    ("loss", "method"),
    [
        ("sigmoid", "dpo"), ("hinge", "hinge"), ("ipo", "ipo"), ("simpo", "simpo"), ("dpop", "dpop"), ("orpo", "orpo"),
        ("kto_pair", "kto-pair"), ("sppo_hard", "sppo"), ("nca_pair", "nca"),
    ],
)  # fmt: skip
def test_losses(loss, method):
    made = settings(stage="DPO", loss_type=loss)
    assert made["method.name"] == method
    how = {"ipo": "mean", "simpo": None, "orpo": None}.get(method, "balanced")
    assert made.get("method.length_normalization") == how


def test_lengths_are_balanced_unless_the_file_says_otherwise():
    assert settings(stage="DPO", normalize_logps=False)["method.length_normalization"] == "none"
    assert "not the DPO of the paper" in note_on("normalize_logps", stage="DPO")


def test_settings_of_losses():
    assert settings(stage="DPO", loss_type="simpo")["method.gamma"] == 0.5
    assert settings(stage="DPO", loss_type="simpo")["method.beta"] == 0.1
    made = settings(stage="DPO", loss_type="dpop", dpop_lambda=5)
    assert (made["method.penalty"], made["method.penalty_outside"]) == (5.0, True)
    made = settings(stage="DPO", loss_type="orpo", beta=7, pref_loss_ratio=0.2)
    assert (made["method.beta"], made["method.sft_weight"]) == (0.2, 1.0)
    made = settings(stage="DPO", pref_loss_ratio=2, sft_loss_ratio=1)
    assert made["method.sft_weight"] == 0.5
    assert settings(stage="DPO", label_smoothing=0.1)["method.label_smoothing"] == 0.1
    assert settings(stage="DPO", reference_free=True)["method.reference_free"] is True


def test_a_reference_is_renewed_where_there_is_a_second_model():
    key, given = "method.reference_update_steps", {"stage": "DPO", "ref_model_update_steps": 50}
    assert settings(**given, fine_tuning="Full")[key] == 50
    assert settings(**given, fine_tuning="LoRA")[key] == 0
    assert "which LoRA does not have" in note_on("ref_model_update_steps", **given)
    assert key not in settings(**given, loss_type="orpo")
    assert settings(stage="DPO", ref_model_update_steps=-1)[key] == 0


def test_a_margin_has_no_effect_in_erniekit():
    assert settings(stage="DPO", offset_alpha=0.5)["method.offset_alpha"] == 0.0
    assert "reads no margin" in note_on("offset_alpha", stage="DPO", offset_alpha=0.5)
    assert "sigmoid alone" in problem("offset_alpha", stage="DPO", offset_alpha=0.5, loss_type="ipo")


def test_the_mean_over_pairs_is_told():
    assert any("mean over all pairs of a step" in n.text for n in convert({"stage": "DPO"}).notes)


def test_end_tokens_count():
    assert "the default of ERNIEKit" in note_on("mask_out_eos_token", stage="DPO")
    assert not note_on("mask_out_eos_token", stage="DPO", mask_out_eos_token=False)
    assert not note_on("mask_out_eos_token", stage="SFT", mask_out_eos_token=True)


def test_keys_of_preferences_mean_nothing_elsewhere():
    assert convert({"stage": "SFT", "beta": 0.3}).dropped == {"beta": "only for `stage: DPO`"}


def test_stages():
    assert settings(stage="pt")["method.name"] == "pt"
    assert settings()["method.name"] == "sft"
    assert "did you mean SFT?" in problem("stage", stage="SFTT")


# ---- batches, steps, events


def test_batch_size_overwrites():
    given = {"batch_size": 1, "per_device_train_batch_size": 4}
    assert settings(**given)["train.batch_size"] == 1
    assert "1: batch_size overwrites it" in note_on("per_device_train_batch_size", **given)
    assert settings(per_device_train_batch_size=4)["train.batch_size"] == 4
    assert "4, as written" in note_on("per_device_train_batch_size", per_device_train_batch_size=4)


def test_accumulation_from_the_data_needs_a_number():
    assert "give a number" in problem("gradient_accumulation_steps", gradient_accumulation_steps=-1)


def test_the_mean_over_tokens_is_told_where_it_matters():
    assert "counts the same" in note_on("gradient_accumulation_steps", gradient_accumulation_steps=4)
    assert not note_on("gradient_accumulation_steps", gradient_accumulation_steps=1)


@pytest.mark.parametrize(
    ("given", "every"),
    [
        ({"evaluation_strategy": "steps", "logging_steps": 3}, 3),
        ({"evaluation_strategy": "epoch", "max_steps": 800, "num_train_epochs": 2}, 400),
        ({"evaluation_strategy": "steps", "eval_steps": 7}, 7),
        ({"evaluation_strategy": False, "do_eval": True}, 0),
        ({"evaluation_strategy": "epoch", "num_train_epochs": 1}, 0),
    ],
)
def test_strategies(given, every):
    assert settings(eval_dataset_path="e", **given)["eval.every"] == every


def test_epochs_whose_steps_nobody_knows_are_told():
    told = note_on("save_strategy", save_strategy="epoch", num_train_epochs=3)
    assert "checkpoint.every=N" in told


def test_nothing_is_evaluated_without_do_eval():
    made = settings(eval_dataset_path="e.jsonl", do_eval=False, eval_steps=5)
    assert "data.eval" not in made
    assert "eval.every" not in made


@pytest.mark.parametrize(("limit", "keep"), [(5, 5), (1, 2), (2, 2)])
def test_at_least_two_checkpoints_are_kept(limit, keep):
    assert settings(save_total_limit=limit)["checkpoint.keep"] == keep


def test_saving_beside_the_training():
    assert settings(unified_checkpoint_config="async_save ignore_merge_optimizer")["checkpoint.background"] is True
    assert "checkpoint.background" not in settings(unified_checkpoint_config="ignore_merge_optimizer")


def test_resuming():
    assert settings(overwrite_output_dir=True)["run.resume"] == "never"
    assert settings(resume_from_checkpoint=True)["run.resume"] == "must"
    assert settings(resume_from_checkpoint="d")["run.resume"] == "d"


# ---- schedules


def test_rates_have_erniekits_defaults():
    made = settings()
    assert (made["train.learning_rate"], made["train.schedule"], made["train.weight_decay"]) == (5e-5, "linear", 0.0)


def test_each_schedule_has_its_own_lowest_rate():
    assert settings(lr_scheduler_type="cosine", min_lr=1e-6)["train.min_lr"] == 1e-6
    assert "train.min_lr" not in settings(lr_scheduler_type="linear", min_lr=1e-6)
    assert "no effect" in note_on("min_lr", lr_scheduler_type="linear", min_lr=1e-6)
    assert settings(lr_scheduler_type="polynomial", power=2)["train.min_lr"] == 1e-7


def test_constant_has_no_warmup():
    assert "train.warmup_steps" not in settings(lr_scheduler_type="constant", warmup_steps=5)
    assert settings(lr_scheduler_type="constant_with_warmup", warmup_steps=5)["train.warmup_steps"] == 5


def test_wsd():
    made = settings(lr_scheduler_type="wsd:80", max_steps=100, decay_function="1-sqrt")
    assert (made["train.schedule"], made["train.decay_steps"], made["train.decay_shape"]) == ("wsd", 20, "1-sqrt")
    assert "needs max_steps" in problem("lr_scheduler_type", lr_scheduler_type="wsd:80")
    assert "cosine: the trainer of VL" in note_on("lr_scheduler_type", stage="VL-SFT", lr_scheduler_type="linear")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"recompute": True}, "full"),
        ({"recompute": True, "recompute_granularity": "full_attn"}, "attention"),
        ({"recompute": True, "recompute_granularity": "core_attn"}, "core-attention"),
        ({"recompute": False, "recompute_granularity": "core_attn"}, "none"),
    ],
)
def test_recompute(given, expected):
    assert settings(**given)["train.recompute"] == expected


def test_what_vision_language_stages_say_of_images_videos_and_parts():
    given = {"stage": "VL-SFT", "fine_tuning": "Full", "freeze_config": "freeze_vision", "max_pixels": 1003520}
    found = settings(**given, video_max_frames=180, render_timestamp=True, video_target_frames=-1)
    assert (found["model.image_max_pixels"], found["model.video_max_frames"]) == (1003520, 180)
    assert (found["model.video_timestamps"], found["model.video_target_frames"]) == (True, 0)
    assert found["model.train"] == ["text", "resampler", "vision_experts"]
    found = settings(stage="VL-SFT", fine_tuning="Full", vit_lr_ratio=0.9)
    assert found["model.lr_factors"] == {"vision": 0.9}
    assert found["model.train"] == ["text", "vision", "resampler", "vision_experts"]
    assert "model.train" not in settings(stage="VL-SFT", fine_tuning="LoRA", freeze_config="freeze_vision")
    assert "middle frame" in note_on("video_frames_sample", stage="VL-SFT", video_frames_sample="rand")
    assert "model.video_fps" not in settings(stage="SFT", video_fps=2)
