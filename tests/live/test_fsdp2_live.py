"""FSDP2 itself under the lines written for it: its collectives, in their order, are those of the program (gloo)."""

from __future__ import annotations

import json
import os
from itertools import pairwise

import pytest

from osfmodel import Layer, Workload
from osfmodel.cost.pricing import Pricing
from osfmodel.engine.strategies import lower
from osfmodel.targets import fsdp2
from osfmodel.targets.fsdp2 import FsdpKnobs
from tests.live.launching import told

if not os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    pytest.importorskip("torch", reason="torch is not installed: pip install torch")

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore")]
KINDS = ("all_gather", "reduce_scatter")
WIDTHS = [16, 32, 64, 16, 8, 128]
"""Inputs and outputs of five linear layers, even so that two ranks share without padding.

The fourth is inside a module that has a parameter of its own, which comes after it in forward, and so is ready first.
"""
KNOBS = [
    FsdpKnobs(),
    FsdpKnobs(()),
    FsdpKnobs((("0", "1"), ("2",), ("3", "4"))),
    FsdpKnobs((("0",), ("1", "2", "3"), ("4",)), forward_prefetch=2, backward_prefetch=2),
    FsdpKnobs((("0",), ("1",), ("2",), ("3",)), backward_prefetch=3),
]
SCRIPT = """
import json, sys
import torch, torch.distributed as dist

widths, lines = json.loads(sys.argv[2]), sys.argv[3:]
dist.init_process_group("gloo")
sent = []

def spied(name, place):
    original = getattr(dist, name)

    def spy(*given, **named):
        whole = given[place] if len(given) > place else named["output" if place == 0 else "input"]
        sent.append((name.removesuffix("_single"), whole.numel()))
        return original(*given, **named)

    setattr(dist, name, spy)

spied("all_gather_single", 0)
spied("reduce_scatter_single", 1)

class Scaled(torch.nn.Module):
    def __init__(self, inner, width):
        super().__init__()
        self.inner, self.scale = inner, torch.nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.inner(x) * self.scale

def formed(text):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(a, b) for a, b in zip(widths, widths[1:])]
    layers[3] = Scaled(layers[3], widths[4])
    model = torch.nn.Sequential(*layers)
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    exec(text.replace("reshard_after_forward=True)", "reshard_after_forward=True, mesh=mesh)")
             .replace("fully_shard(model)", "fully_shard(model, mesh=mesh)"), {"model": model, "mesh": mesh})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        sent.clear()
        model(torch.ones(4, widths[0])).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(sent)

found = [formed(text) for text in lines]
if dist.get_rank() == 0:
    open(sys.argv[1], "w").write(json.dumps(found))
"""


def workload():
    """In the order of the forward."""
    layers = []
    for number, (a, b) in enumerate(pairwise(WIDTHS)):
        module = "3.inner" if number == 3 else str(number)
        layers += [(f"{module}.weight", a * b), (f"{module}.bias", b), *([("3.scale", b)] if number == 3 else [])]
    return Workload("chain", tuple(Layer(name, 1e-3, 2e-3, 4 * size) for name, size in layers))


def test_real_collectives_are_those_predicted(tmp_path):
    lines = [fsdp2.render(knobs, workload()) for knobs in KNOBS]
    for knobs, sent in zip(KNOBS, told(SCRIPT, 2, tmp_path, json.dumps(WIDTHS), *lines), strict=True):
        pricing = Pricing.free(2)
        program = lower(workload(), fsdp2.to_plan(knobs, workload(), pricing), pricing)
        assert sent == [[one.kind, one.size // 4] for one in program.operations if one.kind in KINDS]
