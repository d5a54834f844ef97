"""The plans in real PyTorch: gloo, one process, CPU. What DDP's own log says must be what was predicted."""

from __future__ import annotations

import os

import numpy as np
import pytest

import osfmodel as osf
from osfmodel.cost import AffineCost
from osfmodel.entities.plan import contiguous_plan
from osfmodel.targets import ddp
from tests.conftest import gradients
from tests.draws import many

if os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

import torch.distributed as dist

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore")]
COST = AffineCost(((1e-3, 1e-9),))
MIB = 2**20
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@pytest.fixture(scope="module", autouse=True)
def process_group(tmp_path_factory):
    store = tmp_path_factory.mktemp("store") / "file"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Chain(torch.nn.Module):
    """Parameters of given sizes whose gradients become ready last to first."""

    def __init__(self, sizes, dtypes):
        super().__init__()
        self.tensors = torch.nn.ParameterList(
            torch.nn.Parameter(
                torch.zeros(size // torch.empty((), dtype=DTYPES[dtype]).element_size(), dtype=DTYPES[dtype])
            )
            for size, dtype in zip(sizes, dtypes, strict=True)
        )

    def forward(self, total):
        for tensor in self.tensors:
            total = total + tensor.sum().float()
        return total


def chain_of(found):
    """A model with the gradients of a workload (given in ready order)."""
    return Chain(found.sizes[::-1], found.dtypes[::-1])


def real_buckets(model):
    """Bucket sizes in bytes from DDP's own log after it has rebuilt its buckets."""
    for _ in range(2):
        model(torch.zeros(())).backward()
        model.zero_grad(set_to_none=True)
    model(torch.zeros(()))
    log = model._get_ddp_logging_data()
    assert log["has_rebuilt_buckets"]
    return [int(size) for size in log["rebuilt_bucket_sizes"].split(",")]


@pytest.fixture(scope="module")
def resnet50():
    workload = osf.load_workload("resnet50-v100")
    return workload, chain_of(workload.gradients)


@many(5, 50)
def test_rendered_plans_are_formed_exactly(resnet50, many):
    """Random plans on ResNet-50's 161 tensors: the rendered code, executed, gives the plan's buckets."""
    workload, model = resnet50
    rng = np.random.default_rng(50)
    count = len(workload.gradients)
    fallback = ddp.search_caps(workload, COST)
    for _ in range(many):
        inner = rng.choice(np.arange(1, count), int(rng.integers(0, 40)), replace=False)
        plan = contiguous_plan(workload, [*sorted(inner.tolist()), count])
        knobs = ddp.DdpKnobs(tuple(bucket.size for bucket in plan.buckets), fallback)
        pasted = {"model": model}
        exec(compile(ddp.render(knobs, workload), "pasted.py", "exec"), pasted)
        assert real_buckets(pasted["model"]) == [bucket.size for bucket in plan.buckets]


def test_the_tuned_plan_is_formed_exactly(resnet50):
    workload, model = resnet50
    tuning = osf.tune(workload, osf.load_cluster("v100-10gbe"), 64)
    pasted = {"model": model}
    exec(compile(tuning.rendered, "pasted.py", "exec"), pasted)
    assert real_buckets(pasted["model"]) == [bucket.size for bucket in tuning.plan.buckets]


def test_default_and_single_caps_follow_the_rule(resnet50):
    workload, model = resnet50
    wrap = torch.nn.parallel.DistributedDataParallel
    layout = ddp.bucket_layout(workload.gradients, ddp.DDP_LIMITS)
    sizes = workload.gradients.sizes
    assert real_buckets(wrap(model)) == [sum(sizes[i] for i in bucket) for bucket in layout]
    for cap in (0.5, 3.7, 60.0):
        layout = ddp.bucket_layout(workload.gradients, [int(cap * MIB)])
        assert real_buckets(wrap(model, bucket_cap_mb=cap)) == [sum(sizes[i] for i in bucket) for bucket in layout]


def test_mixed_dtypes_are_walked_separately():
    """bfloat16 and float32 in turn: closed buckets in the order of closing, open ones at the end in any order."""
    rng = np.random.default_rng(8)
    for _ in range(10):
        count = int(rng.integers(4, 24))
        dtypes = rng.choice(list(DTYPES), count).tolist()
        found = gradients([float(i) for i in range(count)], (4 * rng.integers(1, 50_000, count)).tolist(), dtypes)
        caps = [float(cap) for cap in rng.uniform(0.05, 0.6, 3)]
        model = torch.nn.parallel.DistributedDataParallel(chain_of(found), bucket_cap_mb_list=caps)
        layout = ddp.bucket_layout(found, [int(cap * MIB) for cap in caps])
        predicted = [sum(found.sizes[i] for i in bucket) for bucket in layout]
        real = real_buckets(model)
        unfinished = min(2, len(set(dtypes)))
        assert real[: len(real) - unfinished] == predicted[: len(predicted) - unfinished]
        assert sorted(real) == sorted(predicted)


class WithoutList:
    """A DDP as of torch after PR #121640: one cap for all buckets."""

    def __init__(self, module, bucket_cap_mb=None):
        self.bucket_bytes_cap_default = bucket_cap_mb is None
        self.bucket_cap_mb = bucket_cap_mb


class WithFirstCap:
    """An older DDP: the first bucket has a cap of its own, dist._DEFAULT_FIRST_BUCKET_BYTES."""

    def __init__(self, module, bucket_cap_mb=25):
        self.bucket_cap_mb = bucket_cap_mb


@pytest.mark.parametrize("old", [WithoutList, WithFirstCap])
def test_rendered_code_finds_out_what_an_older_torch_can_do(resnet50, monkeypatch, old):
    """The branches for a torch without the list, executed against classes with its signatures."""
    workload, _ = resnet50
    tuning = osf.tune(workload, osf.load_cluster("v100-10gbe"), 64)
    fallback = tuning.config["fallback"]
    monkeypatch.setattr(torch.nn.parallel, "DistributedDataParallel", old)
    monkeypatch.setattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES", MIB)
    pasted = {"model": None}
    exec(compile(tuning.rendered, "pasted.py", "exec"), pasted)
    if old is WithoutList:
        assert pasted["model"].bucket_cap_mb == fallback["bucket_cap_mb"]
        assert dist._DEFAULT_FIRST_BUCKET_BYTES == MIB
    else:
        assert pasted["model"].bucket_cap_mb == fallback["first_and_cap"]["bucket_cap_mb"]
        assert fallback["first_and_cap"]["first_bucket_bytes"] == dist._DEFAULT_FIRST_BUCKET_BYTES
