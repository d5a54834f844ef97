"""Refusals of ``.ci/release``; the build itself takes minutes, and is no test."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import yaml

from osfmodel.entities.version import __version__
from tests.conftest import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILES = (".ci/release", ".ci/lib.sh", ".ci/smoke", "CHANGELOG.md", "CITATION.cff", "osfmodel/entities/version.py")


@pytest.fixture
def tree(tmp_path):
    """A repository of the files that the check reads, with version 9.8.7 in all of them."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
        (tmp_path / name).chmod((ROOT / name).stat().st_mode)
    (tmp_path / "osfmodel/entities/version.py").write_text('"""The version."""\n\n__version__ = "9.8.7"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 9.8.7 - 2030-01-02\n\n* new\n\n## 0.1.0 - 2026-11-23\n")
    (tmp_path / "CITATION.cff").write_text("version: 9.8.7\ndate-released: 2030-01-02\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def commit(tree):
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "add", "-A"], cwd=tree, check=True)
    subprocess.run(["git", *identity, "commit", "-qm", "x"], cwd=tree, check=True)


def release(tree):
    """The result where no Python is found, so that nothing is built."""
    tools = tree / "tools"
    tools.mkdir(exist_ok=True)
    (tree / ".git/info/exclude").write_text("tools\n")
    (tools / "python3").write_text("#!/bin/sh\necho builds >&2\nexit 7\n")
    (tools / "python3").chmod(0o755)
    path = f"{tools}:/usr/bin:/bin"
    return subprocess.run([".ci/release"], cwd=tree, env={"PATH": path}, capture_output=True, text=True)


def test_a_clean_tree_of_one_version_is_built(tree):
    commit(tree)
    done = release(tree)
    assert (done.returncode, done.stderr) == (7, "builds\n")


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("CHANGELOG.md", "# Changelog\n\n## Unreleased\n\n* new\n", "begins with 'Unreleased'"),
        ("CHANGELOG.md", "# Changelog\n\n## 9.8.6 - 2030-01-02\n", "begins with '9.8.6 - 2030-01-02'"),
        ("CHANGELOG.md", "# Changelog\n\n## 9.8.7 - soon\n", "write '## 9.8.7 - YYYY-MM-DD' there"),
        ("CITATION.cff", "version: 9.8.6\ndate-released: 2030-01-02\n", "CITATION.cff does not have"),
        ("CITATION.cff", "version: 9.8.7\ndate-released: 2030-01-03\n", "CITATION.cff does not have"),
    ],
)
def test_versions_that_disagree_are_refused(tree, name, text, reason):
    (tree / name).write_text(text)
    commit(tree)
    done = release(tree)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert reason in done.stderr


def test_a_tree_with_changes_is_refused(tree):
    commit(tree)
    (tree / "new.txt").write_text("x")
    done = release(tree)
    assert done.returncode == 1
    assert "the working tree has changes: commit or stash them" in done.stderr


def test_what_publishes_agrees_with_the_project():
    """Versions, dependencies and Pythons are written once more for conda and for the workflow."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    recipe = yaml.safe_load((ROOT / ".ci/conda/recipe.yaml").read_text(encoding="utf-8"))
    wanted = {re.sub(r"\s", "", one.partition(";")[0]) for one in project["dependencies"]}
    assert {one.replace(" ", "") for one in recipe["requirements"]["run"]} == {
        *wanted,
        f"python{project['requires-python']}",
    }
    assert recipe["context"]["version"] == __version__
    assert recipe["build"]["python"]["entry_points"] == [f"{name} = {of}" for name, of in project["scripts"].items()]
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]
    pythons = [one.rpartition(" ")[2] for one in project["classifiers"] if ":: 3." in one]
    assert jobs["quick"]["strategy"]["matrix"]["python"] == pythons
    image = (ROOT / ".ci/Containerfile").read_text(encoding="utf-8")
    assert re.search(r' AS checks\n(.+\n)*CMD \["\.ci/run"\]\n\n', image)
    assert len(image.splitlines()) <= 15
    assert any("--target checks -t checks" in step.get("run", "") for step in jobs["everything"]["steps"])


@pytest.mark.parametrize("name", ["bug", "prediction"])
def test_issues_ask_for_the_command_and_its_output(name):
    form = yaml.safe_load((ROOT / f".github/ISSUE_TEMPLATE/{name}.yml").read_text(encoding="utf-8"))
    labels = " ".join(part["attributes"]["label"].lower() for part in form["body"] if part.get("validations"))
    assert "command" in labels
    assert "output" in labels
