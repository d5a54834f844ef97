"""The harness of benchmarks/memory.py on a small model: tensors with and without data, and predictions."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from osfmodel.engine import predict_timeline
from osfmodel.engine.memory import memory_of
from osfmodel.entities.batches import at_batch
from osfmodel.entities.plan import in_one
from osfmodel.runtime.executor.saving import Recomputation
from osfmodel.runtime.profiler.driving import Driving, measure
from osfmodel.runtime.training.factories import Training

if os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

from benchmarks import memory
from osfmodel.ledger.sources.peak_memory import PRICING
from tests.live.test_memory_live import Block

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore")]
nn = torch.nn
NARROW, WIDE = 32, 64
OTHERS = (memory.PLANNED, memory.PUBLISHED)
PARTS = {"sparse, mirror", "sparse, recompute all", "release, recompute all", "recompute all"}
"""Options that are part of another: long tests."""


def maker(batch_size):
    model = nn.Sequential(nn.Linear(WIDE, NARROW), nn.ModuleList(Block(NARROW) for _ in range(6)), nn.Linear(NARROW, 3))
    model.forward = lambda inputs: model[2](run(model[1], model[0](inputs)))
    batch = torch.randn(batch_size, WIDE), torch.zeros(batch_size, dtype=torch.long)
    return Training(model, batch, nn.functional.cross_entropy)


def run(blocks, hidden):
    for block in blocks:
        hidden = block(hidden)
    return hidden


@pytest.fixture(scope="module")
def workload():
    return measure("tower", maker, 64, Driving(steps=1, warm_up=2), lambda *_: None).workload


def of_the_day(option):
    marks = [pytest.mark.long] if option.name in PARTS else []
    return pytest.param(option, marks=marks, id=option.name)


@pytest.mark.parametrize("option", [of_the_day(option) for option in memory.OPTIONS if option.plan not in OTHERS])
def test_predictions_from_one_profile_hold_at_another_batch_size(workload, option):
    """Tensors without data take as much memory as real ones."""
    plan = memory.plan_of(option, workload, 640)
    found = memory.measured(maker, 640, plan, real=False)
    assert memory.measured(maker, 640, plan, real=True) == pytest.approx(found, rel=0.01)
    larger = at_batch(workload, 640)
    given = in_one(larger) if plan is None else plan
    workers = 1 if plan is None else memory.WORKERS
    keeper = "local" if plan is None else "runtime"
    predicted = memory_of(larger, given, predict_timeline(larger, given, PRICING), workers, keeper).peak.bytes
    assert predicted == pytest.approx(found, rel=0.05)
    assert (given.recompute != ()) == (option.every > 0)


def test_predicted_savings_of_recomputing_are_the_measured_ones(workload):
    """The oracle tells plans apart: the prediction for another plan is far off."""
    dense, again = (
        memory.plan_of(option, workload, 640) for option in memory.OPTIONS if option.name in ("dense", "recompute all")
    )
    larger = at_batch(workload, 640)
    found = memory.measured(maker, 640, again, real=False)
    wrong = memory_of(larger, dense, predict_timeline(larger, dense, PRICING), memory.WORKERS, "runtime").peak.bytes
    assert wrong > 1.5 * found
    assert replace(again, recompute=()) == dense


@pytest.mark.parametrize("every", [0, 1])
def test_what_was_published_takes_as_much_with_data_and_without(workload, every):
    """More than an ordinary loop by momentum and what was not sent, less the optimizer's momentum, and by scratch."""
    again = tuple(segment.name for segment in workload.segments) if every else ()
    fake, real = (memory.measured(maker, 64, None, real, again) for real in (False, True))
    assert real == pytest.approx(fake, rel=0.01)
    if not every:
        assert fake >= memory.measured(maker, 64, None, real=False) + workload.gradient_bytes


class Joined(nn.Linear):
    """Takes all that was computed before, as a layer of DenseNet does."""

    def forward(self, features):
        return super().forward(torch.cat(features, 1))


class Growing(nn.Module):
    """A list of features that grows while its layers are called with it."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Joined(4 + 2 * number, 2) for number in range(3))

    def forward(self, inputs):
        features = [inputs]
        for layer in self.layers:
            features.append(layer(features))
        return torch.cat(features, 1)


def test_a_list_that_grows_after_the_call_is_computed_again_as_it_was():
    torch.manual_seed(1)
    model, inputs = Growing(), torch.randn(3, 4)
    model(inputs).square().sum().backward()
    wanted = [tensor.grad for tensor in model.parameters()]
    model.zero_grad()
    again = Recomputation(model, [f"layers.{number}" for number in range(3)])
    model(inputs).square().sum().backward()
    again.undo()
    assert all(torch.equal(tensor.grad, grad) for tensor, grad in zip(model.parameters(), wanted, strict=True))
