"""Frameworks with one cap for all buckets, counted in elements: how it forms them, and that the best is found."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from osfmodel.cost import AffineCost
from osfmodel.entities.compression import compressed
from osfmodel.solve import Limits
from osfmodel.solve.caps import AT_LEAST, AT_MOST, best_cap_elements, candidate_caps, cap_forming, in_elements
from osfmodel.solve.solution import finish
from tests.conftest import gradients, workload_of

COST = AffineCost(((0.4, 0.01),))
RULES = {"at least": AT_LEAST, "at most": AT_MOST}
SIZES = st.lists(st.integers(1, 60).map(lambda count: 4 * count), min_size=1, max_size=9)
rules = pytest.mark.parametrize("rule", RULES)


def made(sizes):
    return workload_of([float(i + 1) for i in range(len(sizes))], sizes)


@given(SIZES, st.integers(1, 300))
def test_a_bucket_is_sent_before_it_would_exceed_the_bound(sizes, bound):
    groups = AT_MOST.layout(gradients(range(len(sizes)), sizes), bound)
    assert [i for group in groups for i in group] == list(range(len(sizes)))
    for group, after in pairwise(groups):
        held = sum(sizes[i] for i in group)
        assert held <= bound or len(group) == 1
        assert held + sizes[after[0]] > bound


@rules
@given(SIZES, st.lists(st.sampled_from(["float32", "float16"]), min_size=8, max_size=8), st.integers(1, 300))
@example([2, 8, 8], ["float16", "float32", "float32"], 20)
def test_a_layout_is_found_again_by_its_number(rule, sizes, dtypes, number):
    """Of one type or of two, whose last buckets close or just end."""
    rule = RULES[rule]
    found = gradients(range(len(sizes)), sizes, (dtypes * len(sizes))[: len(sizes)])
    groups = rule.layout(found, number)
    again = cap_forming(groups, found, rule)
    assert again is not None
    assert rule.layout(found, again) == groups


@rules
@given(sizes=SIZES, ends=st.sets(st.integers(1, 8)))
def test_no_number_is_said_only_where_there_is_none(rule, sizes, ends):
    """Against trying every number there is."""
    rule = RULES[rule]
    found = gradients(range(len(sizes)), sizes)
    bounds = [0, *sorted(end for end in ends if end < len(sizes)), len(sizes)]
    groups = [list(range(start, end)) for start, end in pairwise(bounds)]
    formed = any(rule.layout(found, number) == groups for number in range(1, sum(sizes) + 2))
    assert (cap_forming(groups, found, rule) is not None) == formed


@rules
@given(sizes=SIZES)
def test_the_best_cap_is_the_best_of_all(rule, sizes):
    """Against trying every number there is."""
    rule, workload = RULES[rule], made(sizes)
    elements = in_elements(workload.gradients)
    end = {n: finish(rule.layout(elements, n), workload.gradients, COST) for n in range(1, sum(elements.sizes) + 1)}
    assert end[best_cap_elements(workload, COST, rule)] == pytest.approx(min(end.values()))


def test_the_search_can_fail():
    """The oracle, shown failing: another number of this workload is worse."""
    workload = made([40, 40, 400])
    elements = in_elements(workload.gradients)
    ends = [finish(AT_MOST.layout(elements, n), workload.gradients, COST) for n in (1, 120)]
    assert abs(ends[0] - ends[1]) > 0.1


@rules
def test_limits_are_kept_or_nothing_is_found(rule):
    workload = made([40, 40, 400, 8])
    cap = best_cap_elements(workload, COST, RULES[rule], Limits(max_buckets=2))
    assert cap is not None
    assert len(RULES[rule].layout(in_elements(workload.gradients), cap)) <= 2
    assert best_cap_elements(workload, COST, RULES[rule], Limits(max_bucket_bytes=100)) is None


@rules
def test_dtypes_are_walked_by_themselves(rule):
    """In elements: 10 of float32 and 10 of bfloat16 are 40 and 20 bytes."""
    workload = workload_of([1.0, 2, 3, 4], [40, 20, 40, 20], ["float32", "bfloat16"] * 2)
    assert RULES[rule].layout(in_elements(workload.gradients), 20) == [[0, 2], [1, 3]]
    assert RULES[rule].layout(in_elements(workload.gradients), 10) == [[0], [1], [2], [3]]
    assert best_cap_elements(workload, COST, RULES[rule]) is not None


@rules
@pytest.mark.parametrize("how", ["none", "fp16", "bf16", "powersgd:1", "powersgd:4"])
def test_compression_changes_no_bucket_counts(rule, how):
    """However gradients are sent, those in memory have as many elements: the same caps form the same buckets."""
    workload = made([40, 40, 4096, 8, 65_536])
    sent, as_they_are = in_elements(compressed(workload, how).gradients), in_elements(workload.gradients)
    assert sent.sizes == as_they_are.sizes == (10, 10, 1024, 2, 16_384)
    for cap in (1, 20, 100, 120):
        assert RULES[rule].layout(sent, cap) == RULES[rule].layout(as_they_are, cap)
    assert candidate_caps(sent)[0].tolist() == candidate_caps(as_they_are)[0].tolist()
