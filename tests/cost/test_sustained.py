"""Prices of tables for messages that follow each other: buffers, trains, start-ups, and what is told of them."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

import osfmodel as osf
from osfmodel import Cluster, DataError, Table
from osfmodel.cli.app import main
from osfmodel.cost import TableCost, cost_of
from osfmodel.cost.clusters import pricing_of
from osfmodel.cost.faster_network import Change, faster_network
from osfmodel.cost.per_count import cautions, cost_of_table, sustained
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.executors import FSDP
from osfmodel.entities.files.documents import decode_cluster, document_of, encode
from osfmodel.entities.plan import Block, Bucket, Plan
from osfmodel.targets.named_plans import make_plan
from tests.conftest import ROOT, workload_of

BUFFER = 24 << 10
"""Bytes that the shaper of :func:`shaped` lets through at once when it has been idle."""
LATENCY = 1e-3
SIZES = tuple(1 << power for power in range(10, 27))


def shaped(workers, bits_per_second):
    """Bytes per second of messages on links of that rate, and the table of messages that each find a full bucket."""
    rate = bits_per_second / 8 * workers / (2 * (workers - 1))
    return rate, Table(workers, SIZES, tuple(max(LATENCY, (size - BUFFER) / rate) for size in SIZES))


def replayed(workload, plan, rate):
    """Seconds of an iteration whose messages leave one after the other through a token bucket that refills."""
    ready = dict(zip(workload.gradients.names, workload.gradients.ready_times, strict=True))
    now, tokens = 0.0, float(BUFFER)
    for bucket in plan.buckets:
        start = max(now, *(ready[block.layer] for block in bucket.blocks))
        tokens = min(BUFFER, tokens + rate * (start - now))
        now = start + max(LATENCY, (bucket.size - tokens) / rate)
        tokens = min(BUFFER, max(tokens + rate * (now - start) - bucket.size, 0.0))
    return max(now, workload.compute_time)


@pytest.mark.parametrize(
    ("name", "scale", "workers", "bits_per_second"),
    [("densenet201-reconstructed", 0.5, 3, 1.5e9), ("nasnetamobile-pipedream", 0.8, 4, 0.7e9)],
)
def test_plans_for_a_network_with_a_buffer_have_few_buckets_and_keep_their_promise(
    name, scale, workers, bits_per_second
):
    """By the table as measured, tens of buckets that fit into the buffer promise 2.6 % or more: none is gained."""
    workload = osf.load_workload(name).scaled(scale)
    rate, table = shaped(workers, bits_per_second)
    isolated, pricing = Pricing.of(TableCost(table.sizes, table.times)), Pricing.of(cost_of_table(table))
    default, tempted = (make_plan(rule, workload, isolated) for rule in ("ddp", "optimal"))
    promised = predict_timeline(workload, tempted, isolated).iteration_time
    assert len(tempted.buckets) > 60
    assert promised < 0.975 * predict_timeline(workload, default, isolated).iteration_time
    assert replayed(workload, tempted, rate) > 1.025 * promised
    plan = make_plan("optimal", workload, pricing)
    took = replayed(workload, plan, rate)
    assert len(plan.buckets) < 10
    assert took <= replayed(workload, default, rate) * 1.0001
    assert predict_timeline(workload, plan, pricing).iteration_time == pytest.approx(took, rel=2e-3)


def test_no_size_is_cheaper_per_byte_than_large_ones_and_dearer_ones_keep_their_price():
    """Over random tables of increasing sizes with buffers, random start-ups and dearer protocols."""
    rng = np.random.default_rng(21)
    cheaper = 0
    for _ in range(200):
        sizes = tuple(
            sorted({1 << power for power in rng.integers(8, 27, int(rng.integers(2, 20))).tolist()} | {1 << 28})
        )
        rate, latency, buffer = rng.uniform(1e-10, 1e-8), rng.exponential(1e-4), rng.integers(0, 1 << 20)
        dearer = np.array(sizes) < buffer * rng.random()
        times = np.maximum(latency, (np.array(sizes) - buffer) * rate) + dearer * 2 * rate * np.array(sizes)
        times = tuple(times.tolist())
        cost = cost_of_table(Table(4, sizes, times))
        top = min(time / size for size, time in zip(sizes, times, strict=True) if 4 * size >= sizes[-1])
        assert sustained(sizes, times) == top
        for size, time in zip(sizes, times, strict=True):
            assert cost(size) == time or time < top * size
            cheaper += cost(size) != time
            assert cost(size) == pytest.approx(max(time, top * size), rel=1e-12)
        for size in rng.integers(1, sizes[-1], 20).tolist():
            assert cost(size) >= top * size * (1 - 1e-12)
    assert cheaper > 200


def test_messages_below_a_change_of_algorithm_keep_their_price():
    """Their time per byte is what many of them take; a step of a buffer is never that steep. Measured trains decide."""
    sizes = (1 << 20, 1 << 21, 1 << 22, 1 << 24, 1 << 26)
    steep = Table(4, sizes, (3e-3, 6e-3, 12e-3, 160e-3, 640e-3))
    assert cost_of_table(steep).times == steep.times
    assert cautions(Cluster("steep", "tabulated", tables=(steep,))) == ()
    known = replace(steep, trains=(10e-3, 20e-3, 40e-3))
    assert cost_of_table(known, 2).times == (10e-3, 20e-3, 40e-3, *steep.times[3:])
    flat = replace(steep, times=(7e-3, 17e-3, 37e-3, 160e-3, 640e-3))
    assert cost_of_table(flat).times == pytest.approx([10e-3 * size / (1 << 20) for size in sizes])


def test_little_of_real_machines_is_raised():
    """In all-reduce tables; by their largest size alone, half of a table that ends at 1 MiB would be."""
    raised = {}
    for path in sorted((ROOT / "profiles/clusters").glob("*.json")):
        cluster = osf.load_cluster(path)
        for table in cluster.tables:
            cost, rate = cost_of_table(table, cluster.in_flight), sustained(table.sizes, table.times)
            for size, time in zip(table.sizes, table.times, strict=True):
                assert cost(size) >= rate * size * (1 - 1e-12)  # no change of algorithm is seen in a buffer
                if cost(size) != time and not cluster.name.startswith("emulated"):
                    raised[cluster.name] = max(raised.get(cluster.name, 0), round(cost(size) / time - 1, 3))
    assert raised == {"azure-a100-hdr": 0.06, "a40-pairs": 0.096, "rtx-6000d-nics": 0.157}
    k80 = {table.workers: table for table in osf.load_cluster("k80-10gbe-osu").tables}[8]
    last = k80.times[-1] / k80.sizes[-1]
    cheaper = [last * size / time - 1 for size, time in zip(k80.sizes, k80.times, strict=True) if time < last * size]
    assert (len(cheaper), round(max(cheaper), 2)) == (82, 0.14)


def test_many_small_messages_at_once_send_no_faster_than_large_ones():
    """Under any measured start-ups, as the engine times them."""
    rng = np.random.default_rng(22)
    compute = 1e-9
    for gain, flows in itertools.product((1.0, 1.5, 3.0), (2, 3, 4)):
        _, table = shaped(4, 1e9)
        table = replace(table, startups=tuple((np.array(table.times) * rng.random(len(table.times))).tolist()))
        cost = cost_of_table(table, 2)
        startups = {"all_reduce": TableCost(table.sizes, table.startups, 0.0)}
        pricing = Pricing({"all_reduce": cost}, 4, gain, startups=startups)
        together = pricing.together(flows)
        for size in (*table.sizes, *rng.integers(1024, 1 << 26, 20).tolist()):
            startup, transfer = pricing.split("all_reduce", int(size), flows)
            assert startup >= 0 <= transfer
            assert startup + transfer == pytest.approx(cost(size))
            assert startup + transfer * flows / together >= flows * cost.sustained * size / together * (1 - 1e-9)
        size = 32 << 10
        workload = workload_of([compute] * flows, [size] * flows)
        names = workload.gradients.names
        plan = Plan(workload.name, tuple(Bucket((Block(name, 0, size),)) for name in names), flows)
        took = predict_timeline(workload, plan, pricing).iteration_time - workload.compute_time
        assert took >= flows * cost.sustained * size / together * (1 - 1e-6)


def test_measured_start_ups_stay_where_the_network_is_not_exceeded():
    table = Table(2, (1 << 10, 1 << 20, 1 << 24), (1e-3, 9e-3, 0.129), startups=(1e-3, 1e-3, 1e-3))
    pricing = Pricing({"all_reduce": cost_of_table(table, 2)}, 2,
                      startups={"all_reduce": TableCost(table.sizes, table.startups, 0.0)})  # fmt: skip
    assert pricing.split("all_reduce", 1 << 20, 2) == (1e-3, 9e-3 - 1e-3)
    assert pricing.split("all_reduce", 1 << 24, 2) == (1e-3, 0.129 - 1e-3)


def test_trains_are_the_price_of_one_at_a_time_and_only_raise_that_of_several():
    """One at a time a busy stream hides start-up; with several at once a train says nothing of one message's time."""
    alone = Table(2, (1 << 10, 1 << 16, 1 << 20), (1e-3, 2e-3, 20e-3))
    table = replace(alone, trains=(4e-4, 2.5e-3))
    assert cost_of_table(table).times == (4e-4, 2.5e-3, 20e-3)
    assert cost_of_table(table, 2).times == (1e-3, 2.5e-3, 20e-3)
    assert cost_of_table(alone).times == alone.times


