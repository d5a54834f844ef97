"""Profiler traces: jobs that never ran are read back exactly, and those that did as they were."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from importlib import import_module
from itertools import cycle
from statistics import fmean
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osfmodel import Cluster, predict
from osfmodel.diagnosis.explain_trace import explain_trace
from osfmodel.entities.errors import DataError, OsfError
from osfmodel.entities.files import profiles
from osfmodel.entities.files.measurements import load_measurements, save_measurements
from osfmodel.entities.measurement import Measurement
from osfmodel.entities.trace import keys_of
from osfmodel.entities.workload import Layer, Workload
from osfmodel.formats import Files, Hints, kineto, load_trace, nouns_of
from osfmodel.formats.source_text import Text, shared_stem, silent
from osfmodel.formats.traces import cluster_of, measurement_of, network, plan_of, workload_of
from osfmodel.formats.traces.cautions import doubts, found_in, own_step
from osfmodel.formats.traces.network import carried, rising_means
from osfmodel.formats.traces.ranks import joined, keyed, moved
from osfmodel.formats.traces.usual import unsteady, usual_steps
from osfmodel.ledger.check import check
from osfmodel.show.profiles import summary
from tests.commands import invoke
from tests.conftest import ROOT
from tests.draws import examples
from tests.formats import traces
from tests.formats.traces import Job, expected
from tests.jobs import HEALTHY, trace_of
from tests.live.explained import paths_of

MICRO = 1e-6


def read(job, ranks=None, hints=None, change=None):
    """The trace of the first ``ranks`` ranks of a job; ``change`` alters the event list of each before it is read."""
    documents = [traces.trace(job, rank) for rank in range(ranks or job.ranks)]
    for document in documents:
        if change:
            document["traceEvents"] = change(document["traceEvents"])
    texts = [Text(f"rank{place}.json", json.dumps(document)) for place, document in enumerate(documents)]
    return load_trace(texts, hints or Hints("job"))


def times(*values):
    return pytest.approx(list(values), abs=1e-9)


def check_step(step, wanted, origin):
    """Every time of a step is as it was made, since ``origin``."""

    def since(interval):
        return times(*((time - origin) * MICRO for time in interval))

    assert [step.start, step.end] == since((wanted.start, wanted.end))
    assert list(step.forward) == since(wanted.forward)
    assert list(step.backward) == since(wanted.backward)
    assert list(step.update) == since(wanted.update)
    assert [gradient.ready for gradient in step.gradients] == since(wanted.ready)
    assert [time for one in step.reductions for time in one.interval] == since(
        [time for interval in wanted.reductions for time in interval]
    )


JOBS = st.builds(
    Job,
    buckets=st.lists(st.lists(st.integers(1, 5000), min_size=1, max_size=4).map(tuple), min_size=1, max_size=4).map(
        tuple
    ),
    steps=st.integers(2, 4),
    micro_batches=st.integers(1, 3),
    forward=st.integers(50, 3000),
    gradient=st.integers(20, 300),
    update=st.integers(10, 100),
    latency=st.integers(1, 2000),
    lead=st.sampled_from([3000, 20_000]),
    sizes=st.sampled_from(["kernel", "host", "dims"]),
)


@settings(max_examples=examples(12))
@given(JOBS, st.lists(st.integers(0, 2000), min_size=1, max_size=4))
def test_a_job_is_read_back_as_it_was(job, late):
    """Ranks on one clock: steps, phases, gradients, buckets, and who waited for whom."""
    job = replace(job, late=tuple(late), clocks=(0,) * len(late))
    trace, wanted = read(job), expected(job)
    origin = min(event["ts"] for event in traces.trace(job)["traceEvents"])
    for rank, steps in zip(trace.ranks, wanted, strict=True):
        assert [step.number for step in rank.steps] == [5 + place for place in range(job.steps)]
        for step, known in zip(rank.steps, steps, strict=True):
            check_step(step, known, origin)
            assert step.micro_batches == job.micro_batches
            assert [one.elements for one in step.reductions] == [sum(bucket) for bucket in job.buckets]
            assert {one.sized_by for one in step.reductions} == {job.sizes}
            if job.ranks > 1:
                assert [one.arrival for one in step.reductions] == times(
                    *((a - origin) * MICRO for a in known.arrivals)
                )
                assert [one.end - one.start - one.waiting for one in step.reductions] == times(
                    *(job.transfer(place) * MICRO for place in range(len(job.buckets)))
                )


@settings(max_examples=examples(4))
@given(
    JOBS,
    st.lists(st.integers(-10_000_000, 10_000_000), min_size=1, max_size=3),
    st.booleans(),
    st.integers(0, 500),
)
def test_clocks_of_hosts_are_brought_together(job, clocks, sequence, first):
    """Whoever comes first or last, and whichever clock is ahead."""
    late = (first, *(100 * place for place in range(len(clocks))))
    job = replace(job, late=late, clocks=(0, *clocks), sequence=sequence)
    trace = read(job)
    same = read(replace(job, clocks=(0,) * job.ranks))
    moved = [rank for rank, clock in enumerate(job.clocks) if abs(clock) > 1000]
    assert [f"rank {rank} is moved" in " ".join(trace.remarks) for rank in moved] == [True] * len(moved)
    for rank, other in zip(trace.ranks, same.ranks, strict=True):
        for step, twin in zip(rank.steps, other.steps, strict=True):
            assert step.time == pytest.approx(twin.time, abs=1e-9)
            assert [one.waiting for one in step.reductions] == times(*(one.waiting for one in twin.reductions))


@pytest.mark.parametrize("sequence", [(False, False), (True, True), (True, False)])
def test_collectives_are_matched_also_where_a_rank_has_fewer_steps(sequence):
    """Whether the library numbers them on all ranks, on none or on some: the same job is found as with all steps."""
    job, hints = Job(late=(0, 300), clocks=(0, 0)), Hints("job", steps=(6, 7))
    documents = [traces.trace(replace(job, sequence=told), rank) for rank, told in enumerate(sequence)]
    events = documents[1]["traceEvents"]
    documents[1]["traceEvents"] = [event for event in events if event.get("name") != "ProfilerStep#5"]
    texts = [Text(f"rank{place}.json", json.dumps(document)) for place, document in enumerate(documents)]
    found = load_trace(texts, hints)
    for one, other in zip(found.ranks[0].steps, found.ranks[1].steps, strict=True):
        assert keys_of(one) == keys_of(other)
        assert len(set(keys_of(one))) == len(one.collectives) == len(job.buckets)
        assert None not in [collective.arrival for collective in one.collectives]
    gains = explain_trace(read(job, hints=hints)).gains
    assert explain_trace(found).gains == pytest.approx(gains, abs=1e-9)
    assert gains["imbalance"] > 1e-4


def on_hosts(job, names, late=None):
    """The trace of a job whose ranks are on hosts of these names; with ``late`` the last is of another job."""
    documents = [traces.trace(job, rank) for rank in range(job.ranks)]
    if late is not None:
        documents[-1] = traces.trace(late, job.ranks - 1)
    texts = [
        Text(f"rank{rank}.json", json.dumps({**document, "host_name": name}))
        for rank, (document, name) in enumerate(zip(documents, names, strict=True))
    ]
    return load_trace(texts, Hints("job"))


def recorded_on_another_clock(name, microseconds):
    """A recorded job, the clock of whose second rank is moved."""
    first, second = paths_of(name)
    document = json.loads(gzip.decompress(second.read_bytes()))
    for event in document["traceEvents"]:
        if "ts" in event:
            event["ts"] += microseconds
    return load_trace([first, Text("rank1.json", json.dumps(document))])


@pytest.mark.parametrize("name", ["giant-bucket", "find-unused", "slow-rank"])
@pytest.mark.parametrize("clock", [5_000_000, -5_000_000])
def test_a_recorded_job_is_the_same_on_several_clocks(name, clock):
    same, moved = load_trace(paths_of(name)), recorded_on_another_clock(name, clock)
    assert any("the clock of rank 1 is moved by" in remark for remark in moved.remarks)
    for rank, other in zip(same.ranks, moved.ranks, strict=True):
        for step, twin in zip(rank.steps, other.steps, strict=True):
            assert twin.time == pytest.approx(step.time, abs=1e-6)
    (kept, least) = (workload_of(trace).compute_time for trace in (same, moved))
    assert least == pytest.approx(kept, rel=0.02)


def test_gpus_of_a_host_are_as_told(recorded):
    (workload, cluster, _) = nouns_of(recorded("tiny-buckets"), Hints("", gpus_per_node=2, batch_size=7), silent)
    assert (cluster.nodes, cluster.gpus_per_node, workload.batch_size) == (2, 2, 7)


def on_gpus(places, ranks=None):
    """The cluster of a job whose ranks are on (host, GPU) of hosts with four."""
    job = Job(late=(0,) * len(places), clocks=(0,) * len(places), buckets=((100, 200), (4000,)))
    texts = []
    for rank, (host, gpu) in list(enumerate(places))[:ranks]:
        document = {**traces.trace(job, rank), "deviceProperties": [{"id": number} for number in range(4)]}
        document |= {"host_name": host} if host else {}
        for event in document["traceEvents"]:
            event["pid"] = gpu if event["cat"] == "kernel" else event["pid"]
        texts.append(Text(f"rank{rank}.json", json.dumps(document)))
    trace = load_trace(texts, Hints("job"))
    return cluster_of(trace), found_in(trace)


@pytest.mark.parametrize(
    ("places", "ranks", "nodes", "each"),
    [
        ([("", 0), ("", 1), ("", 2), ("", 3)], None, 1, 4),
        ([("a", 0), ("a", 1), ("b", 0), ("b", 1)], None, 2, 2),
        ([("a", 0), ("b", 0)], None, 2, 1),
        ([("", 0), ("", 1), ("", 0), ("", 1)], None, 4, 1),  # of several hosts, which the traces do not tell apart
        ([("node", 0), ("node", 0)], None, 2, 1),  # containers of one name
        ([("a", 0), ("a", 1), ("b", 0)], None, 3, 1),
        ([("a", 0), ("a", 1), ("a", 2)], 2, 3, 1),  # where the third is is not known
        ([("", 4), ("", 5)], None, 2, 1),  # numbers of processes, not of GPUs
    ],
)
def test_gpus_of_a_node_are_those_that_its_ranks_used(places, ranks, nodes, each):
    """Ranks share nodes only if that is certain; else each has a node of its own."""
    cluster, said = on_gpus(places, ranks)
    assert (cluster.nodes, cluster.gpus_per_node) == (nodes, each)
    assert (f"{each} on each node by their GPUs" in said) == (each > 1)
    assert (f"{each} GPUs in a node as its ranks used" in cluster.source.conditions) == (each > 1)


def test_gpus_of_a_node_in_a_published_trace(published):
    trace = published("param_dlrm_8xV100_all8ranks.tar.gz")
    assert (cluster_of(trace).nodes, cluster_of(trace).gpus_per_node) == (1, 8)
    assert cluster_of(trace).library == "nccl"
    told = [noun for noun in nouns_of(trace, Hints("", gpus_per_node=4), silent) if isinstance(noun, Cluster)]
    assert [(cluster.nodes, cluster.gpus_per_node) for cluster in told] == [(2, 4)]


def test_collectives_that_become_computation_are_told(published, recorded):
    told = []
    nouns_of(published("hta_dlrm_ddp_8xA100_rank3.json.gz"), Hints(""), told.append)
    (said,) = [one for one in told if "other than all-reduces of gradients" in one]
    assert said.startswith("14.17 ms of a step are exposed")
    told.clear()
    nouns_of(recorded("healthy"), Hints(""), told.append)
    assert not any("other than all-reduces of gradients" in one for one in told)


def test_ranks_of_two_runs_are_refused():
    """Their collectives come at the same places, but differ."""
    mixed = [paths_of("giant-bucket")[0], paths_of("find-unused")[1]]
    with pytest.raises(DataError, match=r"find-unused-1\.json\.gz do not fit together: 3 of 3 collectives that"):
        load_trace(mixed)


@pytest.mark.parametrize("clock", [0, 300, 5_000_000, -5_000_000])
def test_hosts_of_one_name_may_have_several_clocks(clock):
    """Containers are often called alike: their collectives must overlap, or they are brought together."""
    job = Job(late=(0, 200), clocks=(0, clock))
    alike, apart = on_hosts(job, ("node", "node")), on_hosts(job, ("a", "b"))
    said = [remark for remark in alike.remarks if "both hosts are called node" in remark]
    assert bool(said) == (abs(clock) > 1000)
    if said:
        waits = [[one.waiting for step in rank.steps for one in step.reductions] for rank in apart.ranks]
        assert [[one.waiting for step in rank.steps for one in step.reductions] for rank in alike.ranks] == waits
    else:
        ends = [rank.steps[0].reductions[0].end for rank in alike.ranks]
        assert ends[1] - ends[0] == pytest.approx(clock * MICRO, abs=1e-9), "left as it is"


def test_ranks_of_several_runs_are_refused():
    """No shift of clocks aligns steps of 3 ms and of 60 ms."""
    job = Job(late=(0, 0), clocks=(0, 0), steps=5)
    with pytest.raises(DataError, match=r"do not fit together: on no one clock .* of one run"):
        on_hosts(job, ("a", "b"), late=replace(job, forward=60_000))


def delayed(rank, delays):
    """The rank with the ends of its collectives so many seconds later, in turn."""
    turn = cycle(delays)
    steps = [
        replace(step, collectives=tuple(replace(one, end=one.end + next(turn)) for one in step.collectives))
        for step in rank.steps
    ]
    return replace(rank, steps=tuple(steps))


def test_collectives_whose_end_a_busy_host_told_late_are_of_one_run():
    """They overlap, though one rank's thread was woken 0 to 80 ms late; on hosts of two names that cannot be known."""
    first, other = read(Job(late=(0, 0), clocks=(0, 0))).ranks
    late = delayed(other, (0, 0.04, 0.08))
    ranks, remarks = joined([first, late], ("node", "node"))
    assert remarks == []
    assert [one.end for one in keyed(ranks[1]).values()] == [one.end for one in keyed(late).values()]
    with pytest.raises(DataError, match="on no one clock"):
        joined([first, late], ("a", "b"))


