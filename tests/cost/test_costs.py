"""Closed forms of the textbook collectives, and the table's interpolation."""

from __future__ import annotations

import json
import math
from math import log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osfmodel import (
    AlphaBeta,
    Cluster,
    CostError,
    DataError,
    Link,
    NcclShape,
    OsfError,
    Table,
    cost_of,
    load_cluster,
)
from osfmodel.cost import AffineCost, TableCost, hierarchical
from osfmodel.cost.clusters import pricing_of
from osfmodel.cost.textbook import FORMULAS
from tests.conftest import ROOT

ALPHA, BETA, GAMMA = 3e-5, 1e-9, 2e-10
PUBLISHED = {
    "binary-tree": lambda n: (2 * ALPHA * log2(n), (2 * BETA + GAMMA) * log2(n)),
    "recursive-doubling": lambda n: (ALPHA * log2(n), (BETA + GAMMA) * log2(n)),
    "halving-doubling": lambda n: (2 * ALPHA * log2(n), 2 * BETA - (2 * BETA + GAMMA) / n + GAMMA),
    "double-binary-tree": lambda n: (2 * ALPHA * log2(n), BETA + GAMMA),
    "ring": lambda n: (2 * (n - 1) * ALPHA, 2 * (n - 1) / n * BETA + (n - 1) / n * GAMMA),
}


@pytest.mark.parametrize("algorithm", PUBLISHED)
@pytest.mark.parametrize("workers", [2, 4, 8, 64, 1024])
def test_table_2_of_mg_wfbp(algorithm, workers):
    """a and b of each all-reduce for powers of two, as printed."""
    cluster = Cluster("c", algorithm, between_nodes=Link(ALPHA, BETA, GAMMA))
    assert cost_of(cluster, workers).pieces[0] == pytest.approx(PUBLISHED[algorithm](workers), rel=1e-12)


@pytest.mark.parametrize("algorithm", FORMULAS)
@pytest.mark.parametrize("workers", range(2, 40))
def test_no_algorithm_beats_the_bandwidth_bound(algorithm, workers):
    """Reduce-scatter and all-gather move (N-1)/N of the message, all-reduce without splitting at least as much."""
    part = (workers - 1) / workers
    for collective, formula in FORMULAS[algorithm].items():
        load = formula(workers)
        assert load.sent >= part * (1 - 1e-12)
        assert load.rounds >= log2(workers) * (1 - 1e-12)
        assert load.reduced >= (0 if collective == "all_gather" else part * (1 - 1e-12))


@pytest.mark.parametrize("algorithm", ["ring", "halving-doubling"])
def test_all_reduce_is_its_two_halves(algorithm):
    for workers in (2, 4, 8, 16):
        whole, scatter, gather = (
            FORMULAS[algorithm][c](workers) for c in ("all_reduce", "reduce_scatter", "all_gather")
        )
        assert whole == pytest.approx([a + b for a, b in zip(scatter, gather, strict=True)])


def test_more_workers_never_cost_less():
    for algorithm in FORMULAS:
        costs = [
            cost_of(Cluster("c", algorithm, between_nodes=Link(ALPHA, BETA, GAMMA)), n)(10**6) for n in (2, 4, 8, 16)
        ]
        assert costs == sorted(costs)


def test_hierarchical_is_the_sum_of_its_phases():
    """4 nodes of 8: reduce-scatter and all-gather inside, all-reduce of an eighth between."""
    links = {"in_node": Link(1e-6, 1e-11), "between_nodes": Link(2e-5, 1e-9)}
    cluster = Cluster("c", "hierarchical", gpus_per_node=8, nics_per_node=8, **links)
    size = 10**7
    inside = 2 * 7 * 1e-6 + 2 * 7 / 8 * 1e-11 * size
    between = 2 * 3 * 2e-5 + 2 * 3 / 4 * 1e-9 * size / 8
    assert cost_of(cluster, 32)(size) == pytest.approx(inside + between)
    assert cost_of(cluster, 8)(size) == pytest.approx(inside)
    shared = Cluster("c", "hierarchical", gpus_per_node=8, nics_per_node=1, **links)
    assert cost_of(shared, 32)(size) == pytest.approx(inside + 2 * 3 * 2e-5 + 2 * 3 / 4 * 1e-9 * size)
    flat = Cluster("c", "ring", between_nodes=Link(2e-5, 1e-9))
    one_each = Cluster("c", "hierarchical", gpus_per_node=1, between_nodes=Link(2e-5, 1e-9))
    assert cost_of(one_each, 7)(size) == pytest.approx(cost_of(flat, 7)(size))


