"""The server of the page answers while runs have the memory: it never imports paddle."""

import subprocess
import sys

PAGES = """
import sys
from pathlib import Path
from erniecore_webui.app import create_app
from erniecore_webui.navigation import in_navigation
from erniecore_webui.site import Site
from starlette.testclient import TestClient

site = Site(Path("runs"))
site.admit(["127.0.0.1:1"])
browser = TestClient(create_app(site), base_url="http://127.0.0.1:1")
assert browser.get(f"/?token={site.token}").status_code == 200
shown = [*(page.path for page in in_navigation()), "/run/first"]
answers = {path: browser.get(path).status_code for path in shown}
assert set(answers.values()) == {200}, answers
print(len(shown), *(name for name in ("paddle", "torch", "transformers") if name in sys.modules))
"""


def test_pages_import_no_framework(site, tmp_path):
    done = subprocess.run([sys.executable, "-c", PAGES], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    count, *frameworks = done.stdout.split()
    assert int(count) > 5
    assert not frameworks
