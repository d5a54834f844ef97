"""Prices between some of the workers: consecutive ones, and every n-th."""

from __future__ import annotations

import pytest

from osfmodel import CostError, load_cluster, pricing_of
from osfmodel.cost.clusters import strided
from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import AffineCost
from osfmodel.entities.cluster import AlphaBeta, Cluster, Pieces

SIZE = 64 << 20


@pytest.mark.parametrize(
    "name", ["nccl:h100x8,400Gbps,ib", "hierarchical:8,5us,200GB/s,50us,25Gbps", "ring:50us,10Gbps"]
)
def test_consecutive_ranks_pay_what_as_many_workers_do(name):
    cluster = load_cluster(name)
    for kind in ("all_gather", "reduce_scatter", "all_reduce"):
        part = pricing_of(cluster, 32).between(8).cost(kind)(SIZE)
        assert part == pricing_of(cluster, 8).cost(kind)(SIZE)


def test_ranks_of_several_nodes_have_a_network_card_each_where_each_gpu_has_one():
    """One GPU of each of four nodes, at 400 Gbit/s each, whatever the others send."""
    whole = load_cluster("nccl:h100x8,400Gbps,ib")
    alone = load_cluster("nccl:h100x1,400Gbps,ib")
    assert pricing_of(whole, 32).between(4, 8).cost()(SIZE) == pricing_of(alone, 4).cost()(SIZE)


def test_ranks_of_several_nodes_share_the_card_with_those_in_between():
    """Eight groups at once over one card of 25 Gbit/s take eight times as long as one."""
    cluster = load_cluster("hierarchical:8,0us,1e6GB/s,0us,25Gbps,1")
    alone = pricing_of(load_cluster("ring:0us,25Gbps"), 2).cost()(SIZE)
    assert pricing_of(cluster, 16).between(2, 8).cost()(SIZE) == pytest.approx(8 * alone, rel=1e-3)
    assert strided(cluster, 4).gpus_per_node == 2


def test_prices_of_tables_are_between_consecutive_ranks():
    cluster = load_cluster("v100-10gbe")
    assert strided(cluster, 1) is cluster
    tabulated = next(load_cluster(name) for name in ("emulated-4x1gbit",))
    assert pricing_of(tabulated, 4).between(4).workers == 4
    with pytest.raises(CostError):
        pricing_of(tabulated, 4).between(3)


def test_ranks_apart_send_what_all_of_them_send_together():
    """Eight groups of 4 or 8 ranks, one on each node, send M each while all 32 or 64 ranks would send 8 M."""
    cluster = load_cluster("azure-a100-hdr")
    for ranks in (4, 8):
        whole = pricing_of(cluster, 8 * ranks)
        part = whole.between(ranks, 8)
        assert part.per_host == 1
        for size in (SIZE // 64, SIZE):
            assert part.cost()(size) == pytest.approx(whole.cost()(8 * size))
        assert part.uncertainty > whole.uncertainty
    assert strided(cluster, 2).gpus_per_node == 4
    # Inside a node the places of ranks do not matter.
    assert pricing_of(cluster, 8).between(4, 2).cost()(SIZE) == pricing_of(cluster, 4).cost()(SIZE)
    with pytest.raises(CostError, match="no all_reduce table for 2 workers"):
        pricing_of(cluster, 64).between(2, 16)


@pytest.mark.parametrize(
    "rows",
    [
        {"fits": (AlphaBeta(4, 1e-5, 1e-9), AlphaBeta(16, 2e-5, 3e-9))},
        {"pieces": (Pieces(4, (1e-5,), (1e-9,)), Pieces(16, (2e-5, 4e-5), (3e-9, 2e-9)))},
    ],
)
def test_fitted_lines_serve_ranks_apart_too(rows):
    model = {"fits": "hockney", "pieces": "piecewise"}[next(iter(rows))]
    cluster = Cluster("lines", model, gpus_per_node=4, nodes=4, **rows)
    whole = pricing_of(cluster, 16)
    assert whole.between(4, 4).cost()(SIZE) == pytest.approx(whole.cost()(4 * SIZE))


def test_a_strided_cluster_has_room_for_as_many_ranks():
    cluster = load_cluster("azure-a100-hdr")
    for apart in (2, 8, 16, 64):
        assert strided(cluster, apart).capacity == 64 // apart
    assert strided(load_cluster("nccl:h100x8"), 1, 6).capacity == 8


def test_without_parts_only_all_workers_have_a_price():
    pricing = Pricing.of(AffineCost(((0.0, 1e-9),)), workers=4)
    assert pricing.between(4) is pricing
    with pytest.raises(CostError, match="between 4 workers, and not between 2"):
        pricing.between(2)


def test_a_slower_network_is_slower_between_some_too():
    pricing = pricing_of(load_cluster("ring:50us,10Gbps"), 8)
    assert pricing.slower(2).between(4).cost()(SIZE) == pytest.approx(2 * pricing.between(4).cost()(SIZE))