def test_a_ring_inside_one_node_uses_its_own_link():
    cluster = Cluster("c", "ring", gpus_per_node=4, in_node=Link(1e-6, 1e-11), between_nodes=Link(2e-5, 1e-9))
    assert cost_of(cluster, 4)(0) == pytest.approx(6e-6)
    assert cost_of(cluster, 5)(0) == pytest.approx(16e-5)


def test_table_keeps_jumps_up_and_down():
    """10, 30, 20, 40: the fall from 30 to 20 stays."""
    cost = TableCost((1000, 2000, 4000, 8000), (10.0, 30.0, 20.0, 40.0))
    assert [cost(size) for size in (1000, 1500, 2000, 3000, 4000)] == [10, 20, 30, 25, 20]
    assert cost.floor(1500) == 15
    assert cost.floor(2000) == 20


def test_table_extrapolates_by_the_measured_asymptote():
    """Slope from a quarter of the largest size to the largest; flat below the smallest."""
    cost = TableCost((1000, 2000, 4000, 8000), (10.0, 12.0, 20.0, 40.0))
    assert cost(16_000) == pytest.approx(40 + (40 - 12) / 6000 * 8000)
    assert cost(10) == 10
    assert cost.measured_range is None
    ranged = TableCost(cost.sizes, cost.times, measured_range=(1000, 8000))
    assert {ranged.slower(2).measured_range, ranged.plus(1).measured_range, ranged.floor.measured_range} == {
        (1000, 8000)
    }
    falling = TableCost((1000, 8000), (10.0, 5.0))
    assert falling(80_000) == 5


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 10)), min_size=2, max_size=12, unique_by=lambda p: p[0]),
    st.lists(st.integers(1, 4 * 10**6), min_size=1, max_size=20),
)
def test_floor_is_below_every_larger_message(points, sizes):
    points.sort()
    cost = TableCost(tuple(size for size, _ in points), tuple(time for _, time in points))
    for size in sizes:
        larger = np.array([size, *[s for s in cost.sizes if s >= size], 8 * 10**6], dtype=float)
        assert cost.floor(size) <= cost(larger).min() * (1 + 1e-9) + 1e-12


def test_minimum_of_lines():
    cost = AffineCost(((1.0, 0.1), (3.0, 0.01)))
    assert cost(10) == 2.0
    assert cost(100) == 4.0
    assert cost(np.array([10.0, 100.0])).tolist() == [2.0, 4.0]


def test_an_unmeasured_count_names_the_measured_ones(table_cluster):
    with pytest.raises(CostError, match="measured with 2, 4"):
        cost_of(table_cluster, 3)


def test_k80_ring_has_the_published_constants():
    """a = 2(n-1) 45.25 us, b = (2 beta + gamma)(n-1)/n."""
    import osfmodel as osf

    beta, gamma = 1.2 / (9 * 2**30 / 8), 2.5e-9
    for workers in (8, 64, 1024):
        a, b = cost_of(osf.load_cluster("k80-10gbe-ring"), workers).pieces[0]
        assert a == pytest.approx(2 * (workers - 1) * 45.25e-6)
        assert b == pytest.approx((2 * beta + gamma) * (workers - 1) / workers)


@pytest.mark.parametrize(("name", "a", "b"), [("v100-10gbe", 9.08e-4, 7.40e-10), ("v100-56gib", 2.36e-4, 4.06e-10)])
def test_v100_clusters_have_the_published_line_at_16_workers(name, a, b):
    import osfmodel as osf

    cluster = osf.load_cluster(name)
    assert cost_of(cluster, 16).pieces[0] == pytest.approx((a, b), rel=2e-3)
    assert "ring formula" in cluster.source.conditions


