"""Kernels of experts' all-to-alls against their published rates, by hand, and in words."""

from __future__ import annotations

from itertools import product

import pytest

from osfmodel import CostError, load_cluster
from osfmodel.cost import experts
from osfmodel.cost.experts import DEEPEP, NETWORK_SHARE, NVLINK_SHARE, distinct, seconds
from osfmodel.counting.groups import Parallelism
from osfmodel.planning.scaling.messages import prices_of

SIZE = 8 * 4096 * 7168 * 2
"""Bytes that a GPU sends in DeepEP's test: 8 experts for each of 4,096 tokens of 7,168 values of 2 bytes."""


@pytest.mark.parametrize(("places", "copies"), [(1, 3), (2, 1), (3, 4), (8, 2)])
def test_the_mean_number_of_places_is_that_of_all_draws(places, copies):
    draws = [len(set(draw)) for draw in product(range(places), repeat=copies)]
    assert distinct(places, copies) == pytest.approx(sum(draws) / len(draws))


def test_published_rates_are_shares_of_their_links():
    """By hand: 7/8 of 153 of 165 GB/s inside a node; 3/4 of 58 and 1/2 of 90 of 50 GB/s between nodes."""
    assert DEEPEP[0].shares[0] == pytest.approx(7 / 8 * 153 / 165)
    assert DEEPEP[2].shares[0] == pytest.approx(3 / 4 * 58 / 50)
    assert DEEPEP[5].shares[0] == pytest.approx(1 / 2 * 90 / 50)
    assert 0.8 < NVLINK_SHARE < NETWORK_SHARE < 0.9
    assert all(share < 1 for row in DEEPEP for share in row.shares)


@pytest.mark.parametrize("row", DEEPEP)
def test_published_runs_are_met(row):
    """Within 20 % of what dispatch was published to take; the rate counts every place that has an expert of a token."""
    cluster = load_cluster(f"nccl:{row.gpu}x8,400Gbps,ib,a2a=deepep")
    places = row.nodes if row.nodes > 1 else 8
    took = SIZE / 8 * distinct(places, 8) / row.dispatch
    assert seconds(cluster, 8 * row.nodes, SIZE, 8) == pytest.approx(took, rel=0.15)


def test_a_token_passes_the_network_once_for_each_node():
    """By hand, four nodes: 8 copies for NCCL, 3.6 nodes on average for DeepEP, 3/4 of them others."""
    plain, quick = (load_cluster(f"nccl:h100x8,400Gbps,ib{more}") for more in ("", ",a2a=deepep"))
    there = SIZE / 8 * distinct(4, 8) * 3 / 4 / (NETWORK_SHARE * 50e9)
    assert seconds(quick, 32, SIZE, 8) == pytest.approx(there + (8.4 + 14) * 1e-6)
    groups = Parallelism(expert=32)
    times = [prices_of(cluster, groups)["expert"]("all_gather", SIZE, 8) for cluster in (plain, quick)]
    assert times == pytest.approx([SIZE * 3 / 4 / 50e9, there + 22.4e-6], rel=0.02)


def test_gpus_without_nvlink_or_network_are_refused():
    with pytest.raises(CostError, match="needs NVLink"):
        seconds(load_cluster("nccl:l40sx8,a2a=deepep"), 8, SIZE, 8)
    with pytest.raises(CostError, match="no nic_bandwidth"):
        seconds(load_cluster("nccl:h100x8,a2a=deepep"), 16, SIZE, 8)
    assert experts.seconds(load_cluster("nccl:h100x8,a2a=deepep"), 8, 0, 8) == pytest.approx(8.4e-6)