def test_clocks_are_read_off_all_to_alls_only_where_there_are_no_others():
    """Ranks that get different numbers of bytes in an all-to-all do not end it together."""

    def exchanging(rank, count):
        steps = []
        for step in rank.steps:
            changed = [replace(one, kind="all_to_all") for one in step.collectives[:count]]
            steps.append(replace(step, collectives=(*changed, *step.collectives[count:])))
        return replace(rank, steps=tuple(steps))

    first, other = read(Job(late=(0, 0), clocks=(0, 0))).ranks
    late = delayed(other, (0.04, 0.04, 0))
    _, remarks = joined([exchanging(first, 2), exchanging(late, 2)], ("node", "node"))
    assert remarks == []
    _, remarks = joined([exchanging(first, 3), exchanging(moved(other, 5.0), 3)], ("a", "b"))
    assert [said.partition(" moved by ")[2][:6] for said in remarks] == ["5.000 "]


@pytest.mark.parametrize("clock", [5, -5, 30, -30])
def test_a_clock_is_brought_back_though_waits_are_longer_than_it_is_off(clock):
    """The slow rank's partner waits 46 ms, so that its collectives overlap on a wrong clock too."""
    first, other = load_trace(paths_of("slow-rank")).ranks
    waits = [one.waiting for step in first.steps for one in step.reductions]
    wrong = moved(other, (1000 + clock) / 1000)
    (found, _), (said,) = joined([moved(first, 1), wrong], ("node", "node"))
    (shift,) = re.findall(r"^the clock of rank 1 is moved by (\S+) ms, .* both hosts are called node", said)
    assert float(shift) == pytest.approx(abs(clock), abs=0.1)
    assert [one.waiting for step in found.steps for one in step.reductions] == pytest.approx(waits, abs=2e-3)


