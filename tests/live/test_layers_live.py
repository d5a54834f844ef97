"""The tutorial's snippet that measures layers, on real PyTorch: CPU, a small model with a branch and tied weights."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from osfmodel.formats import Hints, import_file
from tests.conftest import ROOT
from tests.repository.test_docs import blocks

if os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore")]


class Slow(torch.nn.Linear):
    """A layer whose forward takes at least 5 ms."""

    def forward(self, inputs):
        time.sleep(5e-3)
        return super().forward(inputs)


class Model(torch.nn.Module):
    """Two layers in a row, attention, whose out_proj is never called, a tied, a frozen and an unused weight."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), Slow(64, 64))
        self.branch = torch.nn.Linear(64, 64, bias=False)
        self.attention = torch.nn.MultiheadAttention(64, 2, batch_first=True)
        self.output = torch.nn.Linear(64, 64)
        self.output.weight = self.branch.weight
        self.frozen = torch.nn.Parameter(torch.zeros(3), requires_grad=False)
        self.unused = torch.nn.Linear(2, 2)

    def forward(self, inputs):
        hidden = self.body(inputs)
        return self.output(self.attention(hidden, hidden, hidden)[0] + self.branch(inputs))


def test_the_snippet_writes_layers_that_are_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (snippet,) = blocks(ROOT / "docs/tutorial.md", "py")
    pasted = {}
    exec(compile(snippet, "tutorial.md", "exec"), pasted)
    model, inputs = Model(), torch.randn(2, 4, 64)
    pasted["write_layers"](model, lambda: model(inputs).square().mean(), steps=5, warm_ups=1)
    (workload,) = import_file(Path("layers.csv"), Hints("small"))
    tensors = dict(model.named_parameters())
    assert {layer.name: layer.gradient_bytes for layer in workload.layers} == {
        name: 4 * tensor.numel() for name, tensor in tensors.items() if name != "frozen"
    }
    names = [layer.name for layer in workload.layers]
    assert names.index("body.0.weight") < names.index("body.2.weight") < names.index("output.bias")
    slow = next(layer for layer in workload.layers if layer.name == "body.2.weight")
    assert slow.forward_time >= 5e-3
    assert all(layer.backward_time >= 0 for layer in workload.layers)
    assert sum(layer.backward_time for layer in workload.layers) > 0
