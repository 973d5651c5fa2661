"""Training on rows with images, from the command line's settings to the model's answer to an image."""

import json
import shutil

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_conformance.checks.model import joined_rows
from erniecore_conformance.toys.compute import logits
from erniecore_ernie45_vl.architecture import VlArchitecture
from erniecore_ernie45_vl.examples import example_rows
from erniecore_ernie45_vl.seeing import PLACEHOLDER, SeeingTemplate
from erniecore_export.exporting import export_directory
from PIL import Image

import erniecore
from erniecore.api import ErnieError
from erniecore.cli.app import main
from erniecore.engine.models.bundles import load_bundle


def settings(home, out, *more):
    return [
        f"model.path={home / 'base'}",
        "method=sft",
        f"data.train={home / 'rows.jsonl'}",
        "data.max_seq_len=96",
        "data.max_drop=0.05",
        "train.batch_size=2",
        "train.accumulation=1",
        "log.report=false",
        f"run.out={out}",
        *more,
    ]


def losses(out):
    lines = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if line["event"] == "step"}


def test_lora_learns_from_images_and_every_row_is_counted(home, tmp_path):
    out = tmp_path / "run"
    words = ["adapter=lora", "train.max_steps=12", "train.learning_rate=0.02", "train.warmup_ratio=0"]
    erniecore.run(None, settings(home, out, *words))
    found = losses(out)
    assert np.mean([found[i] for i in (10, 11, 12)]) < np.mean([found[i] for i in (1, 2, 3)]) - 0.3
    report = json.loads((out / "data_report.json").read_text())["train"]
    assert (report["rows"], report["kept"], report["dropped"]) == (25, 24, 1)
    (error,) = report["errors"]
    assert (error["line"], error["path"], error["code"]) == (25, "$.images[0]", "ERN-D039")
    assert "none.png" in error["found"]


@pytest.mark.parametrize("quantizer", ["wint8", "wint4-8", "bf16"])
def test_an_adapter_learns_from_images_on_quantized_weights(home, tmp_path, quantizer):
    """Tower, resampler and both families of experts are quantized, too."""
    out = tmp_path / "run"
    words = [
        "adapter=lora",
        f"quantizer={quantizer}",
        "train.max_steps=8",
        "train.learning_rate=0.02",
        "train.warmup_ratio=0",
    ]
    erniecore.run(None, settings(home, out, *words))
    found = losses(out)
    assert np.mean([found[i] for i in (6, 7, 8)]) < np.mean([found[i] for i in (1, 2, 3)])


def test_a_model_that_is_only_used_keeps_the_tower_in_bfloat16(home, tmp_path):
    """A directory in bfloat16, as public ones are: the logits of rows with images are those of its values in float32."""
    export_directory(home / "base", tmp_path / "halves", options={"dtype": "bfloat16"})
    ids, media = joined_rows(example_rows(VlArchitecture.parse(load_bundle(home / "base").bundle.architecture)))
    plain, compact = (load_bundle(tmp_path / "halves", compact=flag).bundle.model for flag in (False, True))
    assert "KeptLinear" in {type(layer).__name__ for layer in compact.vision_model.sublayers()}
    np.testing.assert_allclose(logits(compact, ids, **media), logits(plain, ids, **media), rtol=1e-4, atol=1e-5)


def test_packed_images_are_those_of_separate_samples(home):
    from erniecore_formats.messages import parse
    from erniecore_sft.encoder import SftEncoder

    from erniecore.api.data import Origin
    from erniecore.data.collate import collate

    model, tokenizer = erniecore.load_model(home / "base"), erniecore.load_tokenizer(home / "base")
    lines = (home / "rows.jsonl").read_text().splitlines()[:3]
    records = [parse(json.loads(line), Origin(str(home / "rows.jsonl"), i)) for i, line in enumerate(lines, 1)]
    samples = [sample for record in records for sample in SftEncoder(tokenizer, 200).encode(record)]
    assert [len(sample.media) for sample in samples] == [0, 1, 1]

    def logits(row):
        batch = tokenizer.chat_template.complete(collate([row], pad_id=0), [row])
        given = {"position_ids": batch.position_ids, "startend_row_indices": batch.startend_row_indices, **batch.inputs}
        features = model.features(
            paddle.to_tensor(batch.input_ids), **{name: paddle.to_tensor(values) for name, values in given.items()}
        )
        return model.logits(features.hidden).numpy()[0]

    apart = np.concatenate([logits([sample]) for sample in samples])
    np.testing.assert_allclose(logits(samples), apart, atol=1e-5, rtol=0)
    other = [samples[0], *samples[:0:-1]]  # the images count
    assert np.abs(logits(other)[-1] - apart[-1]).max() > 1e-4


def tensors(out):
    from erniecore_checkpoint.reader import load_checkpoint

    checkpoint = load_checkpoint(out / "ckpt" / "step-00000004")
    return {(g, n): array.tobytes() for g, members in checkpoint.tensors.items() for n, array in members.items()}


