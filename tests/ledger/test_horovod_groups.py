"""Groups in timelines of real Horovod, against the policy."""

from __future__ import annotations

from benchmarks import live_horovod_groups as bench
from benchmarks.live_horovod_groups import LARGE, PACES, SMALL


def test_what_one_cycle_finds_is_fused_exactly_as_predicted():
    clusters, rows = bench.kept()
    chosen = [row for row in rows if row.pace == PACES[0].words]
    assert {row.threshold for row in chosen} == set(SMALL)
    for row in chosen:
        wanted = bench.expected(row, clusters)
        assert sum(count for count, _ in row.formed) >= 10
        assert all(groups == wanted for _, groups in row.formed), row[:6]


def test_where_the_clock_decides_there_are_as_many_batches_or_one_off():
    """As the median of an iteration: single ones come late, as threads of a shared machine do."""
    clusters, rows = bench.kept()
    for row in rows:
        if row.threshold in LARGE:
            counts = sorted(len(groups) for count, groups in row.formed for _ in range(count))
            assert abs(counts[len(counts) // 2] - len(bench.expected(row, clusters))) <= 1, row[:6]


def test_the_table_has_a_line_for_each_timeline():
    _, rows = bench.kept()
    lines = bench.show().splitlines()
    assert sum(line.startswith("| ") for line in lines) == 1 + len(rows)
    assert lines[-1].startswith("not measured: ")
