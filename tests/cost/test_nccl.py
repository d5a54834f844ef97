"""NCCL's choice, worked out by hand from the tuner's constants, and what any choice must keep."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from itertools import permutations
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osfmodel import Cluster, CostError, NcclShape, cost_of, load_cluster
from osfmodel.cost import AffineCost, Sample, nccl, nccl_fit
from osfmodel.cost.nccl import CORRECTED, GRID, TUNER, Corrections, Way, lines, ways
from osfmodel.cost.nccl_constants import DEVICES, NETWORKS, PROTOCOLS, TREE_CORRECTION
from osfmodel.cost.placement import Placement, layout_of
from tests.conftest import ROOT

US, GB = 1e-6, 1e9
A100 = NcclShape("ampere", "nvswitch", 240 * GB)
H100 = NcclShape("hopper", "nvswitch", 370 * GB, 50 * GB, nvls=True)
ONE_NODE, FOUR_NODES = Placement(8, 1, 8, 8), Placement(32, 4, 8, 8)


def price(shape, place, corrections, only=None, collective="all_reduce"):
    """The cost of all ways, or of one alone."""
    found = ways(shape, place, collective, corrections)
    return AffineCost(lines({key: way for key, way in found.items() if only in (None, key)}, corrections))


@pytest.mark.parametrize(
    ("way", "latency", "seconds_per_gb"),
    [
        (("ring", "LL"), 6.6 + 14 * 0.6, 14 / 8 / 87.7),  # 240 / 2 is more than LL's most
        (("ring", "LL128"), 14.0 + 14 * 1.9, 14 / 8 / (8 * 20)),  # 240 * 120/128 is more than 8 channels carry
        (("ring", "Simple"), 8.4 + 14 * 3.4, 14 / 8 / 240),
        (("tree", "LL"), 6.8 + 2 * 7 * 0.6, 2 / (8 * 24 / 3.8)),  # 8 channels of 24 before LL's share
        (("tree", "LL128"), 14.0 + 2 * 7 * 1.25, 2 / (8 * 24 * 7 / 9)),
        (("tree", "Simple"), 8.4 + 2 * 7 * 4.0, 2 / (8 * 24)),
    ],
)
def test_one_node_of_a100_by_hand(way, latency, seconds_per_gb):
    assert ways(A100, ONE_NODE)[way][:2] == pytest.approx((latency * US, seconds_per_gb / GB))


@pytest.mark.parametrize(
    ("way", "latency", "seconds_per_gb"),
    [
        (("ring", "LL"), 6.6 + 56 * 1 + 6 * 2.7, 62 / 32 / 20.4),
        (("ring", "Simple"), 1.4 * (8.4 + 56 * 3.4 + 6 * 14), 62 / 32 / 370),
        (("tree", "LL128"), 14.0 + 2 * (7 * 1.25 + 2 * 8.5), 2 / (370 * 0.92 * 120 / 128)),
        (("NVLSTree", "Simple"), 25 + 4 * 14, 62 / 32 / min(400, 370 * 0.85 * 2 * 7 / 9)),
    ],
)
def test_four_nodes_of_h100_by_hand(way, latency, seconds_per_gb):
    """8 NICs of 50 GB/s carry more than the 370 GB/s of one GPU's links."""
    assert ways(H100, FOUR_NODES)[way][:2] == pytest.approx((latency * US, seconds_per_gb / GB))


