"""From samples to a Cluster: widths of queues, gains, tables, merging, and what the file says of itself."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import osfmodel as osf
from osfmodel import Cluster, DataError, Layer, Link, Plan, Table, Workload
from osfmodel.cost.clusters import pricing_of
from osfmodel.cost.pricing import time_together, together
from osfmodel.engine import predict_timeline
from osfmodel.entities.cluster import Contention
from osfmodel.entities.errors import UsageError
from osfmodel.entities.plan import Block, Bucket
from osfmodel.runtime.bench import SPACING, TRAIN_BYTES, powers, sizes_for, train_length
from osfmodel.runtime.bench.computation import Copies
from osfmodel.runtime.bench.measured_cluster import (
    Findings,
    Surroundings,
    TimedSize,
    cluster_of,
    gain,
    in_flight,
    startup,
    train_time,
    updated,
)

SURROUNDINGS = Surroundings(4, 1, "gloo", "interface eth0", "torch 2.13.0")


def queue(width, count, startup, transfer):
    """Ends of ``count`` equal collectives in one queue, ``width`` at once, sharing a network that one fills."""
    full = startup + width * transfer
    return [full * (i // width + 1) for i in range(count)]


def found(**changes):
    sizes = (1024, 65536, 1 << 20, 1 << 22)
    alone = {1024: 0.005, 65536: 0.006, 1 << 20: 0.02, 1 << 22: 0.07}
    tables = {
        kind: {size: TimedSize(alone[size], 0.02, 20, alone[size]) for size in sizes}
        for kind in ("all_reduce", "all_gather")
    }
    together = {
        size: {count: time_together(alone[size], 0.005, 1.5, count) for count in (1, 2, 4)} for size in (1024, 1 << 22)
    }
    queues = {size: tuple(queue(2, 4, 0.005, 0.001)) for size in (1024, 1 << 22)}
    return replace(Findings(tables, together, queues, 2, 0.25, "products"), **changes)


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize(("startup", "transfer"), [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
def test_the_width_of_a_queue_shows_whether_start_ups_or_transfers_decide(width, startup, transfer):
    """The result holds with 10 % noise on every completion."""
    rng = np.random.default_rng(3)
    ends = queue(width, 4, startup, transfer)
    noisy = [sorted(end * factor for end, factor in zip(ends, rng.normal(1, 0.1, 4), strict=True)) for _ in range(5)]
    assert in_flight([ends]) == in_flight(noisy) == width


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("phases", [2, 6])
def test_the_width_shows_when_phases_take_turns(width, phases):
    """As over gloo, whose all-reduce has two phases between two ranks and six between four."""
    assert in_flight([in_turn(width, 4, phases)]) == width


def in_turn(width, count, phases):
    """Ends of collectives of which so many at once take turns on the network, a unit of time for each phase."""
    groups = np.repeat(np.arange(count // width), width)
    places = np.tile(np.arange(1, width + 1), count // width)
    return (width * (phases * groups + phases - 1) + places).tolist()


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("phases", [2, 6])
def test_a_busy_machine_does_not_overrule_the_library(width, phases):
    """Each second collective is delayed by some tenths of all that there is to wait for, and with it those behind."""
    rng = np.random.default_rng(4)
    ideal = np.array(in_turn(width, 4, phases)) / (4 * phases)
    for _ in range(50):
        delays = rng.exponential(0.2, (17, 4)) * (rng.random((17, 4)) < 0.5)
        assert in_flight([(ideal + np.cumsum(delay)).tolist() for delay in delays], width) == width


def test_three_in_four_queues_overrule_what_the_library_says():
    one, two = queue(1, 4, 1.0, 0.0), queue(2, 4, 1.0, 0.0)
    assert in_flight([one, one, two, two, two]) == 2
    assert in_flight([one, two]) == 1
    assert in_flight([one, one, one, two, two], 2) == 2
    assert in_flight([one, one, one, two], 2) == 1
    assert in_flight([one, one, queue(4, 4, 1.0, 0.0)], 2) == 2


def test_a_library_runs_no_more_than_it_says_and_a_short_queue_cannot_show_all():
    assert in_flight([queue(4, 4, 1.0, 0.0)] * 3) == 4
    assert in_flight([queue(4, 4, 1.0, 0.0)] * 3, 2) == 2
    assert in_flight([queue(2, 2, 1.0, 0.0)] * 3, 4) == 4
    assert in_flight([queue(1, 2, 1.0, 0.0)] * 3, 4) == 1


def test_findings_tell_what_the_library_says():
    one, two = queue(1, 4, 1.0, 0.0), queue(2, 4, 1.0, 0.0)
    assert Findings(queues={1: tuple(one), 2: tuple(two)}, threads=2).in_flight == 2


def test_one_collective_in_a_queue_says_nothing_of_its_width():
    assert in_flight([[1.0]]) == 1
    assert Findings(threads=2).in_flight == 2
    assert Findings().in_flight == 1


@pytest.mark.parametrize("true", [1.0, 1.3, 2.0])
def test_the_gain_that_made_the_times_is_found(true):
    """At sizes that are start-up for the most part nothing is fitted, here one that would say 1.0."""
    times = {
        1 << 10: {1: 0.010, 2: 0.020, 4: 0.040},
        1 << 22: {count: time_together(0.070, 0.010, true, count) for count in (1, 2, 4)},
    }
    assert gain(times) == pytest.approx(true, rel=1e-4)


@pytest.mark.parametrize("gain", [1.0, 1.5])
@pytest.mark.parametrize("part", [0.0, 0.3, 1.0])
def test_a_pair_tells_start_up_from_transfer(gain, part):
    """Pairs faster than hidden start-ups allow, or slower than the network needs, are taken as one or the other."""
    speed = together(gain, 2)
    pair = time_together(2.0, 2.0 * part, gain, 2)
    four = 2.0 * part + 2.0 * (1 - part) * 4 / speed
    assert startup(2.0, pair, 2, speed) == pytest.approx(startup(2.0, four, 4, speed)) == pytest.approx(2.0 * part)
    assert startup(2.0, 1.9, 2, speed) == 2.0
    assert startup(2.0, 4.5, 2, speed) == 0


def test_start_ups_from_pairs_predict_four_at_once_over_gloo(data_folder):
    """Held out: four at once on two channels, which the pairs that the start-ups come from have not seen."""
    measured = json.loads((data_folder / "emulated/ddp_gloo_4hosts_1gbit.json").read_text())
    alone = {row["bytes"]: row["seconds"] for row in measured["all_reduce_seconds"]}
    pairs = {row["bytes_each"]: row["seconds"] for row in measured["two_at_once_seconds"]}
    fours = {row["bytes_each"]: row["seconds"] for row in measured["four_at_once_seconds"]}
    tables = {"all_reduce": {size: TimedSize(alone[size], 0.0, 1, alone[size]) for size in pairs}}
    together = {size: {1: alone[size], 2: pairs[size]} for size in pairs}
    cluster = cluster_of(Findings(tables, together, {1024: tuple(queue(2, 4, 1.0, 0.0))}), SURROUNDINGS, "gloo")
    blind = replace(cluster, tables=(replace(cluster.tables[0], startups=()),))
    errors = {}
    for network in (cluster, blind):
        errors[network] = [abs(four_at_once(network, size) / fours[size] - 1) for size in fours]
    assert max(errors[cluster]) < 0.12
    assert max(errors[blind]) > 0.3


def four_at_once(cluster, size):
    workload = Workload("w", (Layer("a", 0.0, 1e-9, 4 * size),))
    plan = Plan("w", tuple(Bucket((Block("a", size * k, size),)) for k in range(4)))
    return predict_timeline(workload, plan, pricing_of(cluster, 4)).iteration_time


def test_no_gain_without_several_at_once_or_without_transfer():
    assert gain({}) is None
    assert gain({1024: {1: 0.1}}) is None
    assert gain({1024: {1: 0.1, 2: 0.1}, 2048: {1: 0.11, 2: 0.12}}) is None


def test_samples_are_medians_with_their_quartiles():
    assert TimedSize.of([1.0, 2.0, 3.0, 4.0, 100.0]) == TimedSize(3.0, 2 / 3, 5, 100.0)
    assert TimedSize.of([2.0]) == TimedSize(2.0, 0.0, 1, 2.0)


def test_a_cluster_holds_what_was_measured(tmp_path):
    cluster = cluster_of(found(), SURROUNDINGS, "mine")
    osf.save(cluster, tmp_path / "mine.json")
    assert osf.load_cluster(tmp_path / "mine.json") == cluster
    assert [(table.collective, table.workers) for table in cluster.tables] == [("all_reduce", 4), ("all_gather", 4)]
    assert cluster.tables[0].times == (0.005, 0.006, 0.02, 0.07)
    assert (cluster.gpus_per_node, cluster.nodes, cluster.in_flight) == (1, 4, 2)
    assert cluster.effects.compute_slowdown == 0.25
    pricing = pricing_of(cluster, 4)
    assert (pricing.in_flight, pricing.effects.compute_slowdown) == (2, 0.25)
    assert pricing.gain == pytest.approx(1.5, rel=1e-4)
    for word in (
        "4 ranks, 1 on each host",
        "gloo (torch 2.13.0)",
        "eth0",
        "20 repeats",
        "2.0%",
        "2 in flight",
        "+25.0%",
    ):
        assert word in cluster.source.conditions
    assert cluster.source.gpu == "none (CPU)"
    assert cluster_of(found(), replace(SURROUNDINGS, gpu="H100"), "mine").source.gpu == "H100"


def test_a_cluster_says_what_was_not_measured():
    poor = found(together={}, queues={}, slowdown=None, left_out=["no all_gather: none here"])
    cluster = cluster_of(poor, SURROUNDINGS, "mine")
    assert (cluster.in_flight, cluster.contention, cluster.effects.compute_slowdown) == (2, (), 0)
    for word in ("as the library says", "compute_slowdown not measured", "no all_gather: none here"):
        assert word in cluster.source.conditions
    other = cluster_of(found(queues={1: (1.0, 2.0)}), SURROUNDINGS, "mine").source.conditions
    assert "1 in flight in one queue, as 1 of 1 sizes show (the library says 2)" in other
    doubtful = cluster_of(found(queues={1: (1.0, 2.0), 2: (2.0, 2.0)}), SURROUNDINGS, "mine").source.conditions
    assert "2 in flight in one queue, as 1 of 2 sizes show (the library says 2)" in doubtful
    assert cluster_of(found(slowdown=-0.01), SURROUNDINGS, "mine").effects.compute_slowdown == 0


def test_too_little_is_no_cluster():
    with pytest.raises(DataError, match="two sizes"):
        cluster_of(Findings({"all_reduce": {1024: TimedSize(1.0, 0.0, 1, 1.0)}}), SURROUNDINGS, "mine")


def test_merging_adds_a_worker_count_or_replaces_it():
    four = cluster_of(found(), SURROUNDINGS, "mine")
    two = cluster_of(found(slowdown=0.5), replace(SURROUNDINGS, workers=2), "other")
    assert four.library == "gloo"
    with pytest.raises(DataError, match="was measured with nccl, this with gloo"):
        updated(replace(four, library="nccl"), two, {})
    both = updated(replace(four, library=""), two, {"compute_slowdown": 0.5})
    assert both.library == "gloo"
    assert (both.name, both.nodes, both.effects.compute_slowdown) == ("mine", 4, 0.5)
    assert sorted({table.workers for table in both.tables}) == [2, 4]
    assert len(both.tables) == 4
    assert [row.workers for row in both.contention] == [4, 2]
    assert "4 ranks" in both.source.conditions
    assert "2 ranks" in both.source.conditions
    again = updated(both, replace(two, contention=(Contention(2, 1.25),)), {})
    assert len(again.tables) == 4
    assert [row.gain for row in again.contention if row.workers == 2] == [1.25]


def test_merging_keeps_effects_that_were_not_measured_again():
    known = cluster_of(found(copies=Copies(1e-10, 2e-10)), SURROUNDINGS, "mine")
    again = found(slowdown=None, copies=Copies(3e-10, 4e-10))
    effects = updated(known, cluster_of(again, SURROUNDINGS, "mine"), again.effects).effects
    assert (effects.compute_slowdown, effects.copy_in, effects.copy_out) == (0.25, 3e-10, 4e-10)
    none = found(slowdown=0.0)
    effects = updated(known, cluster_of(none, SURROUNDINGS, "mine"), none.effects).effects
    assert (effects.compute_slowdown, effects.copy_in) == (0, 1e-10)


def test_a_gain_without_an_end_is_not_fitted():
    """Several that take no longer than one alone: any gain will do, and the largest that is tried says nothing."""
    times = {1 << 10: {1: 0.001, 2: 0.001}, 1 << 22: {1: 0.070, 2: 0.060, 4: 0.065}}
    assert gain(times) is None
    cluster = cluster_of(found(together=times), SURROUNDINGS, "mine")
    assert cluster.contention == ()
    assert "no gain fitted" in cluster.source.conditions


def test_samples_that_do_not_repeat_are_told():
    assert found().doubts == []
    tables = {
        "all_reduce": {size: TimedSize(0.01, spread, 20, 0.03) for size, spread in ((1, 0.1), (2, 0.38), (4, 2.66))}
    }
    (doubt,) = found(tables=tables).doubts
    assert doubt.startswith("times spread by 38% (interquartile range over median; 266% at 4 B)")


def test_merging_refuses_files_of_different_clusters():
    four = cluster_of(found(), SURROUNDINGS, "mine")
    dense = cluster_of(found(), Surroundings(8, 4, "gloo", "eth0", "torch"), "dense")
    with pytest.raises(DataError, match="1 ranks on a host, this was measured with 4"):
        updated(four, dense, {})
    with pytest.raises(DataError, match="only tabulated clusters"):
        updated(Cluster("c", "ring", between_nodes=Link(1.0, 1.0)), four, {})
    one_host = cluster_of(found(), Surroundings(2, 2, "gloo", "lo", "torch"), "one")
    assert updated(dense, one_host, {}).gpus_per_node == updated(one_host, dense, {}).gpus_per_node == 4


def test_sizes_are_powers_or_those_of_a_workload():
    assert powers(1000, 5000) == (1000, 1024, 2048, 4096, 5000)
    workload = osf.load_workload("resnet50-v100")
    sizes = sizes_for(workload)
    assert sizes[0] == min(workload.gradients.sizes)
    assert sizes[-1] == workload.gradient_bytes
    ratios = [large / small for small, large in pairwise(sizes)]
    assert min(ratios) >= SPACING
    assert max(ratios) <= 2 * SPACING
    near = [min(abs(size / measured - 1) for measured in sizes) for size in workload.gradients.sizes]
    assert max(near) < SPACING - 1
    assert len(sizes_for(Workload("one", (Layer("a", 1.0, 1.0, 4),)))) == 2
    with pytest.raises(UsageError, match="no gradients"):
        sizes_for(Workload("none", (Layer("a", 1.0, 1.0, 0),)))


def test_tables_of_two_sizes_are_enough():
    cluster = cluster_of(
        Findings(
            {
                "all_reduce": {1: TimedSize(1.0, 0.0, 1, 1.0), 2: TimedSize(2.0, 0.0, 1, 2.0)},
                "all_gather": {1: TimedSize(1.0, 0.0, 1, 1.0)},
            }
        ),
        SURROUNDINGS,
        "two",
    )
    assert cluster.tables == (Table(4, (1, 2), (1.0, 2.0)),)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_a_train_shows_the_rate_that_lasts_and_neither_start_up_nor_buffer(width):
    """Messages of 3 s by the network, of which a buffer takes the first two at once; medians over repeats."""
    ends = [1.0 + 3.0 * width * (max(number - 2, 0) // width + 1) for number in range(16)]
    assert train_time([ends, ends, [2 * end for end in ends]]) == pytest.approx(3.0)
    assert abs(ends[-1] / 16 - 3.0) > 0.05


def test_trains_hold_as_many_messages_as_fill_every_buffer_and_large_ones_are_none():
    assert [train_length(size) for size in (4, TRAIN_BYTES // 32, TRAIN_BYTES // 31, TRAIN_BYTES // 8)] == [
        32,
        32,
        24,
        8,
    ]
    assert train_length(TRAIN_BYTES // 8 + 1) == train_length(1 << 30) == 0


def test_trains_are_kept_beside_the_times_of_one_message_as_far_as_they_were_measured():
    """Of all-gathers none was; of all-reduces a measurement that broke off has the first."""
    network = cluster_of(found(trains={"all_reduce": {1024: 0.002, 65536: 0.009}}), SURROUNDINGS, "mine")
    tables = {table.collective: table for table in network.tables}
    assert tables["all_reduce"].trains == (0.002, 0.009)
    assert tables["all_gather"].trains == ()
    assert "messages back to back up to 64.00 KiB" in network.source.conditions
    assert pricing_of(network, 4).cost()(65536) == max(0.009, 65536 * 0.07 / (1 << 22))
    assert "back to back" not in cluster_of(found(), SURROUNDINGS, "mine").source.conditions


def test_the_share_of_the_cores_is_kept_with_each_table_and_read_again(tmp_path):
    network = cluster_of(found(busy={"all_reduce": 0.75}), SURROUNDINGS, "mine")
    assert {table.collective: table.cpu_share for table in network.tables} == {"all_reduce": 0.75, "all_gather": None}
    osf.save(network, tmp_path / "mine.json")
    assert osf.load_cluster(tmp_path / "mine.json") == network


def test_the_slowest_repeat_is_kept_where_there_are_enough(tmp_path):
    tables = {"all_reduce": {1: TimedSize(0.01, 0.1, 20, 0.25), 2: TimedSize(0.01, 0.1, 4, 0.3)}}
    network = cluster_of(found(tables=tables, queues={}, together={}), SURROUNDINGS, "mine")
    assert network.tables[0].slowest == (0.25, 0.01)
    osf.save(network, tmp_path / "mine.json")
    assert osf.load_cluster(tmp_path / "mine.json") == network
    few = {"all_reduce": {size: TimedSize(0.01, 0.1, 4, 0.25) for size in (1, 2)}}
    assert cluster_of(found(tables=few, queues={}, together={}), SURROUNDINGS, "mine").tables[0].slowest == ()