def test_resumed_with_workers_full_training_gives_the_same_bits(home, tmp_path):
    out = tmp_path / "run"
    words = settings(home, out, "train.max_steps=4", "checkpoint.every=2", "train.learning_rate=0.01")
    erniecore.run(None, [*words, "data.workers=0"], console="none")
    whole = tensors(out)
    shutil.rmtree(out / "ckpt" / "step-00000004")
    (out / "ckpt" / "latest.json").unlink()
    erniecore.run(None, [*words, "data.workers=2", "run.resume=must"], console="none")
    assert tensors(out) == whole


def test_a_token_cache_gives_the_same_losses_and_notices_another_image(home, tmp_path):
    shutil.copytree(home / "img", tmp_path / "img")
    shutil.copy(home / "rows.jsonl", tmp_path / "rows.jsonl")
    more = ["adapter=lora", "train.max_steps=2", f"data.train={tmp_path / 'rows.jsonl'}"]
    for name, cache in (("memory", "off"), ("made", str(tmp_path / "c")), ("read", str(tmp_path / "c"))):
        erniecore.run(None, [*settings(home, tmp_path / name, *more), f"data.cache={cache}"], console="none")
    assert losses(tmp_path / "made") == losses(tmp_path / "read") == losses(tmp_path / "memory")
    for image in (tmp_path / "img").iterdir():
        Image.new("RGB", (56, 56), "black").save(image)
    erniecore.run(None, [*settings(home, tmp_path / "new", *more), f"data.cache={tmp_path / 'c'}"], console="none")
    assert losses(tmp_path / "new") != losses(tmp_path / "memory")


def test_rows_and_sequences_have_at_most_so_many_patches(home, tmp_path, monkeypatch):
    """Images of the rows have 16 and 24 patches."""
    seen = []
    complete = SeeingTemplate.complete

    def counted(template, batch, rows, **options):
        seen.extend(sum(template.patches(text) for sample in row for text in sample.media) for row in rows)
        return complete(template, batch, rows, **options)

    monkeypatch.setattr(SeeingTemplate, "complete", counted)
    words = settings(home, tmp_path / "packed", "adapter=lora", "train.epochs=1", "data.max_seq_len=200")
    erniecore.run(None, [*words, "data.max_patches=48"], console="none")
    assert sum(seen) == 6 * 16 + 12 * 24
    assert 24 < max(seen) <= 48
    words = settings(home, tmp_path / "bounded", "adapter=lora", "train.max_steps=1", "data.max_drop=0.6")
    erniecore.run(None, [*words, "data.max_patches=20"], console="none")
    report = json.loads((tmp_path / "bounded" / "data_report.json").read_text())["train"]
    assert (report["kept"], report["dropped"]) == (12, 13)
    assert report["errors"][0] | {"line": 2, "path": "$.images[0]", "code": "ERN-D039"} == report["errors"][0]
    assert "24 patches" in report["errors"][0]["found"]


def test_another_image_under_the_same_name_is_no_resumption(home, tmp_path):
    out, rows = tmp_path / "run", tmp_path / "rows.jsonl"
    Image.new("RGB", (56, 56), "red").save(tmp_path / "a.png")
    turns = [{"role": "user", "content": "<image>What color is it?"}, {"role": "assistant", "content": "red"}]
    rows.write_text(json.dumps({"messages": turns, "images": ["a.png"]}) + "\n")
    words = [*settings(home, out, "adapter=lora", "train.max_steps=2", "checkpoint.every=1"), f"data.train={rows}"]
    erniecore.run(None, words, console="none")
    shutil.rmtree(out / "ckpt" / "step-00000002")
    (out / "ckpt" / "latest.json").unlink()
    Image.new("RGB", (56, 56), "blue").save(tmp_path / "a.png")
    with pytest.raises(ErnieError, match=r"the same files give other samples than before.* images"):
        erniecore.run(None, [*words, "run.resume=must"], console="none")


def test_data_commands_count_and_show_placeholders(home, capsys):
    rows, base = str(home / "rows.jsonl"), str(home / "base")
    assert main(["data", "check", rows, "--model", base, "--max-drop", "0.05", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["rows"], report["dropped"], report["tokens"]["samples"]) == (25, 1, 24)
    assert report["patches"]["patches"] == 6 * 16 + 12 * 24
    sizes = report["patches"]["per_sample"]
    assert (report["patches"]["samples"], sizes["min"], sizes["max"]) == (18, 16, 24)
    assert main(["data", "check", rows, "--model", base, "--max-drop", "0.05"]) == 0
    assert "18 samples with images, 384 patches, at most 24 in one" in capsys.readouterr().out
    assert main(["data", "show", rows, "--model", base, "--line", "2", "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert shown["spans"][0]["text"].count(PLACEHOLDER) == 6
    assert [span["text"] for span in shown["spans"] if span["loss"]] == ["green</s>"]
