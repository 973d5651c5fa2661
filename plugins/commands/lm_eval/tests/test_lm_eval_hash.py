"""The hash of a model's content: it changes with every file that matters, and with nothing else."""

import shutil

from erniecore_generation.model_hash import model_hash


def test_the_hash_is_of_what_makes_the_model(talker, tmp_path):
    model, copy = talker / "model", tmp_path / "copy"
    shutil.copytree(model, copy)
    first = model_hash(model)
    assert model_hash(copy) == first  # wherever it lies
    (copy / "README.md").write_text("words")
    assert model_hash(copy) == first
    (copy / "inner").mkdir()
    (copy / "inner" / "more.txt").write_text("1")
    second = model_hash(copy)
    assert second != first
    (copy / "inner" / "more.txt").write_text("2")
    assert model_hash(copy) not in (first, second)


def test_an_adapter_is_told_from_a_file_of_the_model(talker, tmp_path):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    model = talker / "model"
    assert len({model_hash(model), model_hash(model, adapter)}) == 2
