"""Collectives by process group and kind, in jobs whose times are known because they are made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from osfmodel import Cluster
from osfmodel.cost.clusters import load_cluster, pricing_of
from osfmodel.diagnosis.explain_trace import explain_trace
from osfmodel.diagnosis.explanation import bus_factor
from osfmodel.entities.trace import Collective, ProcessGroup, RankTrace, Step, Trace
from osfmodel.formats.kineto.sharding import process_groups
from osfmodel.formats.traces.ranks import joined
from osfmodel.show.explained.table import group_words
from tests.jobs import PLANTED, trace_of

WORLD = ProcessGroup("0", "default_pg", 4, (0, 1, 2, 3))
PAIRS = (ProcessGroup("1", "mesh_tp", 2, (0, 1)), ProcessGroup("2", "mesh_tp", 2, (2, 3)))
SIZE = 1_000_000


def job(late: float = 0.0, steps: int = 3, by_turns: bool = False) -> Trace:
    """Four ranks in two pairs: gathers of 10 ms in the pairs, of which forward hides 4, and an all-reduce of all.

    Rank 2 comes ``late`` seconds to each all-reduce, or one rank after the other ``by_turns``.
    """
    ranks = []
    for rank in range(4):
        pair, found, now = PAIRS[rank // 2], [], 0.0
        for number in range(steps):
            begin, mine = now, late if rank == (number % 4 if by_turns else 2) else 0.0
            gather = Collective("all_gather", begin + 6e-3, begin + 16e-3, begin + 6e-3, SIZE, "float32", "host",
                                pair.name, number, 2)  # fmt: skip
            start, end = begin + 30e-3 + mine, begin + 30e-3 + late + 20e-3
            reduced = Collective("all_reduce", start, end, start, SIZE, "float32", "host", "0", number, 4)
            compute = ((begin, begin + 10e-3), (begin + 16e-3, begin + 30e-3 + mine), (end, end + 5e-3))
            found.append(
                Step(number, begin, end + 5e-3, compute, (gather, reduced), forward=(begin, begin + 20e-3),
                     backward=(begin + 20e-3, start), update=(end, end + 5e-3))
            )  # fmt: skip
            now = end + 5e-3
        ranks.append(RankTrace(rank, tuple(found), 4, "H100", "nccl", f"rank{rank}", groups=(WORLD, pair)))
    return Trace("pairs", joined(ranks, ["one"] * 4)[0])


def rows(trace: Trace, cluster: Cluster | None = None):
    return {row.kind: row for row in explain_trace(trace, cluster).collectives}


def test_groups_of_one_description_are_one_row():
    found = rows(job())
    gathers, reduced = found["all_gather"], found["all_reduce"]
    assert (gathers.group, gathers.groups, gathers.size, gathers.members) == ("mesh_tp", 2, 2, ())
    assert (reduced.group, reduced.groups, reduced.size, reduced.members) == ("default_pg", 1, 4, (0, 1, 2, 3))
    assert group_words(gathers) == "mesh_tp: 2 groups of 2 ranks"
    assert group_words(reduced) == "default_pg: ranks 0-3"
    assert (gathers.count, reduced.count) == (1, 1)
    assert gathers.bytes == reduced.bytes == 4 * SIZE


def test_times_are_those_of_the_job():
    found = rows(job())
    gathers = found["all_gather"]
    assert gathers.transfer == pytest.approx(10e-3)
    assert gathers.hidden == pytest.approx(4e-3)
    assert gathers.hidden_by == "forward"
    assert gathers.exposed == pytest.approx(6e-3)
    assert gathers.bandwidth == pytest.approx(4 * SIZE / 10e-3)  # each of two puts in 4 MB and takes out as many
    assert gathers.best == pytest.approx(gathers.bandwidth)
    reduced = found["all_reduce"]
    assert (reduced.hidden, reduced.hidden_by) == (pytest.approx(0), "")
    assert reduced.bandwidth == pytest.approx(2 * 3 / 4 * 4 * SIZE / 20e-3)


def test_the_late_rank_and_its_skew_are_named():
    found = rows(job(late=8e-3))["all_reduce"]
    assert found.skew == pytest.approx(8e-3)
    assert (found.late, found.late_share) == (2, pytest.approx(1))
    assert found.waiting == pytest.approx(8e-3 * 3 / 4)  # of the mean of four ranks, of which one waits for nobody
    assert found.transfer == pytest.approx(20e-3)
    assert rows(job())["all_reduce"].late is None


def test_no_rank_is_named_where_several_come_late_by_turns():
    found = rows(job(late=8e-3, steps=12, by_turns=True))["all_reduce"]
    assert (found.late, found.late_share) == (None, 0)
    assert found.skew == pytest.approx(8e-3)


def test_a_group_is_priced_by_its_ranks_on_the_cluster():
    cluster = load_cluster("nccl:h100x2,400Gbps,ib")
    found = rows(job(), cluster)
    inside, across = pricing_of(cluster, 2), pricing_of(cluster, 4)
    for kind, pricing, size, workers in (("all_gather", inside, 8 * SIZE, 2), ("all_reduce", across, 4 * SIZE, 4)):
        expected = 4 * SIZE * bus_factor(kind, workers) / float(pricing.cost(kind)(size))
        assert found[kind].possible == pytest.approx(expected)
    buckets = {row.kind: row.possible for row in explain_trace(job(), cluster).buckets}
    assert buckets == {kind: pytest.approx(row.possible) for kind, row in found.items()}


def test_without_ranks_or_a_price_nothing_is_said_of_the_cluster():
    cluster = load_cluster("nccl:h100x2,400Gbps,ib")
    trace = job()
    unlisted = tuple(replace(rank, groups=()) for rank in trace.ranks)
    found = rows(replace(trace, ranks=unlisted), cluster)
    assert found["all_gather"].possible is None
    assert found["all_reduce"].possible is not None
    assert rows(job())["all_gather"].possible is None
    odd = tuple(
        replace(rank, steps=tuple(
            replace(step, collectives=tuple(replace(one, kind="gather") for one in step.collectives))
            for step in rank.steps
        )) for rank in trace.ranks
    )  # fmt: skip
    assert {row.possible for row in explain_trace(replace(trace, ranks=odd), cluster).collectives} == {None}


@pytest.mark.parametrize("cause", PLANTED)
def test_rows_hold_every_collective_once(cause):
    """Of the mean rank and step: no second is left out or counted twice, whatever the job."""
    trace = trace_of(PLANTED[cause])
    found = explain_trace(trace)
    every = [one for rank in trace.ranks for step in rank.steps for one in step.collectives]
    assert len({len(step.collectives) for rank in trace.ranks for step in rank.steps}) == 1
    assert sum(row.count for row in found.collectives) == pytest.approx(
        len(every) / len(trace.ranks) / len(found.steps)
    )
    exposed = sum(row.exposed for row in found.collectives)
    hidden = sum(row.hidden for row in found.collectives)
    assert exposed + hidden == pytest.approx(sum(row.transfer for row in found.collectives))
    assert all(row.exposed >= -1e-12 and row.hidden >= -1e-12 for row in found.collectives)


def test_the_groups_of_a_header_are_read_as_far_as_they_are_sound():
    def found(**entry):
        return process_groups({"distributedInfo": {"pg_config": [entry]}})[0]

    assert found(pg_name="7", pg_desc="mesh_tp", pg_size=2, ranks=[4, 0]) == ProcessGroup("7", "mesh_tp", 2, (0, 4))
    assert found(pg_name="7", pg_desc="undefined", ranks=[0, 1]) == ProcessGroup("7", "", 2, (0, 1))
    assert found(pg_name="7", pg_size=64, ranks=["0", "...", 63]) == ProcessGroup("7", "", 64, ())
    assert found(pg_name="7", pg_size=True, pg_desc=5, ranks=[-1]) == ProcessGroup("7")
    assert process_groups({"distributedInfo": {"pg_config": ["no", 3]}}) == ()


def test_members_are_said_in_few_words():
    def said(*ranks):
        one = rows(job())["all_reduce"]
        return group_words(replace(one, group="", members=ranks, size=len(ranks)))

    assert said(0, 1) == "ranks 0, 1"
    assert said(0, 1, 2, 3) == "ranks 0-3"
    assert said(0, 8, 16) == "ranks 0, 8 ... 16"
    assert said(0, 1, 3) == "ranks 0, 1, 3"
    assert said(*range(6), 9) == "ranks 0 ... 9"