@settings(max_examples=examples(6))
@given(JOBS, st.lists(st.integers(0, 2000), min_size=2, max_size=3))
def test_a_trace_predicts_its_own_step(job, late):
    """Self-consistency: with its workload, buckets and costs the model gives the time of the usual step.

    Transfers of synthetic jobs depend on bytes alone, so the only freedom is the first step, begun by an idle host.
    """
    job = replace(job, late=tuple(late), clocks=(0,) * len(late), micro_batches=1)
    trace = read(job)
    workload = workload_of(trace)
    plan = plan_of(trace, workload)
    assert [bucket.size for bucket in plan.buckets] == [4 * sum(bucket) for bucket in job.buckets]
    cluster = cluster_of(trace)
    predicted = predict(workload, cluster, plan, job.ranks)
    off = 0.0
    if cluster.fits:  # about one size: at most by what the line differs from each message
        taken = [job.transfer(place) * MICRO for place in range(len(job.buckets))]
        line = cluster.fits[0].seconds_per_byte
        off = sum(abs(time - line * bucket.size) for time, bucket in zip(taken, plan.buckets, strict=True))
    assert predicted.iteration_time == pytest.approx(measurement_of(trace).iteration_time, rel=1e-6, abs=off)
    assert predicted.warnings == ()


@pytest.mark.parametrize(("gap", "metric"), [(0, 0), (70, 0), (70, 50), (70, 90), (0, 90)])
def test_a_step_ends_with_its_last_kernel(gap, metric):
    """A last all-reduce is of the step, until the next computes; a wait for the host is of the next."""
    job = Job(gap=gap, metric=metric, lead=3000)
    origin = min(event["ts"] for event in traces.trace(job)["traceEvents"])
    steps = read(job).ranks[0].steps
    for step, wanted in zip(steps, expected(job)[0], strict=True):
        check_step(step, wanted, origin)
        assert len(step.collectives) == 3 + (metric > 0)
    assert steps[1].start == pytest.approx(steps[0].end)


def test_the_workload_has_every_gradient_when_the_last_rank_has_it():
    job = Job(late=(0, 500), clocks=(0, 0))
    workload = workload_of(read(job))
    steps = [expected(job)[rank][-1] for rank in (0, 1)]
    assert workload.gradients.sizes == (400, 800, 1200, 200, 240, 280)
    assert list(workload.gradients.ready_times) == times(*((t - steps[1].start) * MICRO for t in steps[1].ready))
    assert workload.update_time == pytest.approx(80e-6)
    assert "GPU X, nccl, 2 workers; rank 1, 1 of 3 steps" in workload.source.conditions
    assert workload.source.conditions.endswith("a layer per gradient")
    assert workload.source.gpu == "GPU X"


def test_sizes_that_a_trace_lacks():
    """Without shapes a bucket is a layer; without any size nothing is sent, and it is said how to record them."""
    bare = Job(shapes=False, late=(0, 0), clocks=(0, 0))
    workload = workload_of(read(bare))
    assert workload.gradients.names == ("bucket0", "bucket1", "bucket2")
    assert workload.grain == "bucket"
    assert "a layer per bucket, since sizes of single gradients are not recorded" in workload.source.conditions
    assert workload_of(read(replace(bare, shapes=True))).grain == "gradient"
    assert workload.gradients.sizes == (1200, 1200, 720)
    assert any("record_shapes=True" in remark for remark in read(bare).remarks)
    none = replace(bare, sizes="nowhere")
    trace = read(none)
    assert [one.elements for one in trace.ranks[0].steps[0].reductions] == [None] * 3
    assert any("18 of 18 collectives have no size" in remark for remark in trace.remarks)
    alone = workload_of(trace)
    assert alone.gradient_bytes == 0
    assert "sizes of gradients are not recorded" in alone.source.conditions
    step = usual_steps(trace)[0]
    exposed = step.reductions[-1].end - step.backward[1]
    assert exposed > 0
    assert alone.compute_time == pytest.approx(step.time - exposed, rel=1e-6)
    with pytest.raises(DataError, match="have no sizes: record with record_shapes=True"):
        plan_of(trace, alone)
    with pytest.raises(DataError, match="no all-reduce of a size that is known"):
        cluster_of(trace)


def test_sizes_from_its_own_gradients():
    """Buckets have the sizes of their gradients if only the shapes of those are recorded."""
    trace = read(Job(sizes="nowhere", late=(0, 0), clocks=(0, 0)))
    found = trace.ranks[0].steps[0].reductions
    assert [(one.elements, one.sized_by) for one in found] == [
        (300, "gradients"),
        (300, "gradients"),
        (180, "gradients"),
    ]


def test_sizes_from_ddp_logging_and_from_a_model():
    job = Job(sizes="nowhere", shapes=False, late=(0, 0), clocks=(0, 0))
    log = Text("log.json", json.dumps({"rebuilt_bucket_sizes": "1200, 1200, 720", "dtypes": "float"}))
    found = read(job, hints=Hints("job", ddp_logging=log)).ranks[1].steps[1].reductions
    assert [(one.elements, one.sized_by) for one in found] == [
        (300, "ddp-logging"),
        (300, "ddp-logging"),
        (180, "ddp-logging"),
    ]
    sizes = [100, 200, 300, 50, 60, 70]
    layers = tuple(Layer(f"w{place}", 1, 1, 4 * size) for place, size in reversed(list(enumerate(sizes))))
    trace = read(job, hints=Hints("job", model=Workload("model", layers)))
    assert [one.elements for one in trace.ranks[0].steps[0].reductions] == [300, 300, 180]
    assert workload_of(trace).gradients.names == tuple(f"w{place}" for place in range(6))
    with pytest.raises(DataError, match=r"DDP's log has 1 buckets.*3 all-reduces of gradients and 6 gradients"):
        read(job, hints=Hints("job", ddp_logging=Text("log.json", '{"rebuilt_bucket_sizes": "12"}')))


def test_a_log_of_ddp_that_a_trace_with_sizes_agrees_with_is_taken():
    job = Job(late=(0, 0), clocks=(0, 0))
    log = Text("log.json", '{"rebuilt_bucket_sizes": "1200, 1200, 720"}')
    assert read(job, hints=Hints("job", ddp_logging=log)) == read(job)
    with pytest.raises(DataError, match="leave it out, or give one of that run"):
        read(job, hints=Hints("job", ddp_logging=Text("log.json", '{"rebuilt_bucket_sizes": "12"}')))


def test_without_annotations_a_step_ends_with_the_optimizers():
    job = Job(annotated=False, late=(0, 0), clocks=(0, 0))
    trace = read(job)
    assert [step.time for step in trace.ranks[0].steps[1:]] == times(
        *((step.end - step.start) * MICRO for step in expected(job)[0][1:])
    )
    assert any("prof.step()" in remark for remark in trace.remarks)


