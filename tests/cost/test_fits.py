"""Fits of minima of lines: recovery, robustness, jumps, and the held-out errors that the documentation states."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import fits
from osfmodel import (
    COST_MODELS,
    Cluster,
    CostError,
    FittedRange,
    Link,
    OsfError,
    Protocol,
    Table,
    cost_of,
    predict,
    tune,
)
from osfmodel.cost import AffineCost, Fit, Sample, TableCost, fitting
from osfmodel.cost.fitting import MOST_PIECES, fit_minimum, samples_of, soft_l1
from osfmodel.cost.model import CostModel
from osfmodel.formats import Hints, import_file
from tests.draws import examples

SIZES = tuple(2**k for k in range(10, 30))
LINES = AffineCost(((1e-5, 1e-9), (4e-5, 1e-10), (1e-4, 2e-11)))


def table_of(cost, workers=8, sizes=SIZES, factors=None):
    times = tuple(cost(size) * factor for size, factor in zip(sizes, factors or [1.0] * len(sizes), strict=True))
    return Table(workers, sizes, times)


def one_line(workers, size):
    return 1.0, size


def test_three_lines_are_found_in_exact_data():
    """Number and figures; no fourth line is invented."""
    found = fit_minimum(samples_of([table_of(LINES)]), one_line)
    assert np.array(sorted(found.pieces)) == pytest.approx(np.array(LINES.pieces), rel=1e-6)
    assert max(map(abs, found.residuals)) < 1e-9


@settings(max_examples=examples(2))
@given(st.lists(st.floats(0.7, 1.4), min_size=len(SIZES), max_size=len(SIZES)))
def test_a_minimum_is_never_negative_nor_falling(factors):
    """Whatever the noise: monotone in size, and per byte never dearer."""
    found = COST_MODELS["piecewise"].fit(samples_of([table_of(LINES, factors=factors)]), 1)
    cost = cost_of(Cluster("c", "piecewise", **found.parameters), 8)
    times = cost(np.array(SIZES, dtype=float))
    assert 1 <= len(cost.pieces) <= MOST_PIECES
    assert (times > 0).all()
    assert (np.diff(times) >= 0).all()
    assert (np.diff(times / np.array(SIZES)) <= 1e-18).all()


@pytest.mark.parametrize("model", ["hockney", "ring", "piecewise"])
def test_one_outlier_in_twenty_hardly_moves_a_fit(model):
    """A sample four times too slow shifts least squares by tens of percent; here the others keep their times."""
    line = AffineCost(((2e-5, 1e-10),))
    factors = [1.0] * len(SIZES)
    factors[11] = 4.0
    found = COST_MODELS[model].fit(samples_of([table_of(line, factors=factors)]), 1)
    others = [abs(residual) for k, residual in enumerate(found.residuals) if k != 11]
    assert max(others) < 0.02
    assert found.residuals[11] == pytest.approx(-0.75, abs=0.01)


def test_small_errors_count_squared_and_large_ones_less():
    assert soft_l1(np.array([1e-4])) == pytest.approx(1e-8, rel=1e-5)
    assert soft_l1(np.array([1.0]))[0] < 0.1


def test_protocols_at_counts_and_halves():
    """By hand: 16 workers on 2 nodes, 2 * 7 hops inside, 2 * log2 2 between, every node with one NIC."""
    protocol = Protocol(1e-5, 1e-12, Link(1e-6, 2e-12), Link(5e-6, 4e-12))
    cluster = Cluster("c", "protocols", gpus_per_node=8, protocols=(protocol,))
    ((latency, per_byte),) = cost_of(cluster, 16).pieces
    assert latency == pytest.approx(1e-5 + 14e-6 + 2 * 5e-6)
    assert per_byte == pytest.approx(1e-12 + 2 * 7 / 8 * 2e-12 + 2 * 1 / 2 * 4e-12)
    ((half_latency, half_per_byte),) = cost_of(cluster, 16, "all_gather").pieces
    assert half_latency == pytest.approx(1e-5 + 7e-6 + 5e-6)
    assert half_per_byte == pytest.approx(per_byte / 2)
    assert cost_of(replace(cluster, nics_per_node=8), 16).pieces[0][1] == pytest.approx(
        1e-12 + 1.75 * 2e-12 + 4e-12 / 8
    )


def test_what_was_not_measured_is_refused():
    """One count alone, and hops that no sample had."""
    fit = COST_MODELS["protocols"].fit
    with pytest.raises(CostError, match="two worker counts"):
        fit(samples_of([table_of(LINES)]), 8)
    found = fit(samples_of([table_of(LINES, 4), table_of(LINES, 8)]), 8)
    inside = Cluster("c", "protocols", gpus_per_node=8, **found.parameters)
    assert cost_of(inside, 6)(10**6) > 0
    with pytest.raises(CostError, match="without between_nodes, which was not measured"):
        cost_of(inside, 16)


@pytest.mark.parametrize("model", COST_MODELS)
def test_every_fit_states_its_range(model):
    """Range, counts and jumps, whatever the model; and a summary of one line."""
    falling = [1.0] * len(SIZES)
    falling[12] = 2.0
    tables = [table_of(LINES, workers) for workers in (2, 4, 8)] + [table_of(LINES, 16, factors=falling)]
    found = COST_MODELS[model].fit(samples_of(tables), 4)
    assert (found.span, found.workers) == ((1024, 2**29), (2, 4, 8, 16))
    assert any("4.000 MiB is slower than 8.000 MiB at 16 workers" in sentence for sentence in found.jumps)
    assert all("16 workers" in sentence for sentence in found.jumps)
    assert "80 samples; 1.000 KiB to 512.0 MiB; 2, 4, 8, 16 workers" in found.summary
    assert "\n" not in found.summary


def test_a_bare_fit_has_a_summary():
    assert Fit({}, (0.1, -0.2)).summary == "median residual 15.0%; worst 20.0%; 2 samples"


def test_jumps_are_falls_and_rises_beyond_the_noise():
    times = [LINES(size) for size in SIZES]
    assert fitting.find_jumps(SIZES, times) == []
    up = [time * (3 if k >= 9 else 1) for k, time in enumerate(times)]
    ((size, _, next_size, _, excess),) = fitting.find_jumps(SIZES, up)
    assert (size, next_size) == (SIZES[8], SIZES[9])
    assert excess > 0.1
    assert "is faster per byte than" in fitting.jumps_in_words(8, SIZES, up)[0]
    assert fitting.find_jumps((1, 2), (1.0, 0.5))[0].falls
    wild = [time * (1 + (k % 2)) for k, time in enumerate(times)]
    assert len(fitting.find_jumps(SIZES, wild)) == 0, "what alternates all the time is noise"


def test_a_run_of_falls_is_one_jump_and_many_are_cut_short():
    sizes = tuple(range(1, 401))
    times = [1.0 * (1.5 if k % 50 == 0 else 1) * (0.99 if k % 2 else 1) for k in sizes]
    words = fitting.jumps_in_words(4, sizes, times)
    assert len(words) == fitting.SHOWN + 1
    assert "smaller jumps at 4 workers" in words[-1]
    (run,) = fitting.find_jumps((1, 2, 3, 4, 5, 6), (1.0, 1.0, 0.9, 0.7, 0.7, 0.7))
    assert (run.size, run.next_size) == (2, 4)


def test_the_table_that_jumps_is_flagged_and_smooth_ones_are_not(data_folder):
    """6KD, PCIe with P2P off: a protocol switch between 4 and 8 MiB. Echo in one node, DGX A100, EFA: none."""
    (cluster,) = import_file(data_folder / "comm_tables/issues/6kd_2nodes_ib_p2p_off.csv", Hints("6kd"))
    (table,) = cluster.tables
    words = fitting.jumps_in_words(16, table.sizes, table.times)
    assert words[0].startswith("4.000 MiB is slower than 8.000 MiB at 16 workers")
    assert COST_MODELS["piecewise"].fit(samples_of(cluster.tables), 8).jumps == words
    for file in ("deepops/dgxa100_2nodes_8xhdr.csv", "aws-efa/p4d_2nodes_2022.csv", "oci/a100_2nodes.csv"):
        (smooth,) = fits.clusters(data_folder, file)
        assert fitting.jumps_in_words(16, smooth.tables[0].sizes, smooth.tables[0].times) == ()
    (echo,) = fits.clusters(data_folder, fits.TABLES[0])
    flagged = {table.workers: fitting.find_jumps(table.sizes, table.times) for table in echo.tables}
    assert [workers for workers, found in flagged.items() if found] == [64]


@pytest.mark.filterwarnings("ignore:rows of one set-up have several numbers of GPUs per node")
@pytest.mark.parametrize("first", [0, pytest.param(1, marks=pytest.mark.long)])
def test_held_out_sizes_of_the_recommended_model(data_folder, first):
    """Tables as they are, straight lines between points. The bounds of the project, then what is reached."""
    figures = fits.over_sizes(fits.every_second(data_folder, fits.METHODS["tabulated (linear)"], first))
    assert figures["tables"] == 60
    assert figures["median_of_medians"] <= 0.03
    assert figures["largest_median"] <= 0.08
    assert figures["p95_powers_of_two"] <= 0.20
    assert figures["median_of_medians"] <= 0.015


@pytest.mark.parametrize("others", [(), pytest.param((5, 9), marks=pytest.mark.long)])
def test_held_out_sizes_of_the_minimum_of_lines(data_folder, monkeypatch, others):
    """Echo alone, to be quick: four of its five tables within 4 %, the noisy one at 64 GPUs reported as it is.

    With fewer or more quantiles at which sizes may be divided, one of the five moves, by half a percent.
    """
    monkeypatch.setattr(fits, "TABLES", fits.TABLES[:1])
    found = {}
    for cuts in (fitting.CUTS, *others):
        monkeypatch.setattr(fitting, "CUTS", cuts)
        found[cuts] = fits.every_second(data_folder, fits.METHODS["piecewise (min of K)"])
        assert all(row.median <= 0.04 for row in found[cuts] if row.workers != 64)
        assert all(row.median <= 0.15 for row in found[cuts])
    medians = {cuts: [row.median for row in held] for cuts, held in found.items()}
    for cuts in others:
        moved = [abs(one - other) for one, other in zip(medians[cuts], medians[7], strict=True)]
        assert sum(step > 1e-4 for step in moved) == 1
        assert max(moved) <= 0.006


@pytest.mark.filterwarnings("ignore:rows of one set-up have several numbers of GPUs per node")
def test_how_many_tables_jump_hangs_little_on_the_deviations_asked(data_folder, monkeypatch):
    tables = [table for file in fits.TABLES for cluster in fits.clusters(data_folder, file) for table in cluster.tables]
    assert len(tables) == 61
    found = {}
    for deviations in (3.0, fitting.DEVIATIONS, 5.0):
        monkeypatch.setattr(fitting, "DEVIATIONS", deviations)
        found[deviations] = sum(bool(fitting.find_jumps(table.sizes, table.times)) for table in tables)
    assert found == {3.0: 20, 4.0: 18, 5.0: 17}


def test_held_out_worker_counts_of_echo(data_folder):
    """Echo's 64 GPUs from 2-32. The formula must beat rings with one latency and one bandwidth at each level."""
    (echo,) = fits.clusters(data_folder, fits.TABLES[0])
    span = (64 * fits.KIB, fits.GIB)
    errors, found = fits.over_workers(echo, "protocols", (2, 4, 8, 16, 32), (64,), span)
    assert len(errors) == 15
    assert 64 not in found.workers
    assert np.median(np.abs(errors)) <= 0.06
    plain, _ = fits.over_workers(echo, "hierarchical", (2, 4, 8, 16, 32), (64,), span)
    assert np.median(np.abs(plain)) > np.median(np.abs(errors))