def test_trains_show_the_rate_of_a_table_that_ends_inside_the_buffer():
    table = Table(2, (1 << 10, 1 << 12, 1 << 14), (1e-3, 1e-3, 1e-3))
    assert cost_of_table(table, 2).times == table.times
    trained = cost_of_table(replace(table, trains=(1e-3, 1e-3, 4e-3)), 2)
    assert trained.times[1:] == (1e-3, 4e-3)


def test_a_cluster_file_keeps_trains_and_one_without_is_read():
    table = Table(2, (1 << 10, 1 << 16, 1 << 20), (1e-3, 2e-3, 20e-3), trains=(4e-4, 2.5e-3))
    cluster = Cluster("measured", "tabulated", tables=(table,))
    text = encode(document_of(cluster))
    assert json.loads(text)["tables"][0]["train_s"] == [4e-4, 2.5e-3]
    assert decode_cluster(text.encode()) == cluster
    document = json.loads(text)
    del document["tables"][0]["train_s"]
    assert decode_cluster(json.dumps(document).encode()).tables[0].trains == ()
    assert cost_of(cluster, 2).times == (4e-4, 2.5e-3, 20e-3)


@pytest.mark.parametrize(
    ("trains", "said"),
    [((1.0, 1.0, 1.0), "has 2 sizes and 3 times of trains"), ((-1.0,), r"the time of 1 bytes in a train in .* -1\.0")],
)
def test_impossible_trains_are_refused(trains, said):
    with pytest.raises(DataError, match=said):
        Table(2, (1, 2), (1.0, 2.0), trains=trains)


