"""transformers' ERNIE 4.5 on torch with TRL's trainers and PEFT: ``venv-hf/bin/python run_hf.py --workload dense-S``.

``--opt experts=grouped_mm|batched_mm|eager`` chooses transformers' kernel of the experts, ``--opt precision=high`` is
``torch.set_float32_matmul_precision``, ``--opt autocast=bf16`` the trainers' ``bf16``, ``--opt weights=bf16`` keeps
the weights in bfloat16, as public models are stored, and computes in it.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

from common import Clock, Spec, emit, load_workload, make_tokens, parse_arguments, sequences


def build(model: Spec, seed: int, options: dict[str, str]) -> Any:
    """The model with random weights, scaled dot-product attention."""
    import torch
    import transformers

    shared = {
        "vocab_size": model["vocab"],
        "hidden_size": model["hidden"],
        "intermediate_size": model["intermediate"],
        "num_hidden_layers": model["layers"],
        "num_attention_heads": model["heads"],
        "num_key_value_heads": model["kv_heads"],
        "head_dim": model["head_dim"],
        "max_position_embeddings": model["max_pos"],
        "rms_norm_eps": model["rms_eps"],
        "rope_parameters": {"rope_type": "default", "rope_theta": model["rope_theta"]},
        "tie_word_embeddings": model["tie"],
        "use_bias": False,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    torch.manual_seed(seed)
    if model["arch"] == "dense":
        config, cls = transformers.Ernie4_5Config(**shared), transformers.Ernie4_5ForCausalLM
    else:
        config, cls = (
            transformers.Ernie4_5_MoeConfig(
                moe_num_experts=model["experts"],
                moe_k=model["top_k"],
                moe_num_shared_experts=model["shared_experts"],
                moe_intermediate_size=model["moe_intermediate"],
                moe_layer_start_index=model["moe_start"],
                **shared,
            ),
            transformers.Ernie4_5_MoeForCausalLM,
        )
        if "experts" in options:
            config._experts_implementation = options["experts"]
    config._attn_implementation = "sdpa"
    model = cls(config)
    return model.to(torch.bfloat16) if options.get("weights") == "bf16" else model


def tokenizer(vocab: int) -> Any:
    """A word per id; the trainer wants one."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<pad>": 0, "<s>": 1, "</s>": 2, **{f"w{i}": i for i in range(3, vocab)}}
    core = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def low_rank(workload: Spec, defaults: Spec) -> Any:
    """LoRA on all linear layers; routed experts are stacked parameters there, not layers."""
    import peft

    stacks = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    layers = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    return peft.LoraConfig(
        r=defaults["lora_rank"],
        lora_alpha=defaults["lora_alpha"],
        target_modules=layers,
        target_parameters=stacks if workload["model"]["arch"] == "moe" else None,
        task_type="CAUSAL_LM",
    )


def make_rows(args: argparse.Namespace, workload: Spec, seed: int) -> Any:
    """Token ids; for DPO words, because its trainer wants texts: each answer is a token short, which it adds."""
    import datasets

    total, vocab = args.warmup + args.steps, workload["model"]["vocab"]
    if args.method != "dpo":
        tokens = make_tokens(total * workload["batch"], workload["seq"], vocab, seed)
        return datasets.Dataset.from_dict({"input_ids": tokens.tolist()})
    pairs, prompt, response = (workload["dpo"][name] for name in ("pairs", "prompt", "response"))
    tokens = make_tokens(2 * total * pairs, prompt + response - 1, vocab, seed)

    def words(ids: Any) -> str:
        return " ".join(f"w{i}" for i in ids)

    chosen, rejected = tokens[: total * pairs], tokens[total * pairs :]
    return datasets.Dataset.from_dict(
        {
            "prompt": [words(ids[:prompt]) for ids in chosen],
            "chosen": [f" {words(ids[prompt:])} " for ids in chosen],
            "rejected": [f" {words(ids[prompt:])} " for ids in rejected],
        }
    )


def trainer_settings(args: argparse.Namespace, defaults: Spec) -> dict[str, Any]:
    """What all trainers take."""
    return {
        "output_dir": tempfile.mkdtemp(prefix="hf_"),
        "max_steps": args.warmup + args.steps,
        "learning_rate": defaults["lr"],
        "weight_decay": defaults["weight_decay"],
        "adam_beta1": defaults["adam_betas"][0],
        "adam_beta2": defaults["adam_betas"][1],
        "max_grad_norm": defaults["max_grad_norm"],
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": args.opts.get("autocast") == "bf16",
        "seed": defaults["seed"],
        "disable_tqdm": True,
        "gradient_checkpointing": args.recompute,
        "dataloader_pin_memory": False,
    }


def train(args: argparse.Namespace, workload: Spec, defaults: Spec, clock: Clock) -> int:
    """Steps of TRL's trainers, from end of step to end of step."""
    import datasets
    import trl
    from transformers import TrainerCallback

    class Tick(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            clock.mark()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            clock.tick()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if logs and "loss" in logs:
                clock.losses.append(float(logs["loss"]))

    datasets.disable_progress_bars()
    model = build(workload["model"], defaults["seed"], args.opts)
    settings = trainer_settings(args, defaults)
    if args.method == "dpo":
        size = {"per_device_train_batch_size": workload["dpo"]["pairs"], "max_length": sequences(workload, "dpo")[1]}
        config, trainer = trl.DPOConfig(beta=defaults["dpo_beta"], **size, **settings), trl.DPOTrainer
    else:
        size = {"per_device_train_batch_size": workload["batch"], "max_length": workload["seq"]}
        config, trainer = trl.SFTConfig(packing=False, **size, **settings), trl.SFTTrainer
    trainer(
        model=model,
        args=config,
        train_dataset=make_rows(args, workload, defaults["seed"]),
        processing_class=tokenizer(workload["model"]["vocab"]),
        peft_config=None if args.method == "sft" else low_rank(workload, defaults),
        callbacks=[Tick()],
    ).train()
    return sum(p.numel() for p in model.parameters())


def generate(args: argparse.Namespace, workload: Spec, defaults: Spec, clock: Clock) -> int:
    """Greedy decoding; one tick per call."""
    import torch

    model = build(workload["model"], defaults["seed"], args.opts).eval()
    prompt = make_tokens(workload["batch"], workload["prompt"], workload["model"]["vocab"], defaults["seed"])
    ids, new = torch.from_numpy(prompt), workload["new_tokens"]
    clock.mark()
    with torch.no_grad():
        for _ in range(args.warmup + args.steps):
            mask = torch.ones_like(ids)
            out = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=new, min_new_tokens=new)
            assert out.shape[1] == workload["prompt"] + new, out.shape
            clock.tick()
    return sum(p.numel() for p in model.parameters())


def main() -> None:
    args = parse_arguments("hf")
    workload, defaults = load_workload(args)
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    torch.set_num_interop_threads(1)
    torch.set_float32_matmul_precision(args.opts.get("precision", "highest"))
    transformers.logging.set_verbosity_error()
    clock = Clock()
    num_parameters = (generate if args.method == "generate" else train)(args, workload, defaults, clock)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    emit("hf", args, workload, defaults, clock, num_parameters=num_parameters, versions=versions)


if __name__ == "__main__":
    main()