@pytest.mark.parametrize(
    ("way", "latency", "seconds_per_gb"),
    [
        (("ring", "LL"), 6.6 + 14 * 1.0, 14 / 8 / 12),
        (("ring", "Simple"), 8.4 + 14 * 5.7, 14 / 8 / 24),
        (("tree", "LL"), 6.8 + 14 * 1.0, 2 / (24 * 0.92 / 3.8)),
        (("tree", "Simple"), 8.4 + 14 * 4.0, 2 / (24 * 0.92)),
    ],
)
def test_one_node_over_pcie_by_hand(way, latency, seconds_per_gb):
    shape = NcclShape("blackwell", "pcie", 24 * GB)
    assert ways(shape, ONE_NODE)[way][:2] == pytest.approx((latency * US, seconds_per_gb / GB))


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_ll128_of_a_ring_of_v100_is_what_two_channels_carry(nodes):
    """2 of 20 GB/s, where the links carry 112.5; inside a node 14 steps of 1.9 us."""
    shape = NcclShape("volta", "nvlink-mesh", 120 * GB, 50 * GB)
    found = ways(shape, Placement(8 * nodes, nodes, 8, 8))["ring", "LL128"]
    assert found.seconds_per_byte == pytest.approx(2 * (8 * nodes - 1) / (8 * nodes) / (40 * GB))
    assert nodes > 1 or found.latency == pytest.approx((14.0 + 14 * 1.9) * US)


def test_a_slow_network_is_the_bus():
    slow = replace(H100, nic_bandwidth=2 * GB)
    assert nccl.bus(slow, FOUR_NODES) == 16 * GB
    assert nccl.bus(slow, Placement(4, 2, 3, 1)) == 2 * GB
    assert nccl.bus(slow, ONE_NODE) == 370 * GB


