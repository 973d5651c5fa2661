"""PaddleFormers' ERNIE 4.5 with its SFTTrainer: ``venv-pf/bin/python run_pf.py --workload dense-S``.

Scaled dot-product attention and end rows, as its command line feeds it; its own default, flashmask, and its fused norm
have no CPU kernel, and its mixture of experts does not run on CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from types import SimpleNamespace
from typing import Any

from common import Clock, Spec, emit, load_workload, make_tokens, parse_arguments


def build(model: Spec, seed: int, recompute: bool) -> Any:
    """The dense model with random weights."""
    import paddle
    from paddleformers.transformers import Ernie4_5Config, Ernie4_5ForCausalLM

    if model["arch"] != "dense":
        raise SystemExit("PaddleFormers' MoE model does not run on CPU")
    config = Ernie4_5Config(
        vocab_size=model["vocab"],
        hidden_size=model["hidden"],
        intermediate_size=model["intermediate"],
        num_hidden_layers=model["layers"],
        num_attention_heads=model["heads"],
        num_key_value_heads=model["kv_heads"],
        head_dim=model["head_dim"],
        max_position_embeddings=model["max_pos"],
        rms_norm_eps=model["rms_eps"],
        rope_theta=model["rope_theta"],
        tie_word_embeddings=model["tie"],
        use_bias=False,
    )
    config._attn_implementation, config.fuse_rms_norm, config.dpo_config = "sdpa", False, None
    if recompute:
        config.recompute_granularity, config.recompute_method, config.recompute_num_layers = "full", "uniform", 1
    paddle.seed(seed)
    return Ernie4_5ForCausalLM(config)


def make_callback(clock: Clock) -> Any:
    """Ticks at the end of each step."""
    from paddleformers.trainer import TrainerCallback

    class Tick(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            clock.mark()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            clock.tick()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if logs and "loss" in logs:
                clock.losses.append(float(logs["loss"]))

    return Tick()


def make_rows(tokens: Any) -> Any:
    """One sample per row, as its collator wants them."""
    import paddle

    class Rows(paddle.io.Dataset):
        def __len__(self) -> int:
            return len(tokens)

        def __getitem__(self, index: int) -> Any:
            row = tokens[index]
            return [SimpleNamespace(token_ids=row[:-1], labels=row[1:], position_ids=list(range(len(row) - 1)))]

    return Rows()


def make_config(args: argparse.Namespace, workload: Spec, defaults: Spec) -> Any:
    """Settings of the PaddleFormers trainer."""
    from paddleformers.cli.train.sft.sft_config import SFTConfig

    recompute = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return SFTConfig(
        output_dir=tempfile.mkdtemp(prefix="pf_"),
        max_steps=args.warmup + args.steps,
        per_device_train_batch_size=workload["batch"],
        max_seq_len=workload["seq"],
        learning_rate=defaults["lr"],
        weight_decay=defaults["weight_decay"],
        adam_beta1=defaults["adam_betas"][0],
        adam_beta2=defaults["adam_betas"][1],
        max_grad_norm=defaults["max_grad_norm"],
        lr_scheduler_type="constant",
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        device="cpu",
        bf16=False,
        fp16_opt_level="O1",
        amp_master_grad=False,
        seed=defaults["seed"],
        disable_tqdm=True,
        **(recompute if args.recompute else {}),
    )


def train(args: argparse.Namespace, workload: Spec, defaults: Spec, clock: Clock) -> int:
    """Steps of its SFTTrainer."""
    from paddleformers.cli.train.sft.sft_trainer import SFTTrainer
    from paddleformers.datasets.collate import collate_fn

    seq, vocab = workload["seq"], workload["model"]["vocab"]
    model, config = build(workload["model"], defaults["seed"], args.recompute), make_config(args, workload, defaults)
    tokens = make_tokens((args.warmup + args.steps) * workload["batch"], seq + 1, vocab, defaults["seed"]).tolist()
    names = {"pad_token_id": 0, "eos_token_id": 2, "bos_token_id": 1, "pad_token": "<pad>", "model_max_length": 10**6}
    tokenizer = SimpleNamespace(**names, save_pretrained=lambda *a, **k: None)
    masks = SimpleNamespace(use_attn_mask_startend_row_indices=True, use_global_causal_attn=False)
    trainer = SFTTrainer(
        model=model,
        args=config,
        train_dataset=make_rows(tokens),
        tokenizer=tokenizer,
        data_collator=lambda b: collate_fn(b, tokenizer, config, masks, max_seq_len=seq, padding_free=False),
        callbacks=[make_callback(clock)],
        formatting_func=lambda e: e,
    )
    trainer.set_optimizer_grouped_parameters(list(model.parameters()))
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
        trainer.train()
    return sum(int(p.size) for p in model.parameters())


def generate(args: argparse.Namespace, workload: Spec, defaults: Spec, clock: Clock) -> int:
    """Greedy decoding; one tick per call."""
    import paddle

    model = build(workload["model"], defaults["seed"], False)
    model.eval()
    prompt = make_tokens(workload["batch"], workload["prompt"], workload["model"]["vocab"], defaults["seed"])
    ids, new = paddle.to_tensor(prompt), workload["new_tokens"]
    clock.mark()
    with paddle.no_grad():
        for _ in range(args.warmup + args.steps):
            model.generate(
                input_ids=ids,
                attention_mask=paddle.ones_like(ids),
                do_sample=False,
                decode_strategy="greedy_search",
                max_new_tokens=new,
                min_new_tokens=new,
                use_cache=True,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
            )
            clock.tick()
    return sum(int(p.size) for p in model.parameters())


def main() -> None:
    args = parse_arguments("pf")
    if args.method in ("lora", "dpo"):
        raise SystemExit("not written for PaddleFormers: sft and generate are")
    workload, defaults = load_workload(args)
    import paddle
    import paddleformers
    from paddleformers.utils.log import logger

    logger.set_level("ERROR")
    paddle.set_device("cpu")
    clock = Clock()
    num_parameters = (generate if args.method == "generate" else train)(args, workload, defaults, clock)
    versions = {"paddle": paddle.__version__, "paddleformers": paddleformers.__version__}
    emit("pf", args, workload, defaults, clock, num_parameters=num_parameters, versions=versions)


if __name__ == "__main__":
    main()
