"""ERNIEKit's data keys and parallel degrees as sources, mixes, packing and layouts."""

import pytest
from erniecore_erniekit.convert import convert, purpose_of

TWO = {
    "train_dataset_path": "a.jsonl, b.json",
    "train_dataset_type": "erniekit,alpaca",
    "train_dataset_prob": "0.8,0.2",
}


def settings(**given):
    outcome = convert({"do_train": True, **given})
    assert not outcome.problems
    return {key: setting.value for key, setting in outcome.settings.items()}


def texts(**given):
    return " ".join(n.text for n in convert({"do_train": True, **given}).notes)


def test_lists_become_sources():
    made = settings(**TWO)
    assert made["data.train"] == [
        {"path": "a.jsonl", "format": "erniekit", "weight": 0.8},
        {"path": "b.json", "format": "alpaca", "weight": 0.2},
    ]
    assert made["data.mix"] == "weighted"


@pytest.mark.parametrize(
    ("old", "new"),
    [("interleave_under", "interleave-under"), ("interleave_over", "interleave-over"), ("random", "weighted")],
)
def test_mixes(old, new):
    assert settings(**TWO, mix_strategy=old)["data.mix"] == new


def test_concat_has_no_weights():
    made = settings(**TWO, mix_strategy="concat")
    assert made["data.mix"] == "concat"
    assert made["data.train"] == [{"path": "a.jsonl", "format": "erniekit"}, {"path": "b.json", "format": "alpaca"}]


def test_an_epoch_of_several_sources_is_another_one():
    assert "sum of size times probability" in texts(**TWO)
    assert "sum of size times probability" not in texts(**TWO, max_steps=5)


def test_chat_rows_and_held_out_rows():
    made = settings(train_dataset_path="a", train_dataset_type="chatml", eval_dataset_path="b", do_eval=True)
    assert made["data.train"] == [{"path": "a", "format": "messages"}]
    assert made["data.eval"] == [{"path": "b", "format": "erniekit"}]


def test_pretraining_rows_have_a_target_alone():
    made = settings(stage="PT", train_dataset_path="a.jsonl", train_dataset_type="erniekit")
    assert made["data.train"] == [{"path": "a.jsonl", "format": "text"}]
    assert made["formats.text.field"] == "tgt"


def test_token_files():
    made = settings(stage="PT", dataset_type="pretrain", input_dir="0.4 /a 0.6 /b", split="998,2", do_eval=True)
    assert [(s["path"], s["weight"]) for s in made["data.train"]] == [("/a", 0.4), ("/b", 0.6)]
    assert made["data.eval_fraction"] == pytest.approx(0.002)
    assert made["data.mix"] == "weighted"


def test_text_beside_images():
    made = settings(
        stage="VL-SFT",
        train_dataset_path="v.jsonl",
        text_dataset_path="t.jsonl",
        dataset_name="FunctionCallSFTReader",
        modality_ratio="[3,1]",
    )
    assert made["data.train"] == [
        {"path": "v.jsonl", "weight": 3.0},
        {"path": "t.jsonl", "format": "messages", "weight": 1.0},
    ]


@pytest.mark.parametrize(
    ("given", "packing"),
    [
        ({"packing": True}, "greedy"),
        ({"packing": True, "greedy_intokens": False}, "sequential"),
        ({"greedy_intokens": False}, "sequential"),
        ({"packing": False}, "none"),
        ({"padding": False}, "padding-free"),
    ],
)
def test_packing(given, packing):
    assert settings(**given)["data.packing"] == packing


def test_lengths():
    assert settings()["data.max_seq_len"] == 4096
    assert settings(max_seq_len="8_192")["data.max_seq_len"] == 8192


@pytest.mark.parametrize(
    ("given", "key", "message"),
    [
        ({"train_dataset_path": "a", "train_dataset_type": "erniekt"}, "train_dataset_type", "did you mean erniekit?"),
        ({"train_dataset_path": "a,b", "train_dataset_prob": "1"}, "train_dataset_prob", "1 probabilities for 2 paths"),
        ({**TWO, "mix_strategy": "randm"}, "mix_strategy", "did you mean random?"),
        ({"dataset_type": "mapp"}, "dataset_type", "must be"),
        ({"max_seq_len": "long"}, "max_seq_len", "must be a whole number"),
        ({"input_dir": "0.4 /a 0.6"}, "input_dir", "in turn"),
    ],
)
def test_what_means_nothing_is_a_problem(given, key, message):
    assert message in convert(given).problems[key]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"tensor_parallel_degree": 1, "sharding": "stage1"}, {"parallel.name": "single"}),
        (
            {"tensor_parallel_degree": 4, "pipeline_parallel_degree": 2, "sharding": "stage2"},
            {"parallel.name": "hybrid", "parallel.tensor": 4, "parallel.pipeline": 2, "parallel.sharding_stage": 2},
        ),
        (
            {"tensor_parallel_degree": 8, "moe_group": "mp"},
            {"parallel.name": "hybrid", "parallel.tensor": 8},
        ),
        (
            {"data_parallel_degree": 2, "moe_group": "dp"},
            {"parallel.name": "hybrid", "parallel.data": 2, "parallel.expert": 2},
        ),
    ],
)
def test_degrees(given, expected):
    made = settings(**given)
    assert {key: value for key, value in made.items() if key.startswith("parallel.")} == expected


@pytest.mark.parametrize(
    ("given", "purpose"),
    [
        ({"do_train": True}, "train"),
        ({"train_dataset_path": "a"}, "train"),
        ({"train_dataset_path": "a", "do_train": False}, "eval"),
        ({"do_eval": True, "eval_dataset_path": "a"}, "eval"),
        ({"port": 8188}, "chat"),
        ({"max_shard_size": 5}, "export"),
        ({"stage": "SFT"}, "train"),
    ],
)
def test_what_a_file_is_for(given, purpose):
    assert purpose_of(given) == purpose


def test_visualdl_on_request():
    assert settings(report_to="visualdl", logging_dir="./vdl_log")["callbacks.visualdl.directory"] == "vdl_log"
    assert "logging_dir" in convert({"logging_dir": "x"}).dropped


def test_values_without_content_say_nothing():
    outcome = convert({"output_dir": "None", "hf_hub_id": None, "text_dataset_path": "", "lora_rank": None})
    assert not outcome.mapped
    assert set(outcome.dropped) == {"output_dir", "hf_hub_id", "text_dataset_path", "lora_rank"}


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"from_hf_hub": True}, "hf:baidu/ERNIE-4.5-0.3B-PT"),
        ({"download_hub": "huggingface"}, "hf:baidu/ERNIE-4.5-0.3B-PT"),
        ({"download_hub": "modelscope"}, "ms:baidu/ERNIE-4.5-0.3B-PT"),
        ({"from_modelscope": True}, "ms:baidu/ERNIE-4.5-0.3B-PT"),
        ({"download_hub": "aistudio"}, "baidu/ERNIE-4.5-0.3B-PT"),
        ({}, "baidu/ERNIE-4.5-0.3B-PT"),
    ],
)
def test_a_hub_that_the_file_names_is_asked(keys, path):
    outcome = convert({"model_name_or_path": "baidu/ERNIE-4.5-0.3B-PT", **keys})
    assert outcome.settings["model.path"].value == path
    assert {*keys} <= {*outcome.mapped, *outcome.dropped}
    assert ("model.path=hf:" in str(outcome.notes)) == (path[2] != ":")