def test_every_bundled_table_gives_back_what_was_measured_but_for_sizes_cheaper_than_large_ones():
    import osfmodel as osf

    seen = 0
    for path in sorted((ROOT / "profiles" / "clusters").glob("*.json")):
        for row in json.loads(path.read_text()).get("tables", []):
            cost = cost_of(osf.load_cluster(path.stem), row["workers"], row.get("collective", "all_reduce"))
            busy = max if osf.load_cluster(path.stem).in_flight > 1 else lambda alone, train: train
            trains = [*map(busy, row["time_s"], row.get("train_s", []))]
            rows = list(zip(row["bytes"], [*trains, *row["time_s"][len(trains) :]], strict=True))
            rate = min(time / size for size, time in rows if 4 * size >= row["bytes"][-1])
            assert all(cost(size) == time for size, time in rows if time >= rate * size)
            assert all(cost(size) == pytest.approx(rate * size) for size, time in rows if time < rate * size)
            seen += 1
    assert seen > 20


@pytest.mark.parametrize(
    ("sizes", "times", "said"),
    [
        ((1, 2), (1.0, -1.0), r"a time of a cost table is -1\.0"),
        ((1, 2), (math.nan, 1.0), "a time of a cost table is nan"),
        ((-1, 2), (1.0, 1.0), "the smallest size of a cost table is -1"),
        ((2, 2), (1.0, 1.0), "sizes of a cost table must increase"),
        ((1,), (1.0,), "two points or more"),
        ((1, 2), (1.0, 1.0, 1.0), "as many times as sizes"),
    ],
)
def test_impossible_tables_are_refused(sizes, times, said):
    with pytest.raises(OsfError, match=said):
        TableCost(sizes, times)


def test_halves_without_prices_are_assumed_where_there_is_anything_to_pay():
    """A fit to all-reduces has none of reduce-scatter and all-gather; one worker pays nothing."""
    fitted = Cluster("c", "hockney", fits=(AlphaBeta(4, 1.0, 0.01),))
    assert pricing_of(fitted, 4).assumed == ("reduce_scatter", "all_gather")
    assert pricing_of(fitted, 1).assumed == ()


@pytest.mark.parametrize(("workers", "sent"), [(2, 0.5), (4, 1.25), (8, 2.125)])
def test_recursive_doubling_leaves_out_each_workers_own_part(workers, sent):
    """log2(P) messages of the whole less one P-th part, and never less than the rest of the message."""
    load = FORMULAS["recursive-doubling"]["reduce_scatter"](workers)
    assert tuple(load) == (workers.bit_length() - 1, sent, sent)


def test_tables_and_generations_that_cannot_be_are_refused():
    with pytest.raises(DataError, match="has 3 sizes and 2 times: it needs 2 or more of each"):
        Table(2, (1, 2, 3), (0.1, 0.2))
    with pytest.raises(DataError, match="has 2 times and 1 slowest ones"):
        Table(2, (1, 2), (0.1, 0.2), slowest=(0.3,))
    with pytest.raises(DataError, match=r"the slowest repeat, 0.1 s, is shorter than the time, 0.2 s"):
        Table(2, (1, 2), (0.1, 0.2), slowest=(0.1, 0.1))
    with pytest.raises(DataError, match="unknown GPU generation 'hoper': did you mean hopper"):
        NcclShape("hoper", "nvswitch", 1e11)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("hierarchical:8,5us,200GB/s,50us,25Gbps/node", "25 Gbps per node, shared by its 8 GPUs"),
        ("hierarchical:8,5us,200GB/s,50us,25Gbps", "25 Gbps per GPU, 200 Gbps per node"),
        ("hierarchical:8,5us,200GB/s,50us,25Gbps,4", "25 Gbps per NIC, 100 Gbps per node"),
        ("hierarchical:1,5us,200GB/s,50us,25Gbps", "25 Gbps per GPU"),
    ],
)
def test_rates_name_their_owner(text, rate):
    assert hierarchical.rates(load_cluster(text)) == rate
