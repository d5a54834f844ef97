"""Reports of training that ran out of memory, with their settings: most are said not to fit, or only perhaps."""

import csv
import json
import re
import shlex
from pathlib import Path

import pytest

from tests.commands import invoke

REPORTS = Path(__file__).parents[2] / "profiles/published/out-of-memory.csv"


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.long)])
def test_most_reports_are_said_not_to_fit_or_to_be_tight(monkeypatch, every):
    """One report of so many; without remedies, which test_rescues.py has."""
    monkeypatch.setattr("osfmodel.cli.scale.Rescuer.rescues", lambda self: [])
    with REPORTS.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 20
    assert all(row["source"].startswith("https://github.com/") and row["stated"] for row in rows)
    said = []
    for row in rows[::every]:
        asked = [row["words"], "--cluster", row["cluster"], "--workers", row["gpus"], "--plan", row["plan"]]
        done = invoke(["scale", *asked, *shlex.split(row["options"]), "--json"])
        assert done.exit_code == 0, (row, done.output)
        (point,) = json.loads(done.stdout)["points"]
        assert point["step_time_s"] > 0
        assert point["peak_memory_bytes"] > 0
        said.append(point["fits"])
    assert sum(one != "yes" for one in said) >= 0.8 * len(said), said


@pytest.mark.parametrize(
    ("options", "said", "silent"),
    [
        (["--plan", "fsdp2", "--plan", "ddp"], ["ddp needs 151.1 GiB of"], ["fsdp2", "or more"]),
        (["--batch-size", "2"], ["wfbp needs", "single, ", " and others need as much or more", "--batch-size 2"], []),
        (["--plan", "fsdp2"], [], ["fit"]),
    ],
)
def test_predict_warns_of_steps_that_do_not_fit(options, said, silent):
    """With the command that has what fits; profiles, whose GPU no words name, are not judged."""
    asked = ["llama3-8b:h100,bf16", "--cluster", "nccl:h100x8,400Gbps", "--workers", "8,16"]
    shown = invoke(["predict", *asked, *options]).stderr
    assert all(one in shown for one in said)
    assert not any(one in shown for one in silent)
    if said:
        (command,) = re.findall(r"to search for what fits: osf (.*)", shown)
        assert invoke(shlex.split(command)).exit_code == 0
        assert command.startswith(f"scale {shlex.join(asked[:3])} --workers 16")