def test_a_first_step_that_is_not_whole_is_left_out():
    job = Job(annotated=False, steps=4)
    forward = next(event for event in traces.trace(job)["traceEvents"] if event["name"] == "forward")

    def cut(events):
        return [event for event in events if event["ts"] > forward["ts"] + 500]

    trace = read(job, change=cut)
    assert len(trace.ranks[0].steps) == 3
    assert any("left out" in remark for remark in trace.remarks)


def test_neither_steps_nor_updates_make_one_step():
    trace = read(Job(annotated=False), change=lambda events: [e for e in events if "Optimizer" not in e["name"]])
    assert len(trace.ranks[0].steps) == 1
    assert any("taken as one step" in remark for remark in trace.remarks)


def test_a_job_on_hosts_that_have_gpus_is_one_on_hosts():
    """torch.profiler lists the GPUs of a host whether a job uses them or not."""
    texts = []
    for path in paths_of("slow-link"):
        document = json.loads(gzip.decompress(path.read_bytes()))
        texts.append(Text(path.name, json.dumps(document | {"deviceProperties": [{"id": 0, "name": "NVIDIA H100"}]})))
    trace, known = load_trace(texts), load_trace(paths_of("slow-link"))
    assert [rank.steps for rank in trace.ranks] == [rank.steps for rank in known.ranks]
    assert (trace.pace.device, trace.pace.host_computes) == ("cpu", True)
    assert explain_trace(trace).cause == "bandwidth"


def test_one_step_of_a_host_is_written(tmp_path):
    document = json.loads(gzip.decompress(paths_of("healthy")[0].read_bytes()))
    words = ("ProfilerStep", "Optimizer")
    document["traceEvents"] = [event for event in document["traceEvents"] if not event["name"].startswith(words)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    written = invoke(["import", str(path), "--kind", "measurements", "-o", f"{tmp_path}/runs.json"])
    assert written.exit_code == 0, written.output
    (run,) = load_measurements(tmp_path / "runs.json")
    assert run.samples == pytest.approx([step.time for step in load_trace([Text("t", path.read_text())]).pace.steps])


def test_a_number_of_a_send_is_none_of_a_collective():
    """Point-to-point messages are counted by themselves: with the number of an all-reduce they are still others."""
    job = Job(late=(0, 0), clocks=(0, 0), sequence=True, buckets=((10_000,), (30_000,), (6_000,)))

    def sent(events, offset):
        kernels = [event for event in events if "AllReduce" in event["name"] and event.get("cat") == "kernel"]
        for send, following in zip(kernels[::3], kernels[1::3], strict=True):
            send["name"] = "ncclDevKernel_SendRecv(x)"
            send["args"] |= {"Collective name": "send", "Seq": following["args"]["Seq"] + offset}
        return events

    apart, alike = (explain_trace(read(job, change=lambda events, by=by: sent(events, by))) for by in (10_000, 0))
    assert alike.gains == apart.gains
    assert alike.replayed == pytest.approx(alike.step_time)


def test_one_rank_of_several_names_missing_data():
    trace = read(Job(late=(0, 0), clocks=(0, 0)), ranks=1)
    assert trace.workers == 2
    assert trace.ranks[0].steps[0].reductions[0].waiting is None
    assert any("1 of 2 ranks" in remark for remark in trace.remarks)


def test_a_rank_twice_is_refused():
    content = traces.text(Job())
    said = "^a.json and b.json are the same trace twice: leave one out$"
    with pytest.raises(DataError, match=said):
        load_trace([Text("a.json", content), Text("b.json", content)])


def test_a_collective_on_the_record_four_times_is_one():
    """Kernel, record_param_comms, the host's and the device's annotation of one all-reduce."""
    trace = read(Job())
    assert [len(step.collectives) for step in trace.ranks[0].steps] == [3, 3, 3]


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "float32"),
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "float32"),
        ("ncclDevKernel_AllReduce_Sum_bf16_TREE_LL(ncclDevComm*, unsigned long)", "bfloat16"),
        ("ncclKernel_AllReduce_RING_LL_Sum_half(ncclDevComm*)", "float16"),
        ("rcclAllReduce_Sum_f32", "float32"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", None),
    ],
)
def test_names_of_kernels(kernel, dtype):
    trace = read(Job(kernel=kernel, sizes="nowhere", shapes=False))
    one = trace.ranks[0].steps[0].collectives[0]
    assert (one.kind, one.dtype) == ("all_reduce", dtype)


def test_old_categories_mean_the_same():
    old = {"kernel": "Kernel", "cpu_op": "Operator", "user_annotation": "Operator", "cuda_runtime": "Runtime"}

    def aged(events):
        return [{**event, "cat": old.get(event["cat"], event["cat"])} for event in events]

    job = Job(late=(0, 0), clocks=(0, 0))
    old, new = read(job, change=aged), read(job)
    assert [replace(rank, checksum="") for rank in old.ranks] == [replace(rank, checksum="") for rank in new.ranks]


def test_where_no_launches_are_recorded_collectives_are_matched_in_order():
    def without(events):
        return [event for event in events if event["cat"] != "cuda_runtime"]

    trace = read(Job(sizes="dims", lead=20), change=without)
    assert [one.elements for one in trace.ranks[0].steps[0].reductions] == [300, 300, 180]


def test_work_of_a_step_before_the_trace_is_not_in_it():
    """Kernels that nothing on the record submitted, ahead of the first step's own."""
    job = Job(lead=20_000)
    first = expected(job)[0][0].start

    def busy(events):
        kernel = {"ph": "X", "cat": "kernel", "name": "old", "pid": 1, "tid": 7, "ts": first - 9000, "dur": 9000}
        nccl = {**kernel, "name": job.kernel, "tid": 20, "dur": 100}
        return [{**kernel, "args": {"stream": 7}}, {**nccl, "args": {"stream": 20}}, *events]

    step = read(job, change=busy).ranks[0].steps[0]
    assert step.time == pytest.approx((expected(job)[0][0].end - first) * MICRO)
    assert len(step.collectives) == 3


def test_steps_are_chosen():
    trace = read(Job(steps=5), hints=Hints("job", steps=(6, 7)))
    assert [step.number for step in trace.ranks[0].steps] == [6, 7]
    with pytest.raises(DataError, match=r"has no steps 1..2: it has 5..7"):
        read(Job(), hints=Hints("job", steps=(1, 2)))


def test_another_rank_that_sent_something_else_is_said():
    job = Job(late=(0, 0), clocks=(0, 0))
    other = replace(job, buckets=((100, 200), (301,), (50, 60, 70)))
    texts = [Text("a.json", traces.text(job, 0)), Text("b.json", traces.text(other, 1))]
    trace = load_trace(texts)
    assert any(remark.startswith("3 collectives are not on the record of all ranks") for remark in trace.remarks)
    assert [one.waiting is None for one in trace.ranks[0].steps[0].reductions] == [False, True, False]


def test_import_gives_all_nouns_of_a_job(tmp_path):
    """Two ranks, hints for what they lack, into a folder; what is checked there follows from its parts."""
    job = Job(
        buckets=((100, 200), (400,)), sizes="nowhere", shapes=False, late=(0, 300), clocks=(0, 0), steps=4, lead=3000
    )
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.json").write_text(traces.text(job, rank))
    (tmp_path / "ddp.json").write_text(json.dumps({"rebuilt_bucket_sizes": "1200, 1600", "dtypes": "float"}))
    (tmp_path / "job").mkdir()
    files = [str(tmp_path / f"rank{rank}.json") for rank in (0, 1)]
    hints = ["--ddp-logging", str(tmp_path / "ddp.json"), "--steps", "6..8", "--name", "mine"]
    result = invoke(["import", *files, *hints, "-o", str(tmp_path / "job")])
    assert result.exit_code == 0, result.output
    assert "2 of 2 ranks, 3 steps of" in result.output
    assert "2 of gradients: 300 400 elements" in result.output
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == [
        "mine-cluster.json",
        "mine-measurements.json",
        "mine-workload.json",
    ]
    checked = invoke(["check", str(tmp_path / "job" / "mine-measurements.json"), "--json"])
    (source,) = json.loads(checked.stdout)["sources"]
    assert source["n"] == 1
    assert source["worst_abs_error"] < 1e-6
    assert source["self_consistency"], "all three are of the same trace"