def test_held_out_worker_counts_in_a_node(data_folder):
    """vTrain's 3 and 6 GPUs from 2, 4, 8; every sixteenth of its 1024 sizes (benchmarks/fits.py takes all)."""
    a100, v100 = (
        replace(
            cluster,
            gpus_per_node=8,
            tables=tuple(Table(row.workers, row.sizes[::16], row.times[::16]) for row in cluster.tables),
        )
        for cluster in fits.clusters(data_folder, fits.TABLES[2])
    )
    errors, _ = fits.over_workers(a100, "protocols", (2, 4, 8), (3, 6), (1, fits.GIB))
    assert np.median(np.abs(errors)) <= 0.012
    # Rings of the NVLink mesh follow no smooth law in N: the failure is a finding, and its residual says so beforehand.
    errors, found = fits.over_workers(v100, "protocols", (2, 4, 8), (3, 6), (1, fits.GIB))
    assert np.median(np.abs(errors)) > 0.3
    assert found.median_abs_residual > 0.15
    errors, _ = fits.over_workers(v100, "nccl", (2, 4, 8), (3, 6), (1, fits.GIB))
    assert np.median(np.abs(errors)) <= 0.03, "which counts the rings that close in the mesh"


def test_samples_that_are_too_few_are_refused():
    with pytest.raises(CostError, match="1 samples cannot determine 2 parameters"):
        COST_MODELS["piecewise"].fit([Sample(2, 1024, 1e-5)], 1)


