"""Lines for several micro-batches, pasted and run: one step with them is one step with the whole batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from osfmodel import CONFIG_TARGETS
from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import FREE
from osfmodel.entities.sharding import EACH, LAST, LAST_KEPT
from osfmodel.entities.workload import Layer, Workload
from osfmodel.solve.solution import Limits

if not os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    pytest.importorskip("torch", reason="torch is not installed: pip install torch")

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore")]
SCRIPT = """
import json, os, sys
import torch, torch.distributed as dist

lines = sys.argv[1]
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=0, world_size=1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
twin = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
twin.load_state_dict(model.state_dict())
sent = []
for name in ("all_reduce", "reduce_scatter_single"):
    def spied(*given, original=getattr(dist, name), name=name, **named):
        sent.append(name)
        return original(*given, **named)
    setattr(dist, name, spied)
names = {"model": model}
exec(lines, names)
batches = [torch.randn(4, 8) for _ in range(3)]
names["train_step"](batches, lambda batch: names["model"](batch).pow(2).mean(),
                    torch.optim.SGD(names["model"].parameters(), lr=0.1))
optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
twin(torch.cat(batches)).pow(2).mean().backward()
optimizer.step()
whole = lambda tensor: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
off = [float((whole(a) - b).abs().max()) for a, b in zip(names["model"].parameters(), twin.parameters())]
print(json.dumps({"off": max(off), "scattered": sent.count("reduce_scatter_single")}))
sys.stdout.flush()
os._exit(0)  # gloo's threads may end the process otherwise
"""


@pytest.mark.parametrize(("name", "form"), [("ddp", EACH), ("fsdp2", EACH), ("fsdp2", LAST), ("fsdp2", LAST_KEPT)])
def test_a_step_of_three_micro_batches_is_one_of_the_whole_batch(tmp_path, name, form):
    layers = tuple(
        Layer(f"{number}.{kind}", 1e-3, 1e-3, size)
        for number, kind, size in [(0, "weight", 512), (0, "bias", 64), (1, "weight", 256), (1, "bias", 16)]
    )
    workload, pricing, target = Workload("two", layers), Pricing.of(FREE, workers=1), CONFIG_TARGETS[name]
    plan = target.convert.default(workload, pricing)
    knobs = target.convert.complete(
        target.convert.from_plan(plan, workload, pricing, Limits()), workload, [pricing], Limits()
    )
    lines = target.text.written(knobs, workload, micro_batches=3, form=form)
    words = [sys.executable, "-c", SCRIPT, lines, str(tmp_path / "store")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["off"] < 1e-6
    assert name != "fsdp2" or found["scattered"] <= 1
