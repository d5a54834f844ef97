"""Greedy filling: when buckets close, and in which order they stand."""

from __future__ import annotations

from osfmodel.entities.filling import Closes, fill, fill_by_dtype
from tests.conftest import workload_of

SIZES = (4, 3, 9, 1, 2, 8)


def test_a_bucket_closes_when_it_is_full_and_before_it_would_be_over():
    full = Closes(full=lambda held, number: held >= 7)
    assert list(fill(range(6), SIZES, full)) == [(1, [0, 1]), (2, [2]), (5, [3, 4, 5])]
    over = Closes(over=lambda held, bucket, item: held > 7)
    assert list(fill(range(6), SIZES, over)) == [(2, [0, 1]), (3, [2]), (5, [3, 4]), (None, [5])]
    both = Closes(full.full, over.over)
    assert list(fill(range(6), SIZES, both)) == [(1, [0, 1]), (2, [2]), (5, [3, 4]), (5, [5])]


def test_rules_know_how_many_buckets_closed_and_where_a_gradient_begins():
    growing = Closes(full=lambda held, number: held >= (4, 12)[min(number, 1)])
    assert [bucket for _, bucket in fill(range(6), SIZES, growing)] == [[0], [1, 2], [3, 4, 5]]
    aligned = Closes(full=lambda end, number: end >= 12, start=lambda end: -(-end // 8) * 8)
    assert [bucket for _, bucket in fill([0, 3, 4], SIZES, aligned)] == [[0, 3, 4]]  # 4, then 8 to 9, then 16 to 18
    assert [bucket for _, bucket in fill([3, 1, 0], SIZES, aligned)] == [[3, 1, 0]]  # ends at 1, 11 and 20


def test_dtypes_are_filled_by_themselves_and_stand_as_they_close():
    gradients = workload_of([float(i + 1) for i in range(6)], SIZES, ["a", "b", "b", "a", "a", "b"]).gradients
    closed, opened = fill_by_dtype(gradients, gradients.sizes, Closes(full=lambda held, number: held >= 7))
    assert closed == [[1, 2], [0, 3, 4], [5]]
    assert opened == []
    closed, opened = fill_by_dtype(gradients, gradients.sizes, Closes(over=lambda held, bucket, item: held > 7))
    assert closed == [[1], [2]]
    assert opened == [[0, 3, 4], [5]]
