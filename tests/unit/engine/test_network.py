"""What goes from a shell to processes on other machines."""

from erniecore.engine.processes.network import sent_along


def test_settings_are_sent_along_and_secrets_stay():
    shell = {
        "ERNIE_TRAIN__LEARNING_RATE": "1e-4", "ERNIE_MODEL__TOKENIZER": "here", "ERNIE_API_KEY": "sk-1", "ERNIECORE_SECRET": "s",
        "ERNIE_HUB_TOKEN": "hf", "OMP_NUM_THREADS": "1", "HOME": "/root",
    }  # fmt: skip
    assert sent_along(shell, ("ERNIE", "OMP_")) == {
        "ERNIE_MODEL__TOKENIZER": "here",
        "ERNIE_TRAIN__LEARNING_RATE": "1e-4",
        "OMP_NUM_THREADS": "1",
    }
