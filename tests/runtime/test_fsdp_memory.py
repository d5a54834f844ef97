"""Memory of fully sharded steps against torch's FSDPMemTracker."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from statistics import median

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker  # noqa: E402

import osfmodel as osf  # noqa: E402
from osfmodel.cost.pricing import Pricing  # noqa: E402
from osfmodel.engine import simulate  # noqa: E402
from osfmodel.engine.memory import memory_of  # noqa: E402
from osfmodel.entities.modules import wrapped  # noqa: E402
from osfmodel.entities.sharding import ParameterGroup, Sharding  # noqa: E402
from tests.draws import DRAWS, every  # noqa: E402
from tests.runtime.fsdp_models import Language, pretended, sharded  # noqa: E402

MODELS = {
    "even": lambda: Language(tied=False, width=128, inner=(512,) * 4, words=500),
    "uneven": lambda: Language(tied=False, width=64, inner=(600, 100, 900, 300, 50), words=3000),
    "tied": lambda: Language(tied=True, width=96, inner=(400, 300, 200), words=800),
}
BATCH = 4, 24
MESHES = [(2,), (4,), (2, 2)]


def stepped(model, batch, optimizer, sum_in=torch.float32):
    optimizer.zero_grad()
    model(batch).to(sum_in).sum().backward()
    optimizer.step()


def made(name, dtype=torch.float32):
    torch.manual_seed(0)
    return MODELS[name]().to(dtype), torch.randint(0, 500, BATCH)


def profiled(name, dtype=torch.float32):
    """The workload of the bare model, activations and scratch included."""
    model, batch = made(name, dtype)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    with osf.profile(model, name="model", warm_up=4, steps=2) as found:
        for _ in range(12):
            stepped(model, batch, optimizer, dtype)
    return found.workload


@pytest.fixture(scope="module")
def workloads():
    """By model and type of parameters: gradients are those of the profile in float32."""
    found = {}
    for name in MODELS:
        whole, half = profiled(name), profiled(name, torch.bfloat16)
        layers = tuple(
            replace(one, activation_bytes=other.activation_bytes, peak_bytes=other.peak_bytes, steady_bytes=None)
            for one, other in zip(whole.layers, half.layers, strict=True)
        )
        found[name, ""], found[name, "bfloat16"] = whole, replace(whole, layers=layers)
    return found


def tracked(name, groups, rules, shape):
    """Peak of the second step, by FSDPMemTracker."""
    model, batch = made(name)
    model = sharded(model, groups, rules, shape)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    stepped(model, batch, optimizer)
    tracker = FSDPMemTracker(model, optimizer)
    tracker.track_inputs((batch,))
    with tracker:
        stepped(model, batch, optimizer, torch.bfloat16 if rules.gather_dtype else torch.float32)
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    return peak["Total"]


def cases(draw):
    """(model, groups, rules, mesh) of each configuration."""
    drawn = draw(product(MODELS, MESHES, (True, False), (("", ""), ("bfloat16", "float32"))), "peaks")
    for name, shape, reshard, dtypes in drawn:
        count = len(MODELS[name]().layers)
        blocks = [ParameterGroup((f"layers.{number}",), reshard) for number in range(count)]
        yield name, blocks, Sharding((), shape[0] if len(shape) > 1 else 1, *dtypes), shape
    pairs = [ParameterGroup(("layers.0", "layers.1")), ParameterGroup(("layers.2", "layers.3"))]
    yield "even", pairs, Sharding((), reduce_inputs=2), (4,)
    yield (
        "even",
        [ParameterGroup(("embedding",)), *pairs, ParameterGroup(("norm", "head"), reshard=2)],
        Sharding(()),
        (4,),
    )


@pytest.mark.parametrize("draw", DRAWS)
def test_peaks_are_those_of_torch(workloads, draw):
    errors = {}
    for number, (name, groups, rules, shape) in enumerate(cases(draw)):
        world = shape[0] * (shape[1] if len(shape) > 1 else 1)
        with pretended(world):
            there = tracked(name, groups, rules, shape)
        workload = workloads[name, rules.gather_dtype]
        plan = wrapped(workload, groups, rules)
        timeline = simulate(workload, plan, Pricing.free(world))
        found = memory_of(workload, plan, timeline, world).peak
        errors[number, name, shape, groups[0].reshard, rules.gather_dtype, found.during] = found.bytes / there - 1
    sizes = sorted(map(abs, errors.values()))
    assert len(sizes) >= (30 if draw is every else 5)
    assert median(sizes) <= 0.02
    assert sizes[-1] <= 0.08
