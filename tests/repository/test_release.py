"""Refusals of ``.ci/release``; the build itself takes minutes, and is no test."""

from __future__ import annotations

import subprocess

import pytest

from tests.conftest import ROOT

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
