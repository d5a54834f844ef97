"""A plan in one line: whatever is written is read again, and other lines are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osfmodel import Block, Bucket, DataError, Layer, Plan, PlanError, Workload
from osfmodel.engine.sparse import sparsely
from osfmodel.entities.files.notation import read, written
from osfmodel.entities.plan import contiguous_plan
from osfmodel.entities.sharding import ParameterGroup, Sharding
from tests.engine.test_simulator import beyond_dense, buckets, workloads

STRATEGIES = st.sampled_from(["replicated", "split"])
FOUR = Workload("four", tuple(Layer(name, 1, 1, size) for name, size in zip("dcba", (8, 16, 0, 4), strict=True)))
"""Ready order: a (4 bytes), c (16), d (8); b has none."""


@given(st.data())
def test_written_plans_are_read_back(data):
    workload = data.draw(workloads())
    found = tuple(replace(bucket, release_time=0) for bucket in data.draw(buckets(workload)))
    plan = Plan(workload.name, found, data.draw(st.integers(1, 12)), data.draw(st.booleans()), data.draw(STRATEGIES))
    assert read(written(plan, workload), workload) == plan


@given(beyond_dense())
def test_sparse_buckets_release_and_recomputation_are_read(case):
    workload, plan, _ = case
    plain = replace(
        plan, buckets=tuple(replace(bucket, release_time=0) for bucket in plan.buckets), credit=None, workload="w"
    )
    assert read(written(plain, workload), workload) == plain


def test_lines_as_a_person_reads_them():
    assert written(contiguous_plan(FOUR, [2, 3]), FOUR) == "1 channel: 0-1 2"
    cut = Bucket((Block("c", 0, 4), Block("d", 0, 8))), Bucket((Block("c", 4, 12), Block("a", 0, 4)))
    plan = Plan("four", cut, 2, forward_overlap=True, strategy="split")
    assert written(plan, FOUR) == "2 channels, forward overlap, split: 1[0:4]+2 1[4:16]+0"
    sparse = replace(sparsely(contiguous_plan(FOUR, [2, 3]), 0.01), release=True, mirror=True)
    assert written(sparse, FOUR) == "1 channel, release, mirror: 0-1@0.01 2@0.01"
    tiny = sparsely(contiguous_plan(FOUR, [3]), 1e-7)
    assert read(written(tiny, FOUR), FOUR) == tiny


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "not a plan in short form"),
        ("0 channels: 0-2", "not a plan in short form"),
        ("1 channel: 0-2; 5", "not a plan in short form"),
        ("1 channel: 0-2-3", "not a part of a message"),
        ("1 channel: 0+", "not a part of a message"),
        ("1 channel: 0-3", "has 3"),
        ("1 channel: 0-1", "of 'd'"),
        ("1 channel: 0-2 0", "sent twice"),
        ("1 channel: 0-1 2[4:2]", "bytes of a block"),
        ("1 channel: 2-0", "is empty"),
        ("1 channel: 0-2@", "not a message"),
        ("1 channel: 0-2@1@1", "not a message"),
        ("1 channel: 0-2@0", "density is 0"),
        ("1 channel: 0-2@2.5", "density is 2.5"),
        ("1 channel, mirror: 0-2", "no sparse bucket"),
        ("1 channel, recompute 0: 0-2", "has 0"),
        ("1 channel, recompute 0+: 0-2", "has 0"),
        ("1 channel, forward overlap, release: 0-2", "overlaps forward"),
        ("1 channel: 0-1@0.5 2[0:4]@0.5 2[4:8]", "sparse and cuts"),
    ],
)
def test_other_lines_are_refused(line, message):
    with pytest.raises((DataError, PlanError), match=message):
        read(line, FOUR)


def test_priority_and_clocks_have_no_short_form():
    plan = contiguous_plan(FOUR, [3])
    with pytest.raises(PlanError, match="no short form"):
        written(replace(plan, credit=1), FOUR)
    with pytest.raises(PlanError, match="no short form"):
        written(replace(plan, buckets=(replace(plan.buckets[0], release_time=1.0),)), FOUR)


def test_a_plan_that_shards_states_its_rules():
    groups = (ParameterGroup(("a",), 2, "a", "b"), ParameterGroup(reshard=False, reduced_last=True))
    rules = Sharding(groups, 2, "bfloat16", "float32", 3, asynchronous=True)
    names = FOUR.gradients.names
    sizes = dict(zip(names, FOUR.gradients.sizes, strict=True))
    buckets = tuple(Bucket(tuple(Block(name, 0, sizes[name]) for name in those)) for those in (names[1:], names[:1]))
    plan = Plan(FOUR.name, buckets, strategy="hybrid-sharded", sharding=rules)
    line = written(plan, FOUR)
    assert line.startswith('hybrid-sharded {"groups":[{"modules":["a"],"reshard":2,')
    assert line.endswith("}: 1-2 0")
    assert read(line, FOUR) == plan
    with pytest.raises(DataError):
        read(line.replace('"reshard":2', '"reshard":[]'), FOUR)
    with pytest.raises(PlanError, match="sends 0 bytes of"):
        read(line.replace(": 1-2 0", ": 1 0"), FOUR)
