"""Megatron's own buffers: the buckets that they lay out are those that were predicted (CPU)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import FREE
from osfmodel.solve.caps import in_elements
from osfmodel.targets import megatron
from tests.conftest import workload_of

if not os.environ.get("OSFMODEL_REQUIRE_MEGATRON") and importlib.util.find_spec("megatron") is None:
    pytest.skip("Megatron is not installed: pip install megatron-core", allow_module_level=True)

pytestmark = pytest.mark.live
SIZES = [20, 1000, 64, 5, 5, 300, 37, 100, 63, 63]
"""Parameters, the last defined first."""
LIMITS = [1, 64, 100, 110, 126, 128, 400, 1020, 1600, 5000]
SCRIPT = """
import json, sys
import torch, torch.distributed as dist

torch.cuda.current_device = lambda: "cpu"  # where Megatron puts its buffers
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBuffer

sizes, limits = json.loads(sys.argv[1])
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)

class Groups:
    tp = dp_cp = dist.group.WORLD

def laid_out(limit, distributed):
    params = [torch.nn.Parameter(torch.zeros(size)) for size in sizes[::-1]]
    config = DistributedDataParallelConfig(overlap_grad_reduce=True, use_distributed_optimizer=distributed)
    names, order = {param: str(i) for i, param in enumerate(params)}, list(range(len(params)))
    buffer = _ParamAndGradBuffer(
        config, torch.float32, torch.float32, params, Groups.tp, limit, names, 1.0, order, False, Groups()
    )
    return [[len(sizes) - 1 - int(names[param]) for param in bucket.params_list] for bucket in buffer.buckets]

print(json.dumps([[laid_out(limit, distributed) for limit in limits] for distributed in (False, True)]))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def laid_out():
    """Positions in ready order in each bucket under each of LIMITS: plain, and with the distributed optimizer."""
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, json.dumps([SIZES, LIMITS])]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.fixture
def workload():
    return workload_of([float(i) for i in range(len(SIZES))], [4 * size for size in SIZES])


def test_real_buckets_are_those_predicted(laid_out, workload):
    plans = [megatron.to_plan(megatron.MegatronKnobs(limit), workload, Pricing.of(FREE)) for limit in LIMITS]
    predicted = [[[int(block.layer[1:]) for block in bucket.blocks] for bucket in plan.buckets] for plan in plans]
    assert laid_out[0] == predicted


def test_the_distributed_optimizer_forms_the_predicted_buckets(laid_out, workload):
    assert laid_out[1] == [megatron.aligned_layout(in_elements(workload.gradients), limit) for limit in LIMITS]
    said = [megatron.render(megatron.MegatronKnobs(limit), workload) for limit in LIMITS]
    same = ["--use-distributed-optimizer forms the same buckets" in text for text in said]
    assert same == [plain == padded for plain, padded in zip(*laid_out, strict=True)]
    assert len(set(same)) == 2
