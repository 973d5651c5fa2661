"""A hub on localhost, which both clients find, in an empty directory with caches of its own."""

import pytest
from hub_server import Hub


@pytest.fixture
def hub(monkeypatch, tmp_path):
    served = Hub()
    for name in ("HF_ENDPOINT", "MODELSCOPE_ENDPOINT"):
        monkeypatch.setenv(name, served.url)
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "MODELSCOPE_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    # read when the library is imported, perhaps for an evaluation, which fetches nothing
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.chdir(tmp_path)
    yield served
    served.close()