def test_two_jobs_whose_traces_are_called_alike_are_no_self_consistency(tmp_path):
    """A run of one, predicted from the workload and the cluster of the other, is a prediction."""
    for name, forward in (("a", 400), ("b", 500)):
        (tmp_path / name).mkdir()
        job = Job(forward=forward, late=(0, 0), clocks=(0, 0), buckets=((100, 200), (4000,)))
        (tmp_path / name / "trace.json").write_text(traces.text(job))
        told = [str(tmp_path / name / "trace.json"), "-o", f"{tmp_path / name}/job/"]
        assert invoke(["import", *told]).exit_code == 0
    mixed = (tmp_path / "a/job/trace-measurements.json").read_text().replace('"trace-', '"../../b/job/trace-')
    (tmp_path / "a/job/mixed.json").write_text(mixed)
    own, other = (tmp_path / "a/job" / name for name in ("trace-measurements.json", "mixed.json"))
    found = json.loads(invoke(["check", str(own), str(other), "--json"]).stdout)["sources"]
    assert [(one["n"], one["self_consistency"]) for one in found] == [(1, True), (1, False)]


def test_a_packed_copy_of_a_trace_is_the_same_import(tmp_path):
    text = traces.text(Job(late=(0, 0), clocks=(0, 0), buckets=((100, 200), (4000,)))).encode()
    (tmp_path / "plain.json").write_bytes(text)
    (tmp_path / "packed.json.gz").write_bytes(gzip.compress(text))
    for name in ("plain.json", "packed.json.gz"):
        assert invoke(["import", str(tmp_path / name), "-o", f"{tmp_path}/job/"]).exit_code == 0
    run = tmp_path / "job/packed-measurements.json"
    run.write_text(run.read_text().replace('"packed-', '"plain-'))
    (found,) = json.loads(invoke(["check", str(run), "--json"]).stdout)["sources"]
    assert found["self_consistency"]


def test_a_run_of_a_trace_without_sizes_names_no_cluster(tmp_path):
    """No cluster is written, and osf check says so."""
    job = Job(sizes="nowhere", shapes=False, late=(0, 300), clocks=(0, 0))
    files = [tmp_path / f"rank{rank}.json" for rank in (0, 1)]
    for rank, file in enumerate(files):
        file.write_text(traces.text(job, rank))
    folder = tmp_path / "job"
    assert invoke(["import", *map(str, files), "-o", f"{folder}/"]).exit_code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["rank-measurements.json", "rank-workload.json"]
    checked = invoke(["check", str(folder / "rank-measurements.json")])
    assert checked.exit_code == 1
    said = " ".join(checked.stdout.split())
    assert "1 run not predicted: it names no cluster, as osf import wrote none beside it (without --kind" in said
    assert "no cluster named" not in said


def test_files_of_one_job_share_its_name(tmp_path, monkeypatch):
    assert shared_stem(["a/resnet50-0.json.gz", "a/resnet50-1.json.gz"]) == "resnet50"
    assert shared_stem(["rank9.json", "rank10.json", "rank11.json"]) == "rank"
    assert shared_stem(["rank10.json", "rank11.json"]) == "rank"
    assert shared_stem(["10.json", "11.json"]) == "10"
    assert shared_stem(["resnet50.pt.trace.json"]) == "resnet50"
    (tmp_path / ".run").mkdir()
    monkeypatch.chdir(tmp_path / ".run")
    assert shared_stem(["."]) == "run"


def test_a_run_of_one_worker_uses_no_network_and_no_plan(tmp_path):
    """With whatever cluster is named in it, it is predicted from its own computation: self-consistency."""
    job = trace_of(replace(HEALTHY, slowness=(1.0,), stalls=(0.0,), gradients=(4_000_000,), buckets=(), ddp=False))
    workload, run = workload_of(job), measurement_of(job)
    assert (run.plan, run.workers) == ("unknown", 1)
    profiles.save(workload, tmp_path / "w.json")
    told = replace(run, workload="w.json", cluster="ring:50us,10Gbps")
    save_measurements("run", [told], tmp_path / "run.json")
    (checked,) = check([str(tmp_path / "run.json")])
    assert checked.rows[0].predicted == pytest.approx(run.iteration_time, rel=0.01)
    assert checked.self_consistency
    two = replace(told, workers=2)
    save_measurements("run", [two], tmp_path / "run.json")
    (checked,) = check([str(tmp_path / "run.json")])
    assert list(checked.reasons) == ["its trace does not say which buckets were sent: name a plan in the run"]


def test_a_trace_that_shows_no_ddp_is_no_run_of_it():
    job = trace_of(HEALTHY)
    assert measurement_of(job).plan == "ddp"
    by_hand = measurement_of(trace_of(replace(HEALTHY, ddp=False)))
    assert by_hand.plan == "unknown"
    assert by_hand.condition("sent")
    shards = [replace(one, kind="reduce_scatter") for one in job.ranks[0].steps[0].collectives]
    for ddp, plan in ((False, "unknown"), (True, "ddp")):
        steps = tuple(replace(step, collectives=tuple(shards), ddp=ddp) for step in job.ranks[0].steps[:1])
        found = measurement_of(replace(job, ranks=(replace(job.ranks[0], steps=steps),)))
        assert found.plan == plan
        assert summary(found).startswith(f"measurement: 1 iteration{' of ddp' * ddp} with 2 workers")


def test_a_measurement_alone_names_missing_data(tmp_path):
    (tmp_path / "rank0.json").write_text(traces.text(Job()))
    words = ["import", str(tmp_path / "rank0.json"), "--kind", "measurements", "-o", str(tmp_path / "runs.json")]
    assert invoke(words).exit_code == 0
    said = " ".join(invoke(["check", str(tmp_path / "runs.json")]).stdout.split())
    assert "1 run not predicted: it names no workload and no cluster" in said


