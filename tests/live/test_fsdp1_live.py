"""FSDP1 itself under the lines written for it: its collectives, in their order, are those of the program (gloo)."""

from __future__ import annotations

import json
import os

import pytest

from osfmodel import Layer, Workload
from osfmodel.cost.pricing import Pricing
from osfmodel.engine.strategies import lower
from osfmodel.targets import fsdp1
from osfmodel.targets.fsdp1 import FlatKnobs
from tests.live.launching import told

if not os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    pytest.importorskip("torch", reason="torch is not installed: pip install torch")

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore")]
RANKS = 3
HIDDEN = (11, 20, 33, 3)
"""Widths of four blocks of two linear layers, between one of 5 to 7 and one of 7 to 13."""
KNOBS = [
    FlatKnobs(),
    FlatKnobs(reshard=False),
    FlatKnobs(backward_prefetch=fsdp1.POST),
    FlatKnobs(backward_prefetch=fsdp1.NEVER),
    FlatKnobs(forward_prefetch=True),
    FlatKnobs(("blocks.0", "blocks.2"), aligned=True),
    FlatKnobs(gather_dtype="bfloat16", reduce_dtype="float32"),
    FlatKnobs(()),
]
SCRIPT = """
import json, sys
import torch, torch.distributed as dist

hidden, texts = json.loads(sys.argv[2]), sys.argv[3:]
dist.init_process_group("gloo")
sent = []

def spied(name, place):
    original = getattr(dist, name)

    def spy(*given, **named):
        whole = given[place] if isinstance(given[place], list) else [given[place]]
        sent.append((name.removesuffix("_single"), sum(one.numel() * one.element_size() for one in whole)))
        return original(*given, **named)

    setattr(dist, name, spy)

spied("all_gather", 0)
spied("reduce_scatter_single", 1)

class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = torch.nn.Linear(7, width), torch.nn.Linear(width, 7)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = torch.nn.Linear(5, 7), torch.nn.Linear(7, 13)
        self.blocks = torch.nn.ModuleList(map(Block, hidden))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

def formed(text):
    names = {"model": Model(), "torch": torch}
    exec(text.replace("    auto_wrap", "    device_id=torch.device('cpu'),\\n    auto_wrap"), names)
    model = names["model"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        sent.clear()
        model(torch.ones(4, 5)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(sent)

found = [formed(text) for text in texts]
if dist.get_rank() == 0:
    open(sys.argv[1], "w").write(json.dumps(found))
"""


def workload():
    """In the order of the forward."""
    rows = [("first.weight", 35), ("first.bias", 7)]
    for number, width in enumerate(HIDDEN):
        block = f"blocks.{number}"
        rows += [(f"{block}.up.weight", 7 * width), (f"{block}.up.bias", width)]
        rows += [(f"{block}.down.weight", 7 * width), (f"{block}.down.bias", 7)]
    rows += [("head.weight", 91), ("head.bias", 13)]
    return Workload("model", tuple(Layer(name, 1e-3, 2e-3, 4 * size) for name, size in rows))


def test_real_collectives_are_those_predicted(tmp_path):
    lines = [fsdp1.TARGET.text.render(knobs, workload()) for knobs in KNOBS]
    found = told(SCRIPT, RANKS, tmp_path, json.dumps(HIDDEN), *lines)
    own = []
    for knobs in KNOBS:
        program = lower(workload(), fsdp1.to_plan(knobs, workload(), Pricing.free(RANKS)), Pricing.free(RANKS))
        own.append([[one.kind, one.size] for one in program.operations if one.size])
    assert found == own
    assert len({json.dumps(one) for one in own}) == len(KNOBS) - 1  # POST and PRE send in the same order
