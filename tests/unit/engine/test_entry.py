"""Loading from Python: what is wrong with a directory is said, never raised raw."""

import pytest

import erniecore
from erniecore.errors import CheckpointError


@pytest.mark.parametrize("text", ["{", "[]", '{"vocab_size": 3}'])
def test_tokenizer_beside_a_broken_config_is_a_clear_error(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        erniecore.load_tokenizer(tmp_path)