def test_ranks_of_a_group_that_is_not_all_of_them_may_be_on_one_host_or_on_several():
    """Two hosts of two GPUs, each GPU in a group with that of its number on the other host."""
    job = Job(late=(0, 0, 0, 0), clocks=(0, 0, 0, 0), buckets=((100, 200), (4000,)))
    texts = []
    for rank in range(4):
        document = traces.trace(job, rank)
        document |= {"deviceProperties": [{"id": 0}, {"id": 1}], "host_name": "ab"[rank // 2]}
        document["distributedInfo"] = {"rank": rank, "world_size": 4, "backend": "nccl"}
        for event in document["traceEvents"]:
            if event["cat"] == "kernel":
                event["pid"] = rank % 2
        texts.append((rank, document))
    for group, each in ((4, 2), (2, 1)):
        for rank, document in texts:
            for event in document["traceEvents"]:
                if "Group size" in event.get("args", {}):
                    event["args"] |= {"Group size": group, "Process Group Name": f"dp{rank % (4 // group)}"}
        trace = load_trace([Text(f"rank{rank}.json", json.dumps(one)) for rank, one in texts], Hints("job"))
        cluster = cluster_of(trace)
        assert (cluster.gpus_per_node, cluster.nodes) == (each, 2)


ODD = [
    None, 0, -1, 1e18, -5.5, 10**30, "x", "", [], [[]], [[1, [2]]], [[[[[1]]]]], {}, True, "allreduce", "\0",
    [[10**18] * 2], [[2, 3]], ["float"], "kernel", "torch::autograd::AccumulateGrad", "gloo:all_reduce",
    "Optimizer.step#x", 1500.0,
]  # fmt: skip


@settings(max_examples=examples(24))
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 20), st.sampled_from(ODD)), min_size=1, max_size=12))
def test_events_that_make_no_sense_are_errors_or_left_out(changes):
    """Whatever stands in an event: a sentence, or nouns, never another exception."""
    document = traces.trace(Job(late=(0, 0), clocks=(0, 0), steps=2))
    for place, field, value in changes:
        event = document["traceEvents"][place % len(document["traceEvents"])]
        inside = event["args"] if field % 2 and event["args"] and isinstance(event["args"], dict) else event
        inside[list(inside)[field // 2 % len(inside)]] = value
    assert sane(document)


def sane(document):
    """Whether it is read as nouns, or refused on one line."""
    try:
        files = Files((Text("odd.json", json.dumps(document)),))
        nouns = nouns_of(kineto.trace_of(files, Hints("odd")), Hints(""), silent)
    except OsfError as error:
        return "\n" not in str(error)
    return all(isinstance(noun, Workload | Cluster | Measurement) for noun in nouns)


KINETO = "traces/kineto"
FILES = {
    "hta_dlrm_ddp_2xV100_rank1.json.gz": (1, 6, 2, "Tesla V100-SXM2-16GB"),
    "hta_dlrm_ddp_8xA100_rank3.json.gz": (1, 6, 8, "NVIDIA A100-PG509-200"),
    "hta_pertensor_allreduce_2xV100_rank1.json.gz": (1, 5, 2, "Tesla V100-SXM2-32GB"),
    "hta_resnet50_ddp_2xA100_rank0.json.gz": (1, 3, 2, "NVIDIA A100-PG509-200"),
    "kineto_resnet50_bs32_1gpu.json.gz": (1, 6, None, "Tesla V100-DGXS-32GB"),
    "param_dlrm_8xV100_all8ranks.tar.gz": (8, 1, 8, "Tesla V100-SXM2-32GB"),
    "param_resnet18_1x2080Ti.json.gz": (1, 30, None, "NVIDIA GeForce RTX 2080 Ti"),
    "tracelens_resnet18_1xMI300X_compute_only.json.gz": (1, 5, None, "AMD Instinct MI300X"),
}
"""Ranks, steps of each, ranks of the job, device."""


@pytest.fixture(scope="module")
def published(data_folder):
    """The trace in a published file, read once."""
    return cache(lambda name: load_trace([data_folder / KINETO / name]))


@pytest.mark.parametrize("name", FILES)
def test_published_traces(published, name):
    """All are read: ranks, steps, device; a workload and the times of steps."""
    trace = published(name)
    ranks, steps, workers, device = FILES[name]
    assert (len(trace.ranks), {len(rank.steps) for rank in trace.ranks}) == (ranks, {steps})
    assert (trace.workers, {rank.device for rank in trace.ranks}) == (workers, {device})
    workload, measured = workload_of(trace), measurement_of(trace)
    assert 0.9 * measured.iteration_time < workload.compute_time <= 1.001 * measured.iteration_time
    for step in (step for rank in trace.ranks for step in rank.steps):
        assert step.forward
        assert step.backward
        assert step.update
        assert step.start <= step.forward[0] <= step.forward[1] <= step.backward[1] <= step.update[1] <= step.end
        assert step.micro_batches == 1


def test_buckets_of_resnet50(published):
    """DDP's default caps on two A100s."""
    trace = published("hta_resnet50_ddp_2xA100_rank0.json.gz")
    network = [2049000, 7875584, 6563840, 6637568, 2431040]
    for step in trace.ranks[0].steps:
        assert [one.elements for one in step.reductions] == network
        assert {(one.dtype, one.sized_by, one.workers) for one in step.reductions} == {("float32", "kernel", 2)}
        assert len(step.gradients) == 161
        assert [one.kind for one in step.collectives[:2]] == ["broadcast", "broadcast"]
    workload = workload_of(trace)
    assert workload.gradient_bytes == 4 * sum(network)
    assert [bucket.size for bucket in plan_of(trace, workload).buckets] == [4 * size for size in network]


def test_an_all_reduce_for_each_tensor(published):
    trace = published("hta_pertensor_allreduce_2xV100_rank1.json.gz")
    assert [len(step.collectives) for step in trace.ranks[0].steps] == [404] * 5
    assert {one.kind for step in trace.ranks[0].steps for one in step.collectives} == {"all_reduce"}


def test_sizes_of_the_dlrm_are_those_of_its_annotations(published):
    """All-reduces between all-to-alls; gradients fill the buckets, a few are of no bucket."""
    trace = published("hta_dlrm_ddp_8xA100_rank3.json.gz")
    for step in trace.ranks[0].steps:
        assert [one.elements for one in step.reductions] == [45310188, 267040, 4432073]
        assert {one.sized_by for one in step.reductions} == {"dims"}
        assert Counter(one.kind for one in step.collectives) == {"all_reduce": 3, "all_to_all": 7}
        messages = carried(step)
        assert [sum(one.elements for one in message) for message in messages] == [45310188, 267040, 4432073]
        assert sum(map(len, messages)) == len(step.gradients) - 1


def test_eight_ranks_are_matched(published):
    trace = published("param_dlrm_8xV100_all8ranks.tar.gz")
    assert [rank.rank for rank in trace.ranks] == list(range(8))
    steps = [rank.steps[0] for rank in trace.ranks]
    assert {tuple(one.elements for one in step.reductions) for step in steps} == {(394241, 112, 226960)}
    assert all(one.waiting is not None for step in steps for one in step.collectives)
    for place in range(len(steps[0].collectives)):
        same = [step.collectives[place] for step in steps]
        assert len({one.arrival for one in same}) == 1
        assert min(one.waiting for one in same) == 0
        transfers = [one.end - one.start - one.waiting for one in same]
        assert max(transfers) - min(transfers) < 100e-6  # they end together
    table = cluster_of(trace).tables[0]
    assert table.workers == 8
    assert table.sizes == (448, 907840, 1576964)


COMPLETE = [
    "hta_dlrm_ddp_2xV100_rank1.json.gz",
    "hta_dlrm_ddp_8xA100_rank3.json.gz",
    "hta_resnet50_ddp_2xA100_rank0.json.gz",
    "param_dlrm_8xV100_all8ranks.tar.gz",
]


@pytest.mark.parametrize("name", COMPLETE)
def test_published_traces_predict_their_own_step(published, name):
    """Self-consistency, no prediction: workload, buckets and costs are of the trace itself."""
    trace = published(name)
    workload = workload_of(trace)
    predicted = predict(workload, cluster_of(trace), plan_of(trace, workload), trace.workers)
    assert predicted.iteration_time == pytest.approx(measurement_of(trace).iteration_time, rel=0.05)


EXPLAINED = ["find-unused", "giant-bucket", "healthy", "input-stall", "slow-link", "slow-rank", "tiny-buckets"]


@pytest.fixture(scope="module")
def recorded():
    """The trace of a real gloo job that was recorded here, read once."""
    folder = ROOT / "tests/formats/data/explained"
    return cache(lambda name: load_trace(sorted(folder.glob(f"{name}-*.gz")), Hints(name)))


@pytest.mark.parametrize("name", EXPLAINED)
def test_recorded_traces_predict_their_own_step(recorded, name):
    """Gloo keeps two all-reduces in flight, which share the network; the int32 map of find-unused is no gradient.

    Messages of about one size become a line through them and through nothing.
    """
    trace = recorded(name)
    workload = workload_of(trace)
    cluster, plan = cluster_of(trace), plan_of(trace, workload)
    assert plan.channels == 1
    predicted = predict(workload, cluster, plan, trace.workers)
    assert predicted.iteration_time == pytest.approx(measurement_of(trace).iteration_time, rel=0.05)
    sizes = {bucket.size for bucket in plan.buckets}
    if max(sizes) < 2 * min(sizes):
        (line,) = cluster.fits
        assert (line.workers, line.latency) == (trace.workers, 0.0)
        assert "of about one size only" in cluster.source.conditions
        return
    (table,) = cluster.tables
    assert set(table.sizes) == sizes
    assert list(table.times) == sorted(table.times)


def test_a_step_is_of_ddp_where_its_forward_or_its_copies_are_on_the_record(tmp_path):
    """Not where gradients are reduced by hand."""
    made = json.loads(gzip.decompress((ROOT / "tests/formats/data/explained/healthy-0.json.gz").read_bytes()))
    signs = ("DistributedDataParallel.forward", "torch.distributed.ddp.reducer::copy_bucket_to_grad")

    def of_ddp(*left_out):
        kept = [one for one in made["traceEvents"] if one.get("name") not in left_out]
        file = tmp_path / "rank0.json"
        file.write_text(json.dumps({**made, "traceEvents": kept}))
        return {step.ddp for step in load_trace([file]).ranks[0].steps}

    assert of_ddp() == of_ddp(signs[0]) == of_ddp(signs[1]) == {True}
    assert of_ddp(*signs) == {False}


@pytest.mark.parametrize("name", EXPLAINED[:-1])
def test_what_a_rank_computes_is_what_an_explanation_has_as_its_own_work(recorded, name):
    """Waits for the network are no computation, though a bucket behind others starts late.

    But with tiny buckets, between which the host works in the time that the network takes.
    """
    trace = recorded(name)
    (pace,) = (rank for rank in explain_trace(trace).ranks if rank.rank == trace.pace.rank)
    assert workload_of(trace).compute_time == pytest.approx(pace.work + pace.parts.input, rel=0.02)


def test_an_import_says_where_the_step_does_not_follow_from_its_parts(recorded):
    """Half of what the collectives took left out of the step: the parts are of another job."""
    trace = recorded("tiny-buckets")
    assert own_step(trace) == pytest.approx(measurement_of(trace).iteration_time, rel=0.05)
    assert doubts(trace) == ()
    longer = [replace(rank, steps=tuple(idled(step) for step in rank.steps)) for rank in trace.ranks]
    (said,) = doubts(replace(trace, ranks=tuple(longer)))
    assert "the step is off by -" in said


def idled(step):
    """With the first all-reduce begun, and its gradients there, but the rest of the step a fifth later."""
    late = step.time / 5
    moved = [replace(one, start=one.start + late, end=one.end + late, arrival=None) for one in step.collectives[1:]]
    update = step.update and (step.update[0] + late, step.update[1] + late)
    return replace(step, collectives=(step.collectives[0], *moved), end=step.end + late, update=update)


def test_an_import_says_where_a_cluster_stands_on_one_size(recorded):
    told: list[str] = []
    nouns = nouns_of(recorded("slow-link"), Hints(""), told.append)
    assert [type(noun) for noun in nouns] == [Workload, Cluster, Measurement]
    assert [said for said in told if "about one size" in said]
    told.clear()
    nouns_of(recorded("tiny-buckets"), Hints(""), told.append)
    assert not [said for said in told if "about one size" in said]


def test_an_import_says_how_little_the_device_computes(recorded):
    """The same job with most of its computation taken off the record, as if the host had taken the time."""
    trace = recorded("healthy")

    def lazy(step):
        return replace(step, compute=step.compute[:: len(step.compute) - 1])

    ranks = [replace(rank, steps=tuple(map(lazy, rank.steps))) for rank in trace.ranks]
    told: list[str] = []
    workload = next(
        noun
        for noun in nouns_of(replace(trace, ranks=tuple(ranks)), Hints(""), told.append)
        if isinstance(noun, Workload)
    )
    usual = [step.compute_time for rank in ranks for step in rank.steps]
    assert min(usual) / workload.compute_time * 0.9 < workload.computing < max(usual) / workload.compute_time * 1.1
    assert [said for said in told if said.startswith(f"only {workload.computing:.0%} of this workload's time")]
    told.clear()
    busy = next(noun for noun in nouns_of(trace, Hints(""), told.append) if isinstance(noun, Workload))
    assert busy.computing > 0.9
    assert not [said for said in told if "computation on the device" in said]


def stretched(trace, factors):
    """With each step so many times as long: what is added comes after its update."""

    def longer(step, factor):
        return replace(step, end=step.end + step.time * (factor - 1))

    ranks = []
    for rank in trace.ranks:
        steps = [longer(step, factor) for step, factor in zip(rank.steps, factors, strict=True)]
        ranks.append(replace(rank, steps=tuple(steps)))
    return replace(trace, ranks=tuple(ranks))


@pytest.mark.parametrize(
    ("factors", "said", "doubtful"),
    [
        ((1, 1, 1, 1.05, 1, 1), (), 0.0),
        ((1, 1, 3, 1, 1, 1), "a usual one takes", 0.375),
        ((1, 2, 1, 2, 1, 2), "no single step time represents them", 0.232),
    ],
)
def test_steps_that_are_unlike_are_told_and_doubtful(factors, said, doubtful):
    """One that is an outlier; two kinds by turns, of which the mean and the median are the same.

    The first step is 1.25 times as long as the others, so that the mean of the former is 1.375 usual steps; of the
    latter those in the middle are 1.25 and 2 long.
    """
    trace = stretched(read(Job(steps=6, late=(0, 0), clocks=(0, 0))), factors)
    found = unsteady(trace)
    assert found == () if not said else said in found[0]
    assert workload_of(trace).doubt == pytest.approx(doubtful, abs=6e-4)


@given(st.lists(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=5), min_size=1, max_size=8))
def test_a_larger_message_never_takes_less(times):
    """Total time is unchanged, and rising times are left as they are."""
    found = rising_means(times)
    assert list(found) == sorted(found)
    total = sum(time * len(row) for time, row in zip(found, times, strict=True))
    assert total == pytest.approx(sum(map(sum, times)))
    means = [fmean(row) for row in times]
    assert means != sorted(means) or found == pytest.approx(means)


@pytest.mark.parametrize("name", FILES)
def test_published_steps_are_put_together_as_the_docs_say(published, name, monkeypatch):
    assert within_a_percent(row_of(published(name), monkeypatch))


@pytest.mark.parametrize("name", EXPLAINED)
def test_so_are_recorded_ones(recorded, name, monkeypatch):
    assert within_a_percent(row_of(recorded(name), monkeypatch))


def within_a_percent(row):
    """Whether the error of a row of benchmarks/traces.py is at most 1 %, or the row says what the trace lacks."""
    *_, error, missing = [cell.strip() for cell in row.split("|")[1:-1]]
    return abs(float(error.rstrip("%"))) <= 1 if error else missing != ""


def row_of(trace, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return str(import_module("traces").row_of(trace))


def test_gradients_of_resnet50_without_communication(published):
    """Old event names; their sizes are those of the model."""
    workload = workload_of(published("kineto_resnet50_bs32_1gpu.json.gz"))
    assert len(workload.gradients) == 161
    assert workload.gradient_bytes == 4 * 25557032
    trace = published("kineto_resnet50_bs32_1gpu.json.gz")
    assert all(step.inputs for step in trace.ranks[0].steps)


def test_bfloat16_on_rocm(published):
    workload = workload_of(published("tracelens_resnet18_1xMI300X_compute_only.json.gz"))
    assert set(workload.gradients.dtypes) == {"bfloat16"}
    assert workload.gradient_bytes == 2 * 11689512


@pytest.mark.parametrize("first", [0, 1])
def test_profiler_steps_that_are_micro_batches_are_taken_together(first):
    """As where prof.step() is called for each batch of three: what was recorded from within a step is left out."""
    job = Job(micro_batches=3, steps=4, late=(0, 0), clocks=(0, 0), lead=3000)

    def cut(events):
        found = []
        for event in events:
            if not event["name"].startswith("ProfilerStep"):
                found.append(event)
                continue
            third = event["dur"] / 3
            number = 3 * int(event["name"].partition("#")[2])
            parts = range(first if event["name"].endswith("#5") else 0, 3)
            found += [
                {**event, "name": f"ProfilerStep#{number + part}", "ts": event["ts"] + part * third, "dur": third}
                for part in parts
            ]
        return found

    trace, whole = read(job, change=cut), read(job)
    assert "steps are micro-batches: 3 of them" in " ".join(trace.remarks)
    for rank, other in zip(trace.ranks, whole.ranks, strict=True):
        assert [step.number for step in rank.steps] == [3 * step.number + 2 for step in other.steps[first:]]
        for step, twin in zip(rank.steps, other.steps[first:], strict=True):
            assert (step.time, step.micro_batches) == (pytest.approx(twin.time, abs=1e-9), 3)
            assert [one.elements for one in step.reductions] == [one.elements for one in twin.reductions]
    assert measurement_of(trace).iteration_time == pytest.approx(measurement_of(whole).iteration_time, rel=0.01)


def host_event(cat, name, start, duration, thread=1, dims=None, types=None):
    told = {} if dims is None else {"Input Dims": dims, "Input type": types}
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": thread, "ts": start, "dur": duration, "args": told}


def test_coalesced_all_reduces_of_a_compiled_backward_are_read_whole():
    """All tensors of a message count; threads may begin messages in another order than they were submitted in."""
    large, small = [[300], [20, 10]], [[7]]
    events = [
        host_event("user_annotation", "ProfilerStep#1", 0, 1000),
        host_event("cpu_op", "Torch-Compiled Region: 0/0", 10, 100),
        host_event("cpu_op", "Torch-Compiled Region: !0/1/0", 200, 500),
        host_event("cpu_op", "c10d::allreduce_coalesced_", 300, 5, 1, [large], ["TensorList"]),
        host_event("cpu_op", "c10d::allreduce_", 310, 5, 1, [small], ["TensorList"]),
        host_event("user_annotation", "gloo:all_reduce", 316, 20, 3, small, ["float"]),
        host_event("user_annotation", "gloo:all_reduce", 318, 80, 2, large, ["float", "float"]),
        host_event("user_annotation", "Optimizer.step#SGD.step", 800, 100),
        host_event("cpu_op", "aten::add_", 810, 50),
    ]
    document = {"schemaVersion": 1, "traceEvents": events, "traceName": ""}
    trace = load_trace([Text("rank0.json", json.dumps(document))], Hints("compiled", workers=2))
    (step,) = trace.ranks[0].steps
    assert [(one.elements, one.dtype) for one in step.reductions] == [(500, "float32"), (7, "float32")]
    assert [one.issued for one in step.reductions] == times(300e-6, 310e-6)
    assert list(step.backward) == times(200e-6, 700e-6)
    assert workload_of(trace).gradients.sizes == (2000, 28)


def test_a_gradient_is_there_when_what_its_hook_submits_has_ended():
    """The last fifth of each gradient's kernel is the copy into its bucket, launched after the accumulation."""

    def with_copies(events):
        for event in [event for event in events if event["name"] == "gradient"]:
            launch = next(
                one
                for one in events
                if one["cat"] == "cuda_runtime" and one["args"]["correlation"] == event["args"]["correlation"]
            )
            number = event["args"]["correlation"] + 10**6
            event["dur"] -= 10
            copy = {"name": "copy", "ts": event["ts"] + event["dur"], "dur": 10}
            events.append(event | copy | {"args": event["args"] | {"correlation": number}})
            events.append(launch | {"ts": launch["ts"] + 10, "args": {"correlation": number}})
        return events

    for step, plain in zip(read(Job(), change=with_copies).ranks[0].steps, read(Job()).ranks[0].steps, strict=True):
        assert [gradient.ready for gradient in step.gradients] == times(*(one.ready for one in plain.gradients))


def test_gloo_between_gpus_leaves_the_device_the_one_that_computes(monkeypatch):
    """Its files are not read again for the operators of hosts."""
    plain, readings = kineto._read, []
    monkeypatch.setattr(kineto, "_read", lambda files, on_host: readings.append(on_host) or plain(files, on_host))

    def over_gloo(events):
        return [event | {"name": event["name"].replace("nccl:", "gloo:")} for event in events]

    job = Job(late=(0, 0), clocks=(0, 0))
    trace = read(job, change=over_gloo)
    assert (trace.pace.host_computes, readings) == (False, [False])
    assert [rank.steps for rank in trace.ranks] == [rank.steps for rank in read(job).ranks]


def test_operators_of_hosts_are_read_only_where_a_library_of_hosts_is_told():
    """Devices are listed, and nothing says that the job does not use them: it is not taken to compute on the host."""
    texts = []
    for path in paths_of("slow-link"):
        document = json.loads(gzip.decompress(path.read_bytes()))
        events = [event for event in document["traceEvents"] if not event.get("name", "").startswith("gloo:")]
        changed = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100"}], "traceEvents": events}
        texts.append(Text(path.name, json.dumps(document | changed)))
    assert {step.compute for rank in load_trace(texts).ranks for step in rank.steps} == {()}


def test_a_single_step_is_kept_though_the_record_begins_within_it():
    job = Job(annotated=False, steps=1)
    middle = expected(job)[0][0].forward[1]
    trace = read(job, change=lambda events: [event for event in events if event["ts"] > middle - job.lead])
    (step,) = trace.ranks[0].steps
    assert len(step.reductions) == len(job.buckets)
    assert not any("left out" in remark for remark in trace.remarks)


def test_gradients_fill_messages_exactly():
    """3 elements, then 2 and 2: each message ends with the gradient that fills it."""
    gradients = [SimpleNamespace(elements=count) for count in (3, 2, 2)]

    def step(*sizes):
        return SimpleNamespace(gradients=gradients, reductions=[SimpleNamespace(elements=size) for size in sizes])

    assert network._by_size(step(3, 4)) == [gradients[:1], gradients[1:]]
    assert network._by_size(step(5)) == [gradients[:2]]
    assert network._by_size(step(4)) is None
    assert network._filling(gradients, 4) == gradients[1:]
    assert network._filling(gradients, 6) == []


def test_hosts_of_other_names_than_the_first_have_clocks_of_their_own():
    """Two that are called alike, but not like the first, and whose clocks are 0.3 ms from its."""
    job = Job(late=(0, 200, 0), clocks=(0, 300, 300))
    alike, apart = on_hosts(job, ("a", "b", "b")), on_hosts(job, ("a", "b", "c"))
    assert [rank.steps for rank in alike.ranks] == [rank.steps for rank in apart.ranks]


def test_copies_of_a_device_are_read():
    """A memory copy beside the kernels of a step is no computation."""
    document = traces.trace(Job(late=(0, 0), clocks=(0, 0)), 0)
    kernel = next(one for one in document["traceEvents"] if one.get("cat") == "kernel")
    copy = kernel | {
        "cat": "gpu_memcpy",
        "name": "Memcpy HtoD (Pageable -> Device)",
        "args": {"device": 0, "stream": 9},
    }
    document["traceEvents"].append(copy)
    with_copy = load_trace([Text("t.json", json.dumps(document))], Hints("t"))
    assert any(step.copies for rank in with_copy.ranks for step in rank.steps)
