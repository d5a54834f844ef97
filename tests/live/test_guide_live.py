"""The examples of the pages about training under a plan, with two ranks: they run, and train as DDP does.

And the recording of docs/how-to/why-is-it-slow.md, whose traces are explained.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.live.launching import ENDING, free_port, under_torchrun
from tests.repository.test_docs import blocks

if os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

pytestmark = pytest.mark.live
PAGE = ROOT / "docs/how-to/train-under-a-plan.md"
RECORDING = ROOT / "docs/how-to/why-is-it-slow.md"
TRAINING = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = [torch.ones(8, 64)] * 15

def train(batch):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""
"""A reader's script before the recording."""
LIMIT = 300
"""Seconds after which a command is killed."""


def run(command: list[str], folder: Path) -> str:
    """The output of a command, which must end well."""
    found = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    places = os.pathsep.join([str(ROOT), str(folder), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PATH": found, "PYTHONPATH": places, "OMP_NUM_THREADS": "1"}
    environment |= {"PET_MASTER_PORT": str(free_port())}  # what torchrun takes for --master-port
    ended = subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True, timeout=LIMIT)
    assert ended.returncode == 0, ended.stdout[-1000:] + ended.stderr[-3000:]
    return ended.stdout


@pytest.mark.long
def test_the_complete_example(tmp_path):
    """Its commands, as they stand, print the same losses under DDP and under the plan."""
    (tmp_path / "train.py").write_text(blocks(PAGE, "py")[0])
    (commands,) = blocks(PAGE, "sh")
    losses = run(["bash", "-e", "-c", commands], tmp_path).splitlines()
    assert [line.split(":")[0] for line in losses] == 2 * [f"step {number}" for number in range(10, 60, 10)]
    assert losses[:5] == losses[5:]
    assert float(losses[4].split()[-1]) < float(losses[0].split()[-1])
    assert json.loads((tmp_path / "plan.json").read_text())["plan"]["forward_overlap"]


def test_the_recording_is_explained(tmp_path):
    """As it stands, in a folder where nothing is yet."""
    (recipe,) = blocks(RECORDING, "py")
    (tmp_path / "train.py").write_text(f"{TRAINING}\n{recipe}\n{ENDING}")
    run(["torchrun", "--nproc-per-node", "2", "train.py"], tmp_path)
    said = run([sys.executable, "-m", "osfmodel", "explain", "traces"], tmp_path)
    assert "2 workers, a step takes" in said
    assert "of 5 steps" in said


@pytest.mark.parametrize("part", ["own", pytest.param("lightning", marks=pytest.mark.long), "accelerate"])
def test_the_loops_train_as_with_ddp(part, tmp_path):
    """As they stand, on from a checkpoint, and without what must wait for all gradients; bitwise, under two plans."""
    if part != "own" and find_spec(part) is None:
        pytest.skip(f"{part} is not installed: pip install {part}")
    under_torchrun(["-m", "tests.live.guiding", part], 2, tmp_path)
    for rank in range(2):
        told: dict[str, Any] = json.loads((tmp_path / f"{part}-{rank}.json").read_text())
        if part == "lightning":
            assert told.pop("refused") == "the executor trains with one optimizer, not 2"
        assert set(told) >= ({"own"} if part == "own" else {part, f"{part} resumed", f"{part} plain"})
        for case, distances in told.items():
            assert distances == {"merged plain": 0.0, "mingled all": 0.0}, case


def test_release_and_sparse_buckets_train_as_the_page_says(tmp_path):
    """Bit for bit: with release and recomputation as without; sparse buckets saved and resumed as if never ended."""
    under_torchrun(["-m", "tests.live.guiding", "less"], 2, tmp_path)
    for rank in range(2):
        told: dict[str, float] = json.loads((tmp_path / f"less-{rank}.json").read_text())
        assert told.pop("dense") > 0
        assert told == {"released": 0.0, "sparse": 0.0, "mirrored": 0.0}
