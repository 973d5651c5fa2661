"""A directory with runs, and the page on it: in this process."""

import shutil

import pytest
from erniecore_webui.app import create_app
from erniecore_webui.security import secret
from erniecore_webui.site import Site
from starlette.testclient import TestClient
from webui_runs import write_run

HOST = "127.0.0.1:8765"


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "first")
    write_run(tmp_path / "runs" / "group" / "second", status="")
    found = Site(tmp_path / "runs")
    found.admit([HOST])
    yield found
    found.stopping.set()
    shutil.rmtree(found.state)


@pytest.fixture
def stranger(site):
    """A browser that knows nothing."""
    return TestClient(create_app(site), base_url=f"http://{HOST}", follow_redirects=False)


@pytest.fixture
def browser(site):
    """A browser that was given the token, with the secret of forms in its headers."""
    client = TestClient(create_app(site), base_url=f"http://{HOST}")
    assert client.get(f"/?token={site.token}").status_code == 200
    client.headers["x-csrf-token"] = secret(site.token, "csrf")
    client.headers["origin"] = f"http://{HOST}"
    return client
