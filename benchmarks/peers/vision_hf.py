"""transformers' vision-language models on torch, with PEFT: ``venv-hf/bin/python vision_hf.py DIRECTORY --method sft``."""

from __future__ import annotations

from typing import Any

from common import Clock
from vision_common import (
    ALPHA,
    BETAS,
    LEARNING_RATE,
    MAX_NORM,
    RANK,
    WEIGHT_DECAY,
    emit,
    parse_arguments,
    read_batches,
    rss_mb,
)


def adapted(model: Any) -> Any:
    """With LoRA on the linear layers of the text part; routed experts are stacked parameters there, not layers."""
    import peft

    stacks = [name for name, _ in model.named_parameters() if ".text_moe.experts." in name]
    config = peft.LoraConfig(
        r=RANK,
        lora_alpha=ALPHA,
        target_modules=r".*language_model\..*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)",
        target_parameters=stacks or None,
    )
    return peft.get_peft_model(model, config)


def main() -> None:
    args = parse_arguments()
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    torch.set_num_interop_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    batches, start = read_batches(args.directory), rss_mb()
    model = transformers.AutoModelForImageTextToText.from_pretrained(args.directory, dtype=torch.float32)
    if args.method == "lora":
        model = adapted(model)
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True)
    kinds = "moe" in model.config.model_type
    clock = Clock()
    for arrays in batches:
        given = {name: torch.from_numpy(array) for name, array in arrays.items()}
        if not kinds:
            del given["moe_mm_token_type_ids"]
            given["pixel_values"] = given["pixel_values"].reshape(-1, 3, 14, 14)
        loss = model(**given, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        clock.tick(float(loss.detach()))
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    emit(clock, start, sum(p.numel() for p in trained), versions=versions)


if __name__ == "__main__":
    main()
