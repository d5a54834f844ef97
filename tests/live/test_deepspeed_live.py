"""DeepSpeed itself: it reads what is written for it, and all-reduces the buckets that were predicted (gloo, CPU)."""

from __future__ import annotations

import importlib.util
import json
import os

import pytest

import osfmodel as osf
from osfmodel.targets import deepspeed
from tests.conftest import workload_of
from tests.live.launching import told

if not os.environ.get("OSFMODEL_REQUIRE_DEEPSPEED") and importlib.util.find_spec("deepspeed") is None:
    pytest.skip("DeepSpeed is not installed: DS_BUILD_OPS=0 pip install deepspeed", allow_module_level=True)

pytestmark = pytest.mark.live
SIZES = [20, 1000, 64, 5, 5, 300, 37, 100]
"""Elements, in the order in which gradients become ready."""
KNOBS = [
    deepspeed.DeepSpeedKnobs(400, overlap=True),
    deepspeed.DeepSpeedKnobs(64, overlap=True),
    deepspeed.DeepSpeedKnobs(1020, overlap=True),
    deepspeed.DeepSpeedKnobs(1, overlap=True),
    deepspeed.DeepSpeedKnobs(400),
    deepspeed.DeepSpeedKnobs(),
]
SCRIPT = """
import json, pathlib, sys
import deepspeed, torch, torch.distributed as dist
from deepspeed.runtime.zero import config as zero_config, stage_1_and_2 as zero

answer, folder, *given = sys.argv[1:]
sizes, tuned = map(json.loads, given)
deepspeed.init_distributed(dist_backend="gloo")

class Chain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tensors = torch.nn.ParameterList(torch.nn.Parameter(torch.full((size,), 0.1)) for size in sizes[::-1])

    def forward(self, total):
        for tensor in self.tensors:
            total = total + (tensor * tensor).sum()
        return total

def formed(path):
    model = Chain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=path)
    sent, all_reduce = [], zero.dist.all_reduce
    def spy(tensor, *rest, **named):
        sent.append(tensor.numel())
        return all_reduce(tensor, *rest, **named)
    zero.dist.all_reduce = spy
    engine.backward(engine(torch.ones(())))
    zero.dist.all_reduce = all_reduce
    engine.step()
    return sent, [round(float(tensor[0]), 6) for tensor in model.tensors]

read = zero_config.DeepSpeedZeroConfig(**tuned)
paths = sorted(pathlib.Path(folder).glob("*.json"))
found = [formed(str(path)) for path in paths], [int(read.stage), read.reduce_bucket_size, read.overlap_comm]
if dist.get_rank() == 0:
    pathlib.Path(answer).write_text(json.dumps(found))
"""


def tuning():
    """The result of osf tune for a model."""
    return osf.tune(osf.load_workload("resnet50-v100"), osf.load_cluster("v100-10gbe"), 16, "deepspeed")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """(elements of each all-reduce, weights after a step) under each of KNOBS with two ranks; tuned settings."""
    folder = tmp_path_factory.mktemp("deepspeed")
    workload = workload_of([float(i) for i in range(len(SIZES))], [4 * size for size in SIZES])
    for number, knobs in enumerate(KNOBS):
        lines = deepspeed.TARGET.text.render(knobs, workload)
        own = '{\n  "train_micro_batch_size_per_gpu": 1,\n  "zero_allow_untested_optimizer": true,'
        folder.joinpath(f"{number}.json").write_text(lines.replace("{", own, 1))
    words = str(folder), json.dumps(SIZES), json.dumps(tuning().config["zero_optimization"])
    answer = tmp_path_factory.mktemp("answer")
    return workload, *told(SCRIPT, 2, answer, *words, DS_ACCELERATOR="cpu")


def test_real_all_reduces_are_those_predicted(found):
    workload, runs, _ = found
    predicted = [[bucket.size // 4 for bucket in deepspeed.to_plan(knobs, workload).buckets] for knobs in KNOBS]
    assert [sent for sent, _ in runs] == predicted
    assert len({tuple(sent) for sent in predicted}) == len(KNOBS)


def test_the_bound_changes_no_weights(found):
    _, runs, _ = found
    assert len({tuple(weights) for _, weights in runs}) == 1


def test_tuned_settings_are_read_as_they_were_meant(found):
    """From DeepSpeed's own configuration class to the plan that was predicted."""
    stage, elements, overlap = found[2]
    knobs = deepspeed.DeepSpeedKnobs(elements, overlap)
    assert stage == 1
    assert deepspeed.to_plan(knobs, osf.load_workload("resnet50-v100")) == tuning().plan
