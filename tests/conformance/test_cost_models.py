"""Every entry of COST_MODELS, the moment it is listed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from osfmodel import (
    COST_MODELS,
    AlphaBeta,
    Cluster,
    CostError,
    Link,
    NcclShape,
    Pieces,
    Protocol,
    Table,
    UsageError,
    cost_of,
)
from osfmodel.cost import Sample
from osfmodel.cost.faster_network import Change, faster_network
from osfmodel.entities.cluster import COLLECTIVES

COUNTS = (2, 3, 4, 6, 8, 12, 16, 32)
SIZES = tuple(4**k for k in range(4, 15))


def cluster_for(model: str) -> Cluster:
    """A cluster with everything that any model reads."""
    lines = [(n, 1e-5 * n, 1e-9 * (2 - 1 / n)) for n in COUNTS]
    return Cluster(
        "everything",
        model,
        gpus_per_node=4,
        between_nodes=Link(2e-5, 1e-9),
        in_node=Link(3e-6, 1e-10),
        fits=tuple(AlphaBeta(n, a, b, c) for n, a, b in lines for c in COLLECTIVES),
        pieces=tuple(Pieces(n, (a, 9 * a), (30 * b, b), c) for n, a, b in lines for c in COLLECTIVES),
        protocols=(
            Protocol(5e-6, 1e-10, Link(2e-6, 3e-10), Link(9e-6, 9e-9)),
            Protocol(9e-5, 2e-11, Link(4e-6, 2e-11), Link(4e-5, 1e-9)),
        ),
        tables=tuple(Table(n, SIZES, tuple(a + b * s for s in SIZES), c) for n, a, b in lines for c in COLLECTIVES),
        nccl=NcclShape("hopper", "nvswitch", 3e11, 4e10, nvls=True, latency_scale=1.5, net_latency_scale=2.0),
    )


@pytest.mark.covering
@pytest.mark.parametrize("model", COST_MODELS)
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("workers", COUNTS)
def test_prices_are_sane(model, collective, workers):
    """Positive, not falling with size here, and the same for a number as for an array."""
    cost = cost_of(cluster_for(model), workers, collective)
    array = cost(np.array(SIZES, dtype=float))
    assert array == pytest.approx([cost(size) for size in SIZES], rel=1e-12)
    assert (array > 0).all()
    assert (np.diff(array) > 0).all()
    assert (cost.floor(np.array(SIZES, dtype=float)) <= array * (1 + 1e-12)).all()


@pytest.mark.parametrize("model", COST_MODELS)
def test_one_worker_pays_nothing(model):
    assert cost_of(cluster_for(model), 1)(10**9) == 0


@pytest.mark.parametrize("model", COST_MODELS)
def test_a_fit_of_its_own_prices_finds_them_again(model):
    """Without noise the residuals vanish and the fitted cluster prices as the true one."""
    true = cluster_for(model)
    samples = [Sample(n, size, cost_of(true, n)(size)) for n in COUNTS for size in SIZES]
    found = COST_MODELS[model].fit(samples, true.gpus_per_node)
    assert found.worst_abs_residual < 1e-6
    assert len(found.residuals) == len(samples)
    fitted = replace(true, **found.parameters)
    for sample in samples:
        assert cost_of(fitted, sample.workers)(sample.size) == pytest.approx(sample.time, rel=1e-6)


@pytest.mark.parametrize("model", COST_MODELS)
def test_residuals_show_noise(model):
    """Repeated samples that disagree by 10 % leave residuals of that order, and they are fitted / measured - 1."""
    true = cluster_for(model)
    samples = [
        Sample(n, size, cost_of(true, n)(size) * factor)
        for n in COUNTS[::3]
        for size in SIZES
        for factor in (0.9, 1.0, 1.1)
    ]
    found = COST_MODELS[model].fit(samples, true.gpus_per_node)
    assert 0.05 < found.worst_abs_residual < 0.2
    fitted = replace(true, **found.parameters)
    for sample, residual in zip(samples, found.residuals, strict=True):
        assert cost_of(fitted, sample.workers)(sample.size) / sample.time - 1 == pytest.approx(residual, abs=1e-9)


@pytest.mark.parametrize("model", COST_MODELS)
def test_without_samples_there_is_no_fit_and_no_price(model):
    with pytest.raises(CostError, match=r"there are no samples to fit|needs all-reduce times"):
        COST_MODELS[model].fit([], 4)
    for bare in (Cluster("bare", model), Cluster("bare", model, tables=(Table(64, (1, 2), (1.0, 1.0)),))):
        with pytest.raises(CostError, match=r"'bare' (has no|was measured with 64)"):
            cost_of(bare, 5)


@pytest.mark.parametrize("workers", [0, -1, 1.5, "2", True])
def test_impossible_worker_counts(workers):
    with pytest.raises(UsageError, match="whole number"):
        cost_of(cluster_for("ring"), workers)


def test_unknown_names_and_too_many_workers():
    with pytest.raises(UsageError, match="unknown collective"):
        cost_of(cluster_for("ring"), 2, "broadcast")
    with pytest.raises(CostError, match="known are hockney"):
        cost_of(replace(cluster_for("ring"), cost_model="torus"), 2)
    with pytest.raises(CostError, match="has 8"):
        cost_of(replace(cluster_for("ring"), nodes=2), 9)


def one_network(model: str) -> Cluster:
    """Everything that any model reads, one GPU per node: nothing but the network is between the workers."""
    return replace(cluster_for(model), gpus_per_node=1)


@pytest.mark.covering
@pytest.mark.parametrize("workers", COUNTS)
@pytest.mark.parametrize("model", COST_MODELS)
def test_what_if_the_network_were_faster(model, workers):
    """x1 is what there is; more bandwidth and less latency are never slower, and each helps somewhere."""
    for cluster in (cluster_for(model), one_network(model)):
        assert faster_network(cluster) == cluster
        for collective in COLLECTIVES:
            price = prices(cluster, workers, collective)
            for change in ({"bandwidth": Change(2)}, {"bandwidth": Change(1.01)}, {"latency": Change(0.5)}):
                assert (prices(faster_network(cluster, **change), workers, collective) <= price * (1 + 1e-12)).all()
    slow = prices(one_network(model), workers)
    for change in ({"bandwidth": Change(2)}, {"latency": Change(0.5)}):
        assert (prices(faster_network(one_network(model), **change), workers) < slow * 0.999).any()


@pytest.mark.covering
@pytest.mark.parametrize("workers", COUNTS)
@pytest.mark.parametrize("model", COST_MODELS)
def test_what_if_bandwidth_had_no_end(model, workers):
    """With endless bandwidth prices do not depend on size, except for the part that depends on no network."""
    cluster = one_network(model)
    endless = cost_of(faster_network(cluster, bandwidth=Change(1e15)), workers)
    assert COST_MODELS[model].network_independent or endless(2**36) == pytest.approx(endless(0), rel=1e-3)
    assert endless(0) <= endless(2**36) < cost_of(cluster, workers)(2**36)
    assert endless(0) <= cost_of(cluster, workers)(0)
    twice = prices(faster_network(cluster, latency=Change(2)), workers)
    assert (twice <= 2 * prices(cluster, workers) * (1 + 1e-12)).all()


@pytest.mark.parametrize("model", COST_MODELS)
def test_what_if_latency_were_longer(model):
    """A vanishing message takes k times as long, or less where the model says that part of it is no network's."""
    cluster = replace(one_network(model), tables=(Table(8, (1, 10**9), (2e-5, 1.0)),))
    before = cost_of(cluster, 8)(0)
    slower = cost_of(faster_network(cluster, latency=Change(3.0)), 8)(0)
    assert before < slower <= 3 * before * (1 + 1e-12)
    assert bool(COST_MODELS[model].network_independent) == (slower < 3 * before * (1 - 1e-12))


@pytest.mark.parametrize("model", COST_MODELS)
def test_what_if_a_link_had_another_bandwidth(model):
    """A model described by a link takes a value for bandwidth or latency; another refuses, and says how to ask."""
    cluster, figures = one_network(model), {"bandwidth": Change(value=1e11), "latency": Change(value=1e-6)}
    for name, change in figures.items():
        if name in COST_MODELS[model].link_parameters:
            assert (prices(faster_network(cluster, **{name: change}), 8) <= prices(cluster, 8)).all()
        else:
            with pytest.raises(UsageError, match=f"is not described by a {name} of a link: .* such as --{name} x2"):
                faster_network(cluster, **{name: change})


def prices(cluster: Cluster, workers: int, collective: str = "all_reduce") -> np.ndarray:
    return cost_of(cluster, workers, collective)(np.array(SIZES, dtype=float))
