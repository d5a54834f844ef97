"""BytePS: how tensors are cut and in which order pieces go, after its PartitionTensor and its scheduled queue."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osfmodel.cost import AffineCost
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.errors import PlanError
from osfmodel.entities.plan import in_one
from osfmodel.solve import Limits
from osfmodel.targets import byteps
from osfmodel.targets.byteps import PAGE, BytePsKnobs
from tests.conftest import workload_of

PRICING = Pricing.of(AffineCost(((1e-3, 1e-6),)), workers=4)
SIZES = st.lists(st.integers(1, 20_000).map(lambda count: 4 * count), min_size=1, max_size=6)


def made(sizes):
    return workload_of([float(i + 1) for i in range(len(sizes))], sizes)


@given(SIZES, st.integers(1, 30_000), st.sampled_from([None, 1, 3]))
def test_pieces_are_those_of_the_loop_in_the_source(sizes, partition, credit):
    """``while accumulated < size: len = min(bound, size - accumulated)``, with the bound rounded up to pages."""
    workload, bound = made(sizes), -(-partition // PAGE) * PAGE
    expected = []
    for number, size in enumerate(sizes):
        accumulated = 0
        while accumulated < size:
            length = bound if size - accumulated > bound else size - accumulated
            expected.append((f"t{number}", accumulated, length))
            accumulated += length
    plan = byteps.to_plan(BytePsKnobs(partition, credit), workload, PRICING)
    plan.require_valid(workload)
    found = [(block.layer, block.offset, block.bytes) for bucket in plan.buckets for block in bucket.blocks]
    assert sorted(found) == sorted(expected)
    if credit is None:
        assert found == expected
    else:  # nearest the input first, a tensor's own pieces from the first to the last
        assert found == sorted(expected, key=lambda piece: (-int(piece[0][1:]), piece[1]))
        assert plan.credit == credit * bound


def test_partitions_are_rounded_up_by_the_gpus_of_a_machine():
    workload = made([400_000])
    plan = byteps.to_plan(BytePsKnobs(100_000), workload, Pricing({"all_reduce": PRICING.cost()}, 8, per_host=8))
    assert plan.buckets[0].size == 131_072 == 4 * 8 * PAGE


def test_the_default_partition_needs_no_rounding():
    assert byteps.DEFAULT_PARTITION % (8 * PAGE) == 0


@given(SIZES)
def test_no_setting_tried_is_faster_than_the_found_one(sizes):
    """Against every partition of whole pages and every credit of those tried."""
    workload = made(sizes)
    best = byteps.TARGET.convert.from_plan(in_one(workload), workload, PRICING)
    found = time(best, workload)
    for power in range(6):
        for credit in byteps.CREDITS:
            assert found <= time(BytePsKnobs(PAGE << power, credit), workload) * (1 + 1e-9)


def time(knobs, workload):
    return predict_timeline(workload, byteps.to_plan(knobs, workload, PRICING), PRICING).iteration_time


def test_fused_tensors_are_no_plan_of_its_own():
    workload = made([400, 400])
    with pytest.raises(PlanError, match="one by one"):
        byteps.exact(in_one(workload), workload)


def test_a_limit_on_buckets_is_kept():
    workload = made([400_000, 100_000])
    knobs = byteps.TARGET.convert.from_plan(in_one(workload), workload, PRICING, Limits(max_bucket_bytes=20_000))
    assert max(bucket.size for bucket in byteps.to_plan(knobs, workload, PRICING).buckets) <= 20_000
