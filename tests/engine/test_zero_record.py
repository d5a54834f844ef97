"""Collectives of a step of real DeepSpeed, stages 1 to 3, as recorded by ``tests/live/zero_record.py`` (gloo, 2 ranks).

Kind, order, bytes and types of all that it sends are those of our programs. Left out are messages of 8 bytes and less:
flags of overflow and norms of gradients.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from osfmodel import Layer, Workload
from osfmodel.cost.pricing import Pricing
from osfmodel.engine.program import CHANNEL
from osfmodel.engine.strategies import lower
from osfmodel.entities.sharding import BUCKET_ELEMENTS, Fetching
from osfmodel.targets import deepspeed, zero_3

RECORD = json.loads((Path(__file__).parent / "zero_record.json").read_text(encoding="utf-8"))
KINDS = {"all_reduce": "all_reduce", "all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}
LONG = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
SMALL = 8


def recorded(run):
    """The model of a run. Its rows are in the reverse of the order in which gradients became ready."""
    rows = RECORD["parameters"][run["parameters"]]
    layers = (Layer(name, 1.0, 1.0, 4 * math.prod(shape), shape=tuple(shape)) for name, shape in rows)
    return Workload(run["model"], tuple(layers))


def plan_of(run, workload):
    """The plan of the target for the settings of a run."""
    zero, more = run["zero"], run["more"]
    types = {"gather_dtype": "bfloat16" if "bf16" in more else ""}
    types["reduce_dtype"] = LONG.get(more.get("communication_data_type"), "")
    if zero["stage"] < 3:
        knobs = deepspeed.DeepSpeedKnobs(
            zero["reduce_bucket_size"], zero.get("overlap_comm", False), zero["stage"], **types
        )
        plan = deepspeed.to_plan(knobs, workload)
    else:
        named = {
            "prefetch": "prefetch_bucket_size", "persistent": "param_persistence_threshold",
            "most_persistent": "model_persistence_threshold", "live": "max_live_parameters",
            "reuse": "max_reuse_distance",
        }  # fmt: skip
        limits = {ours: zero[f"stage3_{theirs}"] for ours, theirs in named.items() if f"stage3_{theirs}" in zero}
        elements = zero.get("reduce_bucket_size", BUCKET_ELEMENTS)
        plan = zero_3.to_plan(zero_3.ZeroThreeKnobs(elements, fetching=Fetching(**limits), **types), workload)
    return replace(plan, sharding=replace(plan.sharding, micro_batches=run["micro_batches"]))


@pytest.mark.parametrize("number", range(len(RECORD["runs"])))
def test_real_collectives_are_those_of_the_program(number):
    run = RECORD["runs"][number]
    workload = recorded(run)
    program = lower(workload, plan_of(run, workload), Pricing.free(RECORD["ranks"]))
    own = [(one.kind, one.size) for one in program.operations if one.stream == CHANNEL]
    assert own == [(KINDS[kind], size) for kind, size, _ in run["sent"] if size > SMALL]


def test_types_are_those_of_the_settings():
    for run in RECORD["runs"]:
        gathered = "bfloat16" if "bf16" in run["more"] else "float32"
        reduced = LONG.get(run["more"].get("communication_data_type"), gathered)
        found = {(KINDS[kind], dtype) for kind, size, dtype in run["sent"] if size > SMALL}
        assert found <= {("all_gather", gathered), ("all_reduce", reduced), ("reduce_scatter", reduced)}


def test_the_record_has_all_stages_and_both_models():
    kinds = {(run["model"], run["zero"]["stage"]) for run in RECORD["runs"]}
    assert kinds == {(model, stage) for model in ("chain", "decoder") for stage in (1, 2, 3)}
    assert sum(run["zero"]["stage"] == 3 for run in RECORD["runs"]) >= 20