def test_the_knots_of_a_formula_are_no_measurement(small_workload, monkeypatch):
    """A formula whose slope rises yields a table; what was measured is what it was fitted to, as for lines."""
    knots = TableCost((1, 100, 1000), (1e-6, 2e-6, 2e-3))
    model = CostModel(lambda cluster, workers, collective: knots, COST_MODELS["ring"].fit, "bends upwards")
    monkeypatch.setitem(COST_MODELS, "bent", model)
    cluster = Cluster("c", "bent", fitted=FittedRange(8, 2**28, (4,)))
    assert cost_of(cluster, 4).measured_range == (8, 2**28)
    assert predict(small_workload, cluster, "single", 4).warnings == ()
    assert predict(small_workload, replace(cluster, fitted=None), "single", 4).warnings == ()
    (below,) = predict(small_workload, replace(cluster, fitted=FittedRange(800, 900, (4,))), "single", 4).warnings
    assert below == "messages under 800 B were not measured; their times are extrapolated"
    measured = Cluster("t", "tabulated", tables=(Table(4, (800, 900), (1.0, 2.0)),), fitted=cluster.fitted)
    assert cost_of(measured, 4).measured_range == (800, 900)
    (below,) = predict(small_workload, measured, "single", 4).warnings
    assert below == "messages under 800 B were not measured; they are assumed to take as long as 800 B"


