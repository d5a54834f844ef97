"""Sources of sharded runs: parameters as published, the pace from one run of each series, and pairs by ratio."""

from __future__ import annotations

from functools import cache
from statistics import median

import pytest

from benchmarks import sharded_pairs
from osfmodel.cost.clusters import load_cluster, pricing_of
from osfmodel.engine import predict_timeline
from osfmodel.engine.bands import quantile
from osfmodel.entities.executors import FSDP
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.entities.modules import blocks
from osfmodel.ledger import LEDGER
from osfmodel.ledger.sources import anchored, decoders
from osfmodel.ledger.sources.decoders import Decoder, MicroBatch
from tests.conftest import ROOT

SOURCES = {
    "mosaicml-2023": decoders.mosaicml,
    "modalities-leonardo": decoders.modalities,
    "internevo": decoders.internevo,
    "fms-fsdp": decoders.fms_fsdp,
}


@cache
def rows_of(source):
    """The rows of a source, judged once."""
    return LEDGER[source].judge(load_measurements(source)).rows


def built(source, place):
    """The workload of a run at a pace of 2 ms for 10^12 operations."""
    return SOURCES[source](load_measurements(source))[place].build(2e-3)


def first(source, **said):
    """The place of the first run of a source under these conditions."""
    return next(
        place
        for place, run in enumerate(load_measurements(source))
        if {**dict(run.conditions), "workload": run.workload}.items() >= said.items()
    )


@pytest.mark.parametrize(
    ("source", "said", "parameters"),
    [
        ("mosaicml-2023", {"workload": "mpt-125m", "sequence": "2048", "system": "2023-04"}, 125_311_488),
        ("mosaicml-2023", {"workload": "mpt-7b", "sequence": "2048", "system": "2023-04"}, 6_658_859_008),
        ("mosaicml-2023", {"workload": "mpt-30b", "sequence": "8192", "system": "2023-04"}, 30_019_254_272),
        ("mosaicml-2023", {"workload": "mpt-70b", "sequence": "2048", "system": "2023-04"}, 64_862_437_376),
        ("fms-fsdp", {"workload": "llama2-7b"}, 6_738_415_616),
        ("fms-fsdp", {"workload": "llama2-13b"}, 13_015_864_320),
        ("fms-fsdp", {"workload": "llama2-34b"}, 33_743_970_304),
        ("fms-fsdp", {"workload": "llama2-70b"}, 68_976_648_192),
    ],
)
def test_parameters_are_as_many_as_published(source, said, parameters):
    assert sum(layer.elements for layer in built(source, first(source, **said)).layers) == parameters


@pytest.mark.parametrize("flat", [True, False])
def test_times_are_operations_at_the_pace(flat):
    """By hand: products 2 for each element and token, attention 4 for each token, width and token of the sequence."""
    decoder, tokens = Decoder(layers=3, width=8, feed_forward=20, vocabulary=50, keys=4), 2 * 16
    found = decoders.workload("small", decoder, MicroBatch(16, 2, "A100-80GB", recomputed=0.5, flat=flat), pace=1e12)
    products = 8 * 16 + 8 * 8 + 3 * 8 * 20
    each = 2 * products * tokens + 4 * 16 * 8 * tokens
    head = 2 * 50 * 8 * tokens
    assert found.forward_time == pytest.approx(3 * each + head)
    assert found.backward_time == pytest.approx(3 * 2.5 * each + 2 * head)
    parameters = 3 * (products + 2 * 8) + 2 * 50 * 8 + 8
    assert found.gradient_bytes == 4 * parameters
    assert found.update_time == pytest.approx(28 * parameters / 2039e9)
    assert blocks(found) == ("layers.0", "layers.1", "layers.2")
    assert found.profiled_workers > 1, "no usual effects: they are in the pace"


def test_a_tied_head_takes_time_and_has_no_parameters():
    untied, tied = (
        decoders.workload("small", Decoder(1, 8, 20, 50, tied=tied), MicroBatch(16, 2, "A100-80GB"), 1e12)
        for tied in (False, True)
    )
    assert tied.forward_time == untied.forward_time
    assert untied.gradient_bytes - tied.gradient_bytes == 4 * 50 * 8