def test_a_faster_network_sends_trains_faster_and_keeps_their_start_up():
    table = Table(2, (1, 2), (1.0, 3.0), trains=(0.5, 2.5), slowest=(2.0, 3.0))
    (faster,) = faster_network(Cluster("c", "tabulated", tables=(table,)), Change(2.0)).tables
    assert (faster.times, faster.trains, faster.slowest) == ((1.0, 2.0), (0.5, 1.5), ())


def test_a_size_that_is_cheaper_per_byte_is_told_with_both_rates():
    _, table = shaped(4, 0.7e9)
    cluster = Cluster("bought", "tabulated", tables=(table,))
    (said,) = cautions(cluster, 4)
    assert said == (
        "all_reduce between 4 workers: 128.0 KiB measured alone run at 574.4 Mbps, faster than large messages "
        "(467.4 Mbps): priced like those"
    )
    assert cautions(cluster, 2) == ()
    known = replace(table, trains=cost_of_table(table).times)
    assert cautions(replace(cluster, tables=(known,))) == ()
    assert cautions(osf.load_cluster("a100-node")) == ()
    found = osf.predict(osf.load_workload("resnet50-v100"), cluster, "ddp", 4)
    assert any("priced like those" in warning for warning in found.warnings)
    assert pricing_of(cluster, 4).cost()(1 << 17) > table.times[SIZES.index(1 << 17)]


def test_import_tells_of_such_sizes(tmp_path, capsys):
    _, table = shaped(2, 1e9)
    rows = "\n".join(f"{size},{time * 1e6!r},2" for size, time in zip(table.sizes, table.times, strict=True))
    path = tmp_path / "bought.csv"
    path.write_text(f"bytes,time_us,workers\n{rows}\n")
    with pytest.raises(SystemExit, match="0"):
        main(["import", str(path), "-o", str(tmp_path / "bought.json")])
    assert "faster than large messages (" in capsys.readouterr().err


def test_an_executor_that_sends_one_at_a_time_finds_an_idle_network():
    """The times are those of a message alone if the library runs several at once, whatever trains took."""
    tables = [
        Table(count, (1000, 3000, 16000), (0.1, 0.3, 2.0), kind, trains=(0.2,))
        for count in (2, 4)
        for kind in ("all_reduce", "reduce_scatter", "all_gather")
    ]
    cluster = Cluster("gloo", "tabulated", tables=tuple(tables), in_flight=2, library="gloo")
    pricing = pricing_of(cluster, 4)
    assert [pricing.cost("all_gather")(size) for size in (1000, 3000)] == [0.2, 0.375]
    alone = pricing.under(FSDP.conditions)
    for found in (alone, alone.between(2), pricing_of(cluster, 2).under(FSDP.conditions)):
        assert [found.cost("reduce_scatter")(size) for size in (1000, 3000, 16000)] == [0.1, 0.3, 2.0]
    assert alone.slower(2).cost("all_gather")(3000) == pricing.slower(2).under(FSDP.conditions).cost("all_gather")(3000)
    assert pricing.under({"executor": "runtime"}).cost("all_gather")(3000) == 0.375
    single = pricing_of(replace(cluster, in_flight=1, library="nccl"), 4)
    assert single.under(FSDP.conditions).cost("all_gather")(3000) == single.cost("all_gather")(3000) == 0.375
