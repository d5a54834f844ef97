"""The comparison of commands in two checkouts notices what is planted, and nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from tests.conftest import ROOT


@pytest.mark.long
def test_a_planted_difference_is_noticed(tmp_path):
    """A word of every error in the copy: of two commands the one that is refused differs, and the answer does not."""
    shutil.copytree(ROOT / "osfmodel", tmp_path / "osfmodel")
    (tmp_path / "profiles").symlink_to(ROOT / "profiles")
    path = tmp_path / "osfmodel/cli/app.py"
    path.write_text(path.read_text(encoding="utf-8").replace("f\"osf: {' '", "f\"OSF: {' '"), encoding="utf-8")
    words = [sys.executable, "-P", "benchmarks/golden.py", "--before", str(tmp_path), "--seed", "1", "--count", "2"]
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (1, "")
    assert re.findall(r"\n    (.*?)OSF", found.stdout) == ["stderr: line 1: '"]
    assert found.stdout.endswith(": 1 differ\n")