def test_prices_beyond_a_fit_carry_a_warning(small_workload):
    """By size and by worker count, in predictions and in tuning; inside the range there is none."""
    sizes = tuple(2**k for k in range(4, 14))
    found = COST_MODELS["protocols"].fit(samples_of([table_of(LINES, n, sizes) for n in (2, 4)]), 8)
    cluster = Cluster("c", "protocols", gpus_per_node=8, **found.parameters)
    assert cost_of(cluster, 4).measured_range == cost_of(cluster, 4).slower(2).measured_range == (16, 8192)
    assert predict(small_workload, cluster, "single", 4).warnings == ()
    (count,) = predict(small_workload, cluster, "single", 8).warnings
    assert count == "prices for 8 workers are extrapolated from a fit to 2, 4 workers"
    small = replace(cluster, fitted=FittedRange(512, 600, (2, 8)))
    above, below = predict(small_workload, small, "ddp", 8).warnings, predict(small_workload, small, "wfbp", 8).warnings
    assert any("messages over 600 B were not measured; their times are extrapolated" in note for note in above)
    assert any("messages under 512 B were not measured; their times are extrapolated" in note for note in below)
    assert any("fit to 2, 4 workers" in note for note in tune(small_workload, cluster, [4, 8]).warnings)
    assert tune(small_workload, cluster, 4).warnings == ()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ((1, 8, 1.0), "workers of a sample is 1"),
        ((2, 0, 1.0), "size of a sample is 0"),
        ((2, 8, -1.0), r"time of a sample is -1\.0"),
        ((2, 8, 0.0), "takes no time"),
    ],
)
def test_impossible_samples_are_refused(row, said):
    with pytest.raises(OsfError, match=said):
        Sample(*row)
    assert Sample(2, 1, 1e-9).time == 1e-9


@pytest.mark.parametrize(("workers", "gpus_per_node"), [((2, 4), 1), ((2, 4), 4)], ids=["between", "inside"])
def test_a_hierarchical_fit_needs_times_inside_a_node_and_between_nodes(workers, gpus_per_node):
    samples = [Sample(count, size, 1e-4 + size * 1e-9) for count in workers for size in (1024, 2**20)]
    with pytest.raises(CostError, match="inside one node and between several"):
        COST_MODELS["hierarchical"].fit(samples, gpus_per_node)
