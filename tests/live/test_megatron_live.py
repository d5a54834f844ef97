"""Megatron's own buffers: the buckets that they lay out are those that were predicted (CPU)."""

from __future__ import annotations

import importlib.util
import json
import os

import pytest

from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import FREE
from osfmodel.solve.caps import in_elements
from osfmodel.targets import megatron
from tests.conftest import workload_of
from tests.live.launching import told

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

sizes, limits = json.loads(sys.argv[2])
dist.init_process_group("gloo")

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

with open(sys.argv[1], "w") as answer:
    json.dump([[laid_out(limit, distributed) for limit in limits] for distributed in (False, True)], answer)
"""


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory):
    """Positions in ready order in each bucket under each of LIMITS: plain, and with the distributed optimizer."""
    return told(SCRIPT, 1, tmp_path_factory.mktemp("megatron"), json.dumps([SIZES, LIMITS]))


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
