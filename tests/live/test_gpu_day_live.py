"""benchmarks/gpu_day.sh in its small form, and the page that it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

if os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    import torch  # noqa: F401
else:
    pytest.importorskip("torch", reason="torch is not installed: pip install torch")

from benchmarks import gpu_day
from tests.conftest import ROOT

pytestmark = pytest.mark.live
ROW = {
    "way": "fsdp2",
    "world": 1,
    "step": "2-128-4-64-4-eager",
    "measured": {"seconds": 0.5, "allocated": 100 * 2**20, "reserved": 200 * 2**20},
    "said": {"seconds": 0.4, "low": 0.3, "high": 0.6, "allocated": 90 * 2**20, "reserved": None, "fits": "yes"},
}


def test_the_page_has_errors_and_what_failed():
    found = {"step a": {"found": ROW}, "ranks ddp 2": {"failed": "RuntimeError: no"}, "traces": {"found": "Imbalance"}}
    lines = list(gpu_day.page({"machine": "a GPU", "parts": found}))
    cells = "500 ms | 400 ms | -20% | yes | 100 MiB | -10% | 200 MiB | - | - | - | yes"
    assert f"| 1 fsdp2 | 2-128-4-64-4-eager | {cells} |" in lines
    assert "\nranks ddp 2 failed: RuntimeError: no" in lines
    assert lines[lines.index("```") + 1] == "Imbalance"


def test_two_processes_are_not_held_against_a_time():
    assert gpu_day.cells({**ROW, "world": 2})[:4] == ["500 ms", "-", "-", "-"]


@pytest.mark.long
def test_a_small_day_runs_to_its_end(tmp_path):
    done = subprocess.run(
        ["benchmarks/gpu_day.sh", str(tmp_path), "--small"], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    parts = json.loads((tmp_path / "gpu-day.json").read_text(encoding="utf-8"))["parts"]
    assert all("found" in one for one in parts.values())
    assert (tmp_path / "gpu-day.md").read_text(encoding="utf-8").count("| 1 fsdp2 |") == len(gpu_day.SMALL)