@pytest.mark.parametrize("source", ["mosaicml-2023", "modalities-leonardo", "internevo"])
def test_the_pace_makes_the_whole_step_of_the_anchor_as_long_as_it_was(source):
    """With all of its micro-batches and the update, although the search took one of them."""
    runs = load_measurements(source)
    stated, rows = SOURCES[source](runs), rows_of(source)
    anchors = [place for place, row in enumerate(rows) if row.fitted][:3]
    assert any(stated[place].micro_batches > 1 for place in anchors) or source == "modalities-leonardo"
    for place in anchors:
        run, one = runs[place], stated[place]
        workload = one.build(anchored.pace(run, one))
        pricing = pricing_of(load_cluster(run.cluster), run.workers, workload).under(FSDP.conditions)
        timeline = predict_timeline(workload, one.plan(workload, pricing, one.micro_batches), pricing)
        assert timeline.iteration_time == pytest.approx(run.iteration_time, rel=1e-6)


@pytest.mark.parametrize("source", SOURCES)
def test_one_run_of_a_series_is_fitted_on_the_fewest_gpus(source):
    runs = load_measurements(source)
    series = {}
    for run, one, row in zip(runs, SOURCES[source](runs), rows_of(source), strict=True):
        if not isinstance(one, str):
            series.setdefault(one.series, []).append((run.workers, row))
    for own in series.values():
        fitted = [workers for workers, row in own if row.fitted]
        assert len(fitted) == (len(own) > 1)
        if source != "fms-fsdp":
            assert all(workers == min(workers for workers, _ in own) for workers in fitted)
        assert all(row.predicted is not None for _, row in own) == (len(own) > 1)


def test_runs_that_are_left_out_say_why():
    def reasons(source):
        rows = rows_of(source)
        return [row.note for row in rows if row.predicted is None]

    found = reasons("internevo")
    assert sum("tensor parallelism" in note for note in found) == 16
    assert sum("repeats a figure" in note for note in found) == 6
    assert sum("the same as ZeRO over 8" in note for note in found) == 1
    assert len(found) == 23
    assert sorted(reasons("modalities-leonardo")) == [
        "a single run of dimensions that are not published",
        "short of memory: 2.3 times as long as on 16 GPUs",
    ]
    assert set(reasons("mosaicml-2023")) == {anchored.ALONE}


def test_figures_that_internevo_repeats_are_those_left_out():
    times = {}
    for run, row in zip(load_measurements("internevo"), rows_of("internevo"), strict=True):
        step = tuple(pair for pair in run.conditions if pair[0] != "packed")
        times.setdefault((run.workers, step, run.iteration_time), []).append(row)
    twice = [rows for rows in times.values() if len(rows) > 1]
    assert [[row.predicted is None and "repeats" in row.note for row in rows] for rows in twice] == [[False, True]] * 6


def test_owners_of_internevo_are_all_ranks_or_those_of_a_node():
    runs = load_measurements("internevo")
    stated = decoders.internevo(runs)
    for run, one in zip(runs, stated, strict=True):
        if not isinstance(one, str):
            workload = one.build(1e-3)
            plan = one.plan(workload, pricing_of(load_cluster(run.cluster), run.workers, workload), 1)
            assert plan.strategy == "zero-1-owners"
            ranks = plan.sharding.ranks(run.workers)
            assert ranks == (run.workers if run.condition("zero_group") == "all" else 8)
            assert max(bucket.size for bucket in plan.buckets if len(bucket.blocks) > 1) <= 512 * 2**20


@pytest.mark.parametrize(
    ("source", "middle", "high"),
    [
        ("mosaicml-2023", 0.025, 0.11),
        ("modalities-leonardo", 0.025, 0.27),
        ("internevo", 0.025, 0.24),
        ("fms-fsdp", 0.105, 0.145),
    ],
)
def test_errors_are_those_reached(source, middle, high):
    rows = rows_of(source)
    errors = [abs(row.error) for row in rows if row.counts]
    assert median(errors) <= middle
    assert quantile(errors, 0.9) <= high


@pytest.fixture(scope="module")
def pairs():
    return sharded_pairs.pairs()


def test_the_faster_of_two_ways_to_shard_is_known(pairs):
    """Pairs that differ by more than 3 %: the sign of 13 of 15; ratios within 5 % in the median of each source."""
    signs = [pair.right for pair in pairs if pair.differs]
    assert len(pairs) == 23
    assert len(signs) == 15
    assert sum(signs) >= 13
    for source in ("modalities-leonardo", "internevo"):
        assert median(abs(pair.error) for pair in pairs if pair.source == source) <= 0.05


def test_the_page_shows_the_pairs(pairs):
    page = "".join(
        (ROOT / f"docs/ledger/{name}.md").read_text("utf-8") for name in ("modalities-leonardo", "internevo")
    )
    assert [line for line in sharded_pairs.show(pairs) if line and line not in page] == []
