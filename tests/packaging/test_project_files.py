"""Files that a hosting service and pre-commit read: what they call exists here, on the Pythons that are supported."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yaml"))
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yaml"))


def jobs():
    return [job for path in WORKFLOWS for job in yaml.safe_load(path.read_text())["jobs"].values()]


def hooks():
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert {repo["repo"] for repo in repos} == {"local"}, "hooks download nothing"
    return [hook for repo in repos for hook in repo["hooks"]]


def test_only_targets_of_the_makefile_are_called():
    called = [step["run"] for job in jobs() for step in job["steps"] if "run" in step]
    called += [hook["entry"] for hook in hooks()]
    called += re.findall(r"`(make .*?)`", (ROOT / ".github/pull_request_template.md").read_text())
    targets = set(re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split())
    found = [line.split() for line in called]
    assert len(found) >= 8
    assert [line for line in found if line[0] != "make" or line[1] not in targets] == []


def test_every_supported_python_has_a_job():
    versions = []
    for job in jobs():
        (asked,) = (step["with"]["python-version"] for step in job["steps"] if "setup-python" in step.get("uses", ""))
        versions += job["strategy"]["matrix"]["python"] if "matrix" in asked else [asked]
    supported = re.search(r"set -- (3\.\d+(?: 3\.\d+)*)", (ROOT / ".ci/pythons").read_text())[1].split()
    assert sorted(versions) == sorted(supported)


def test_workflows_may_only_read():
    assert WORKFLOWS
    assert all(yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"} for path in WORKFLOWS)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_have_what_the_service_demands(path):
    form = yaml.safe_load(path.read_text())
    assert form["name"]
    assert form["description"]
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len(set(ids)) > 0
    assert all(field["attributes"]["label"] for field in form["body"])
    assert all(field["attributes"]["options"] for field in form["body"] if field["type"] == "dropdown")
