"""Prices between some of the workers: consecutive ones, and every n-th."""

from __future__ import annotations

import pytest

from osfmodel import CostError, load_cluster, pricing_of
from osfmodel.cost.clusters import strided
from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import AffineCost

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


def test_without_parts_only_all_workers_have_a_price():
    pricing = Pricing.of(AffineCost(((0.0, 1e-9),)), workers=4)
    assert pricing.between(4) is pricing
    with pytest.raises(CostError, match="between 4 workers, and not between 2"):
        pricing.between(2)


def test_a_slower_network_is_slower_between_some_too():
    pricing = pricing_of(load_cluster("ring:50us,10Gbps"), 8)
    assert pricing.slower(2).between(4).cost()(SIZE) == pytest.approx(2 * pricing.between(4).cost()(SIZE))