def test_rings_of_the_mesh():
    """The links of a DGX-1 as printed; rings are edge-disjoint closed ways through the first GPUs, each both ways."""
    links = {(0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2}
    links |= {(2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2}

    def cycles(left, gpus):
        """Most closed ways through all ``gpus`` that the links left allow."""
        best = 0
        for order in permutations(range(1, gpus)):
            ends = [tuple(sorted(pair)) for pair in zip((0, *order), (*order, 0), strict=True)]
            if order[0] < order[-1] and all(left.get(end, 0) for end in ends):
                best = max(best, 1 + cycles({end: n - (end in ends) for end, n in left.items()}, gpus))
        return best

    for gpus in (3, 4, 5, 6):
        assert max(2 * cycles(links, gpus), 1) == nccl.known.MESH_RINGS[gpus]
    shape = NcclShape("volta", "nvlink-mesh", 120 * GB)
    assert [nccl.bus(shape, Placement(n, 1, n, n)) / GB for n in (2, 3, 4, 6, 8)] == [20, 40, 80, 40, 120]


def test_one_gpu_per_node_shows_the_whole_network_latency():
    """TUNING: with nothing inside the node the tree's latency of the network counts for rings too."""
    pair = ways(replace(H100, nvls=False), Placement(2, 2, 1, 1))
    assert pair["ring", "LL"].latency == pytest.approx((6.6 + 2 * 5.0) * US)


def test_nvls_by_the_tuner_and_by_bytes_through_a_link():
    """Tuner: twice the bus, less one channel in 16. Corrected: n + 1 parts of the message pass each GPU's link."""
    tuner = ways(H100, ONE_NODE, corrections=TUNER)["NVLS", "Simple"]
    corrected = ways(H100, ONE_NODE)["NVLS", "Simple"]
    assert tuner.latency == corrected.latency == 25 * US
    assert tuner.seconds_per_byte == pytest.approx(14 / 8 / (370 * GB * 0.85 * 2 * 15 / 16))
    assert corrected.seconds_per_byte == pytest.approx((8 + 1) / 8 / (370 * GB * 0.85))
    assert ("NVLS", "Simple") not in ways(H100, Placement(2, 1, 2, 2))
    assert ("NVLS", "Simple") not in ways(replace(H100, nvls=False), ONE_NODE)


@pytest.mark.parametrize(
    ("names", "links", "rate"),
    [("v100", 6, 20), ("a100", 12, 20), ("h100 h200", 18, 20.6), ("b200 b300 gb200", 18, 40.1)],
)
def test_gpus_have_the_bandwidth_of_their_links(names, links, rate):
    """To the whole 10 GB/s."""
    for name in names.split():
        assert DEVICES[name].bandwidth == pytest.approx(round(links * rate, -1) * GB)


def test_ll128_stays_off_pcie():
    shape = NcclShape("blackwell", "pcie", 24 * GB)
    assert {protocol for _, protocol in ways(shape, ONE_NODE)} == {"LL", "Simple"}


def test_half_a_ring_for_reduce_scatter_and_all_gather():
    for collective in ("reduce_scatter", "all_gather"):
        found = ways(H100, ONE_NODE, collective)
        assert {algorithm for algorithm, _ in found} == {"ring"}
        assert found["ring", "Simple"][:2] == pytest.approx(((8.4 + 7 * 3.4) * US, 7 / 8 / (370 * GB)))


def test_without_corrections_a_ring_is_one_line():
    found = ways(A100, ONE_NODE)["ring", "Simple"]
    assert lines({("ring", "Simple"): found}, TUNER) == (pytest.approx(found[:2], rel=1e-6),)


def test_filling_the_pipeline():
    """a + b M + 2 kappa sqrt(a b M) at every power of two, and never more than 2 % of the last term below it."""
    way, kappa = Way(3e-5, 2e-12), 0.3
    cost = AffineCost(lines({("ring", "Simple"): way}, Corrections(kappa, True)))

    def exact(size):
        return 3e-5 + 2e-12 * size + 2 * kappa * sqrt(3e-5 * 2e-12 * size)

    for size in 2.0 ** np.arange(6, 37):
        assert cost(size) == pytest.approx(exact(size), rel=1e-9)
    for size in 1.43 * 2.0 ** np.arange(6, 36):
        last = exact(size) - 3e-5 - 2e-12 * size
        assert exact(size) - 0.02 * last <= cost(size) <= exact(size) * (1 + 1e-12)


def test_a_tree_is_nowhere_below_the_tuners_own_curve():
    """Its size correction dips; lines can only bend down, so the dips are filled from above."""
    for protocol in PROTOCOLS:
        stretched = nccl.STRETCHED[protocol]
        table = np.array([*nccl.known.TREE_CORRECTION[protocol], *[1.0] * 8])
        assert (stretched >= GRID / table * (1 - 1e-12)).all()
        assert (np.diff(np.diff(stretched) / np.diff(GRID)) <= 1e-9).all()
        assert stretched[-1] == GRID[-1]


SHAPES = st.builds(
    lambda device, nic, gpus, workers: (
        NcclShape(device.generation, device.fabric, device.bandwidth, nic * GB, device.nvls),
        gpus,
        workers,
    ),
    st.sampled_from(list(DEVICES.values())),
    st.floats(0.1, 100),
    st.integers(1, 8),
    st.integers(2, 100),
)


@settings(max_examples=60)
@given(SHAPES, st.sampled_from(["all_reduce", "reduce_scatter", "all_gather"]))
def test_never_above_any_single_way_and_rising(drawn, collective):
    shape, gpus, workers = drawn
    cluster = Cluster("c", "nccl", gpus_per_node=gpus, nccl=shape)
    cost = cost_of(cluster, workers, collective)
    place = layout_of(workers, gpus)
    sizes = 2.0 ** np.arange(4, 34, 0.5)
    whole = cost(sizes)
    assert (np.diff(whole) > 0).all()
    singles = [AffineCost(lines({key: way}))(sizes) for key, way in ways(shape, place, collective).items()]
    assert whole == pytest.approx(np.min(singles, axis=0), rel=1e-6)
    assert len(cost.pieces) < 50


def test_corrections_never_make_it_faster_but_for_nvls():
    for place in (ONE_NODE, FOUR_NODES):
        slower = price(A100 if place is ONE_NODE else replace(H100, nvls=False), place, CORRECTED)
        tuner = price(A100 if place is ONE_NODE else replace(H100, nvls=False), place, TUNER)
        assert (slower(GRID) >= tuner(GRID) * (1 - 1e-9)).all()


def test_missing_data_is_named():
    alone = Cluster("lonely", "nccl", gpus_per_node=8, nccl=A100)
    with pytest.raises(CostError, match=r"'lonely' has no nic_bandwidth.*2 nodes"):
        cost_of(alone, 16)
    with pytest.raises(CostError, match="no nccl shape"):
        cost_of(replace(load_cluster("ring:1us,1Gbps"), cost_model="nccl"), 4)


def test_a_fit_in_one_node_asks_for_no_network():
    cluster = Cluster("c", "nccl", gpus_per_node=8, nccl=A100)
    samples = [Sample(n, 4**k, cost_of(cluster, n)(4**k)) for n in (2, 4, 8) for k in range(4, 15)]
    found = nccl_fit.fit(samples, 8)
    assert found.parameters["nccl"].nic_bandwidth is None
    assert found.worst_abs_residual < 1e-6


def test_what_samples_leave_open_stays_near_the_tuner():
    """Two single-GPU nodes: base and network latency cannot be told apart, so neither runs off to zero."""
    cluster = Cluster("c", "nccl", nccl=replace(A100, nic_bandwidth=GB, latency_scale=2.0, net_latency_scale=2.0))
    found = nccl_fit.fit([Sample(2, 4**k, cost_of(cluster, 2)(4**k)) for k in range(3, 15)], 1)
    shape = found.parameters["nccl"]
    assert found.worst_abs_residual < 1e-3
    assert shape.nic_bandwidth == pytest.approx(GB, rel=0.01)
    assert 1 < shape.latency_scale < 4
    assert 1 < shape.net_latency_scale < 4


@pytest.mark.parametrize(
    "samples",
    [
        [Sample(2, 1, 1e-3)],
        [Sample(2, 1, 1e9), Sample(16, 2**50, 1e-9)],
        [Sample(3, 8, 1e-12), Sample(3, 8, 1e6)],
        [Sample(10**6, 2**20, 1.0)],
    ],
)
def test_absurd_samples_still_give_a_shape(samples):
    found = nccl_fit.fit(samples, 8)
    assert np.isfinite(found.residuals).all()
    assert found.parameters["nccl"].gpu_bandwidth > 0


def test_a_fit_is_not_pulled_by_a_warm_up():
    """One sample a hundred times too slow moves the others' prices by less than a percent."""
    cluster = Cluster("c", "nccl", gpus_per_node=4, nccl=replace(A100, nic_bandwidth=25 * GB))
    samples = [Sample(n, 4**k, cost_of(cluster, n)(4**k)) for n in (2, 4, 8, 16) for k in range(4, 15)]
    spoilt = [replace(samples[0], time=samples[0].time * 100), *samples[1:]]
    assert np.abs(nccl_fit.fit(spoilt, 4).residuals[1:]).max() < 0.01


# ------------------------------------------------------------------------- figures, as docs/reference/nccl.md has them


@pytest.fixture(scope="module")
def bench():
    """benchmarks/nccl_model.py, which prints the tables of docs/reference/nccl.md."""
    specification = importlib.util.spec_from_file_location("nccl_model", ROOT / "benchmarks/nccl_model.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def report(bench):
    """Its figures, found once."""
    return bench.report()


def test_devices_left_out_are_predicted(report):
    """Every corrected figure on tables of devices that the factor was not learned on."""
    *devices, pooled = report["devices"]
    assert pooled["n"] == sum(row["n"] for row in devices) == 200
    assert pooled["median"] <= 0.12
    assert abs(pooled["bias"]) <= 0.02
    assert pooled["tuner"] == pytest.approx(0.253, abs=0.01)
    for row in devices:
        assert row["median"] <= (0.50 if "PCIe" in row["device"] else 0.155), row


def test_generations_left_out_are_predicted(report):
    assert report["leave_one_generation_out"] <= 0.12


def test_the_shipped_factor_is_what_all_devices_teach(report):
    assert report["devices"][-1]["kappa"] == pytest.approx(CORRECTED.pipeline)


def test_learning_does_not_see_held_out_data(bench):
    """An oracle shown failing: spoilt times of one device move the factor of all others and not its own."""
    measured = list(bench.tables(bench.MACHINES))
    spoilt = [
        table._replace(times=tuple(3 * time for time in table.times)) if table.device == "A100 SXM" else table
        for table in measured
    ]
    before, after = ({row[0].device: row[1] for row in bench.held_out(rows, "device")} for rows in (measured, spoilt))
    assert before["A100 SXM"] == after["A100 SXM"]
    assert all(before[device] < after[device] for device in before if device != "A100 SXM")


def test_counts_left_out_of_a_fit(report):
    """64 GPUs of Echo from 2 to 32 of them; with the figures' folder also vTrain's 3 and 6 GPUs from 2, 4 and 8."""
    found = dict(report["fits"])
    echo = found.pop("Echo, 64 GPUs from 2-32, 64 KiB-1 GiB")
    assert echo["nccl"] <= 0.055
    assert echo["nccl"] < echo["hierarchical"]
    for name, models in found.items():
        assert models["nccl"] <= (0.03 if "V100" in name else 0.06), name
        assert "V100" not in name or models["ring"] > 0.5  # a ring knows nothing of the mesh


def test_machines_never_learned_from(report):
    """None of these tables was used for fitting; docs/reference/nccl.md explains those that stay wrong."""
    wrong = (
        "AWS",
        "OCI",
        "Echo: Azure A100, 200G a GPU, 2 GPUs",
        "vTrain: A100 node, 2 GPUs",
        "vTrain: V100",
        "CoreWeave",
    )
    for row in report["further"]:
        assert row["median"] <= (0.52 if row["device"].startswith(wrong) else 0.10), row


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("nccl:h100x8,400Gbps", ""),
        ("nccl:b200x8,800Gbps", ""),
        ("nccl:v100x4,100Gbps", ""),
        ("nccl:h100x8,3200Gbps/gpu", ""),
        ("nccl:h100x8,3200Gbps/node", ""),
        ("nccl:h100x8", ""),
        ("nccl:v100x8,100Gbps", "machines with V100 have 50 Gbps per GPU. If the node has 100Gbps in all"),
        ("nccl:a100x8,400Gbps", "machines with A100 have 200 Gbps per GPU"),
        ("nccl:h100x8,400GB/s", "If the node has 400GB/s in all, write 400GB/s/node"),
        ("nccl:H100x1,3200Gbps", "3200Gbps is taken per GPU; machines with H100 have 400 Gbps per GPU"),
    ],
)
def test_a_rate_that_no_machine_has_is_questioned(words, said):
    cluster = load_cluster(words)
    found = nccl.doubts(cluster, 64)
    assert len(found) == bool(said)
    assert all(said in question for question in found)
    assert nccl.doubts(cluster, 1) == ()


def test_every_gpu_has_a_usual_network():
    assert NETWORKS.keys() == DEVICES.keys()


def test_nothing_measured_is_read():
    """A shape by words prices alike wherever profiles and figures lie: it opens no file."""
    cluster = load_cluster("nccl:b200x8,400Gbps")
    assert cluster.tables == cluster.fits == ()
    assert cluster.between_nodes is cluster.in_node is None
    assert cost_of(cluster, 64)(2**26) > 0


def test_the_page_shows_what_the_command_prints(bench, report):
    """Every line of every table: all figures that the command prints stand in rows."""
    page = (ROOT / "docs/reference/nccl.md").read_text(encoding="utf-8")
    printed = [line for line in bench.show(report) if line]
    assert len(printed) >= 30
    assert [line for line in printed if not line.startswith("|")] == []
    assert [line for line in printed if line not in page] == []


def test_the_page_has_no_other_row_of_figures(bench, report, data_folder):
    """The reverse, below the command; with the figures' folder, for without it some tables are not printed."""
    page = (ROOT / "docs/reference/nccl.md").read_text(encoding="utf-8")
    below = page.partition("python benchmarks/nccl_model.py")[2]
    shown = [line.strip() for line in below.splitlines() if line.strip().startswith("|")]
    assert sorted(shown) == sorted(line for line in bench.show(report) if line)


def test_of_parallel_lines_the_lowest_is_kept():
    assert nccl._lowest([(1.0, 3.0), (3.0, 2.0), (2.0, 2.0)]) == ((1.0, 3.0), (2.0, 2.0))


def test_corrections_of_trees_are_parts():
    for parts in TREE_CORRECTION.values():
        assert all(0 < part <= 1 for part in parts)
