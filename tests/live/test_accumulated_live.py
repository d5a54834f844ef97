"""Lines for several micro-batches, pasted and run on two ranks: one step with them is one step with the whole batch."""

from __future__ import annotations

import os

import pytest

from osfmodel import CONFIG_TARGETS
from osfmodel.cost.pricing import Pricing
from osfmodel.engine.strategies import lower
from osfmodel.entities.modules import in_micro_batches
from osfmodel.entities.sharding import EACH, LAST, LAST_KEPT
from osfmodel.entities.workload import Layer, Workload
from osfmodel.solve.solution import Limits
from tests.live.launching import told

if not os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    pytest.importorskip("torch", reason="torch is not installed: pip install torch")

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore")]
RANKS, COUNT = 2, 3
PRICING = Pricing.free(RANKS)
SCRIPT = """
import json, sys
import torch, torch.distributed as dist

answer, lines, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
twin = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
twin.load_state_dict(model.state_dict())
sent = []
for name in ("all_gather_single", "reduce_scatter_single"):
    def spied(*given, original=getattr(dist, name), name=name, **named):
        sent.append(name.removesuffix("_single"))
        return original(*given, **named)
    setattr(dist, name, spied)
names = {"model": model}
exec(lines, names)
batches = [torch.randn(4, 8) for _ in range(count)]
names["train_step"](batches, lambda batch: names["model"](batch).pow(2).mean(),
                    torch.optim.SGD(names["model"].parameters(), lr=0.1))
optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
twin(torch.cat(batches)).pow(2).mean().backward()
optimizer.step()
order = list(sent)
whole = lambda tensor: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
off = max(float((whole(a) - b).detach().abs().max()) for a, b in zip(names["model"].parameters(), twin.parameters()))
if dist.get_rank() == 0:
    json.dump({"off": off, "sent": order}, open(answer, "w"))
"""


@pytest.mark.parametrize(("name", "form"), [("ddp", EACH), ("fsdp2", EACH), ("fsdp2", LAST), ("fsdp2", LAST_KEPT)])
def test_a_step_of_three_micro_batches_is_one_of_the_whole_batch(tmp_path, name, form):
    """FSDP2 gathers and reduces as the program of the form does, in the same order."""
    layers = tuple(
        Layer(f"{number}.{kind}", 1e-3, 1e-3, size)
        for number, kind, size in [(0, "weight", 512), (0, "bias", 64), (1, "weight", 256), (1, "bias", 16)]
    )
    workload, target = Workload("two", layers), CONFIG_TARGETS[name]
    plan = target.convert.default(workload, PRICING)
    knobs = target.convert.complete(
        target.convert.from_plan(plan, workload, PRICING, Limits()), workload, [PRICING], Limits()
    )
    lines = target.text.written(knobs, workload, micro_batches=COUNT, form=form)
    found = told(SCRIPT, RANKS, tmp_path, lines, str(COUNT))
    assert found["off"] < 1e-6
    if name == "fsdp2":
        program = lower(workload, in_micro_batches(plan, COUNT, form), PRICING)
        assert found["sent"] == [one.kind for one in program.operations if one.size and one.kind != "copy"]
