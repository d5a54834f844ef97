"""Traces of FSDP: real ones over gloo hold what was run, and made-up ones of a GPU are told by notes and launches."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace

import pytest

from osfmodel.cost.clusters import pricing_of
from osfmodel.cost.pricing import Pricing
from osfmodel.diagnosis import CAUSES
from osfmodel.diagnosis.explain_trace import explain_trace
from osfmodel.engine import predict_timeline
from osfmodel.engine.strategies import lower
from osfmodel.entities.errors import DataError
from osfmodel.entities.plan import Plan
from osfmodel.formats import Hints, load_trace, nouns_of
from osfmodel.formats.kineto.collectives import Found
from osfmodel.formats.kineto.recorded import HostSpan, Recorded
from osfmodel.formats.kineto.sharding import grouped
from osfmodel.formats.source_text import Text
from osfmodel.formats.traces import cluster_of, measurement_of, plan_of, workload_of
from osfmodel.formats.traces.network import sharded_tables
from osfmodel.formats.traces.sharded import doubts_of
from osfmodel.formats.traces.usual import usual_steps
from osfmodel.ledger.check import check
from tests.commands import invoke
from tests.formats import sharded_traces
from tests.formats.record_fsdp import FOLDER, HIDDEN, RUNS, WIDTH, WORDS
from tests.sharded_jobs import PLANTED_SHARDED, REMOVED_SHARDED, times_of

BLOCKS = [f"layers.{place}" for place in range(len(HIDDEN))]
SHAPES = {
    "": ((WORDS, WIDTH), (WORDS, WIDTH), (WORDS,)),
    **{
        name: ((hidden, WIDTH), (hidden,), (WIDTH, hidden), (WIDTH,))
        for name, hidden in zip(BLOCKS, HIDDEN, strict=True)
    },
}
"""Shapes of the parameters of each group, in the order of ``Module.parameters``."""


def files(run):
    """The traces of a run."""
    return [FOLDER / f"{run}-rank{rank}.json.gz" for rank in RUNS[run][1]]


def traced(run):
    """The job of a run."""
    return load_trace(files(run))


def unit(module):
    """FSDP1's name for a group."""
    return f"unit{0 if module == '' else int(module[-1]) + 1}"


def part(module, ranks, flat):
    """Elements of a group on each rank: padded parameter by parameter, or once."""
    sizes = [(shape[0], math.prod(shape[1:])) for shape in SHAPES[module]]
    if flat:
        return -(-sum(first * rest for first, rest in sizes) // ranks)
    return sum(-(-first // ranks) * rest for first, rest in sizes)


def ran(run):
    """(kind, group, elements, dtype) of each collective that the run sent in a micro-batch, in order."""
    ranks, flat = 2, run == "fsdp1"
    name = unit if flat else str
    gather = "bfloat16" if run == "mixed" else "float32"
    found = [("all_gather", name(module), part(module, ranks, flat), gather) for module in ("", *BLOCKS)]

    def again(module):
        return [] if run == "keep" else [("all_gather", name(module), part(module, ranks, flat), gather)]

    def reduced(module):
        shard = part(module, ranks, flat)
        between = [("all_reduce", name(module), shard, "float32")] if run == "hsdp" else []
        return [("reduce_scatter", name(module), ranks * shard, "float32"), *between]

    first, second, third = BLOCKS
    if run == "ahead":  # two groups ahead
        order = [again(third), again(second), again(first), reduced(third), reduced(second)]
    else:
        order = [again(third), again(second), reduced(third), again(first), reduced(second)]
    for rows in [*order, reduced(first), reduced("")]:
        found += rows
    return found


def told(step):
    """The same of a step of a trace."""
    return [(one.kind, one.shard.module, one.elements, one.dtype) for one in step.collectives]


@pytest.mark.parametrize("run", RUNS)
def test_a_trace_holds_the_collectives_that_were_run(run):
    for rank in traced(run).ranks:
        for step in rank.steps:
            assert told(step) == ran(run) * (2 if run == "twice" else 1)
            assert step.micro_batches == (2 if run == "twice" else 1)
            gathers = [one for one in step.collectives if one.kind == "all_gather"]
            passes = 0 if run == "keep" else len(BLOCKS)
            assert sum(one.shard.backward for one in gathers) == passes * step.micro_batches
            assert {one.workers for one in step.collectives} == {2}
            if run != "fsdp1":
                reduces = [one for one in step.collectives if one.kind == "reduce_scatter"]
                assert all(one.shard.shapes == SHAPES[one.shard.module] for one in reduces)
                assert [one.shard.module for one in reduces if one.shard.last] == [""] * step.micro_batches


def test_groups_of_a_mesh_are_told_by_the_header():
    """Shards are next to each other, replicas are not, though gloo notes no group."""
    (step, *_) = traced("hsdp").ranks[0].steps
    groups = {kind: {one.group for one in step.collectives if one.kind == kind} for kind, *_ in told(step)}
    assert groups["all_gather"] == groups["reduce_scatter"] != groups["all_reduce"]
    header = json.loads(gzip.decompress(files("hsdp")[0].read_bytes()))["distributedInfo"]["pg_config"]
    ranks = {entry["pg_name"]: entry["ranks"] for entry in header}
    assert [ranks[group] for group in groups["all_gather"]] == [[0, 1]]
    assert [ranks[group] for group in groups["all_reduce"]] == [[0, 2]]


@pytest.mark.parametrize("run", RUNS)
def test_the_plan_of_a_trace_sends_what_the_trace_shows(run):
    trace = traced(run)
    workload = workload_of(trace)
    plan = plan_of(trace, workload)
    operations = lower(workload, plan, Pricing.free(trace.workers)).operations
    names = [group.modules[0] if group.modules else "" for group in plan.sharding.groups]
    if run == "fsdp1":
        names = [name or unit(name) for name in names]
    sent = [
        (one.kind, names[one.bucket], one.size)
        for one in operations
        if one.kind in ("all_gather", "reduce_scatter", "all_reduce")
    ]
    (step, *_) = usual_steps(trace)
    whole = [
        (one.kind, one.shard.module, one.bytes * (2 if one.kind == "all_gather" else 1)) for one in step.collectives
    ]
    assert sent == whole
    assert plan.strategy == ("hybrid-sharded" if run == "hsdp" else "fully-sharded")
    assert plan.sharding.micro_batches == step.micro_batches
    resharded = [group.reshard for group in plan.sharding.groups]
    assert resharded == [False, *[run != "keep"] * len(BLOCKS)]


@pytest.mark.parametrize("run", RUNS)
def test_the_step_is_predicted_again_from_what_is_imported(run):
    trace = traced(run)
    workload, cluster = workload_of(trace), cluster_of(trace)
    plan = plan_of(trace, workload)
    pricing = pricing_of(cluster, trace.workers, workload).for_plan(plan)
    (step,) = usual_steps(trace)
    assert predict_timeline(workload, plan, pricing).iteration_time == pytest.approx(step.time, rel=1e-4)


def test_the_layers_are_parameters_of_the_modules():
    workload = workload_of(traced("reshard"))
    shapes = {layer.name: layer.shape for layer in workload.layers}
    assert shapes["layers.1.parameter0"] == (HIDDEN[1], WIDTH)
    assert [layer.name for layer in workload.layers] == [
        "parameter0", *(f"{name}.parameter{k}" for name in BLOCKS for k in range(4)), "parameter1", "parameter2",
    ]  # fmt: skip
    assert workload.gradient_bytes == 4 * sum(math.prod(shape) for row in SHAPES.values() for shape in row)
    assert all(layer.forward_time > 0 < layer.backward_time for layer in workload.layers)


@pytest.mark.parametrize("run", RUNS)
def test_causes_of_a_real_step_add_up_to_it(run):
    found = explain_trace(traced(run))
    assert all(gain >= 0 for gain in found.gains.values())
    assert sum(found.gains.values()) + found.left + found.missed == pytest.approx(found.step_time)
    assert (found.saved("gathered-twice") > 0) == (run != "keep")
    kinds = {(row.kind, row.backward): row for row in found.collectives}
    assert (("all_gather", True) in kinds) == (run != "keep")
    assert (("all_reduce", None) in kinds) == (run == "hsdp")
    assert sum(row.count for row in kinds.values()) == len(found.buckets)


def test_keeping_parameters_saves_what_backward_gathers():
    found = explain_trace(traced("mixed"))
    assert found.saved("gathered-twice") >= found.gains["gathered-twice"]
    (again,) = [row for row in found.collectives if (row.kind, row.backward) == ("all_gather", True)]
    assert found.saved("gathered-twice") <= again.transfer + (again.waiting or 0) + 1e-9
    assert explain_trace(traced("keep")).saved("gathered-twice") == 0


def test_an_all_reduce_between_all_is_put_together_from_what_was_sent():
    """A reduce-scatter, an all-reduce of the shard and an all-gather; one size is in proportion to bytes."""
    tables = sharded_tables(
        {
            ("all_gather", 2): {100: [1.0], 300: [3.0]},
            ("reduce_scatter", 2): {100: [2.0], 300: [4.0]},
            ("all_reduce", 2): {50: [7.0]},
        },
        4,
    )
    found = {(table.collective, table.workers): dict(zip(table.sizes, table.times, strict=True)) for table in tables}
    assert found["all_reduce", 2] == {50: 7.0, 100: 14.0}
    assert found["all_reduce", 4] == {100: 1 + 2 + 7, 300: 3 + 4 + 14}
    alone = sharded_tables({("all_gather", 2): {100: [1.0], 300: [3.0]}, ("reduce_scatter", 2): {200: [2.0]}}, 2)
    assert {table.collective: table.times for table in alone}["all_reduce"] == (2 + 2, 4 + 3)


def test_a_plan_in_an_unknown_type_is_not_made():
    said = []
    trace = traced("mixed")
    steps = []
    for step in trace.ranks[0].steps:
        sent = [replace(one, dtype="float7") if one.kind == "all_gather" else one for one in step.collectives]
        steps.append(replace(step, collectives=tuple(sent)))
    odd = replace(trace, ranks=(replace(trace.ranks[0], steps=tuple(steps)),))
    nouns = nouns_of(odd, Hints("odd"), said.append)
    assert not any(isinstance(noun, Plan) for noun in nouns)
    assert any(words.startswith("no plan: the trace makes none: ") for words in said)


def test_units_of_one_size_are_told_by_the_order_of_backward():
    """FSDP1 gathers and reduces the last unit first."""
    kept = Recorded()
    found = []
    calls = [("pre_forward", "all_gather", 8)] * 3
    calls += [("pre_backward_hook", "all_gather", 8)] * 2 + [("post_backward_hook", "reduce_scatter", 16)] * 3
    for step in range(2):
        for place, (hook, kind, elements) in enumerate(calls):
            begin = 1000.0 * step + 10 * place
            kept.sharding.append(HostSpan(f"FullyShardedDataParallel._{hook}", begin, begin + 5, "1", None))
            found.append(Found(kind, begin + 2, begin + 3, begin + 1, elements, "float32", "dims", "", None, 2))
    named, _ = grouped(kept, found)
    assert [one.shard.module for one in named] == [
        "unit0", "unit1", "unit2", "unit2", "unit1", "unit2", "unit1", "unit0",
    ] * 2  # fmt: skip
    assert [one.shard.last for one in named] == [*[False] * 7, True] * 2


def without(run, *names):
    """The text of a run's first trace without these args."""
    document = json.loads(gzip.decompress(files(run)[0].read_bytes()))
    for event in document["traceEvents"]:
        for name in names:
            event["args"].pop(name, None)
    return Text("rank0.json", json.dumps(document))


def test_an_import_says_what_is_missing():
    said = []
    trace = traced("keep")
    nouns = nouns_of(trace, Hints("keep"), said.append)
    assert [type(noun).__name__ for noun in nouns] == ["Workload", "Plan", "Cluster", "Measurement"]
    assert any("1 of 2 ranks" in words for words in said)
    bare = load_trace([without("keep", "Input Dims", "Input type")], Hints("bare"))
    with pytest.raises(DataError, match="the all-gathers of the root have no sizes: record with record_shapes=True"):
        workload_of(bare)
    assert not any("own type" in words for words in doubts_of(trace))
    assert any("gathered in bfloat16 and reduced in float32" in words for words in doubts_of(traced("mixed")))
    assert any("FSDP1 notes no names" in words for words in doubts_of(traced("fsdp1")))
    assert measurement_of(trace).plan == "unknown"


def test_an_import_writes_files_that_predict_and_check(tmp_path):
    job = tmp_path / "job"
    done = invoke(["import", *map(str, files("reshard")), "-o", f"{job}/", "--name", "small"])
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in job.iterdir()) == [
        f"small-{kind}.json" for kind in ("cluster", "measurements", "plan", "workload")
    ]
    (checked,) = check([str(job / "small-measurements.json")])
    (row,) = checked.rows
    assert row.predicted == pytest.approx(row.measured, rel=0.05)
    words = ["predict", f"{job}/small-workload.json", "--cluster", f"{job}/small-cluster.json", "--workers", "2"]
    done = invoke([*words, "--plan", f"{job}/small-plan.json", "--format", "json"])
    (one,) = json.loads(done.stdout)["predictions"]
    assert one["iteration_time_s"] == pytest.approx(row.predicted)


@pytest.mark.parametrize("cause", sorted(set(PLANTED_SHARDED) - {"blocking"}))
def test_a_cause_is_found_in_the_trace_of_a_gpu_and_not_without_its_fault(cause):
    """Its cost is what the job is faster by without it."""
    job, mended = PLANTED_SHARDED[cause], REMOVED_SHARDED[cause]
    found, other = (explain_trace(on_a_gpu(one)) for one in (job, mended))
    assert found.step_time == pytest.approx(sharded_traces.length(job), rel=1e-3)
    assert found.cause == cause
    assert found.gains[cause] == pytest.approx(found.step_time - other.step_time, abs=0.3e-3)
    assert other.gains[cause] < 0.3e-3
    assert sum(found.gains.values()) + found.left + found.missed == pytest.approx(found.step_time)


def on_a_gpu(job):
    """The trace of one rank, as read."""
    return load_trace([Text("rank0.json", sharded_traces.text(job))], Hints("gpu"))


@pytest.mark.parametrize("separate", [False, True])
def test_groups_of_a_gpu_are_told_by_the_notes_around_their_launches(separate):
    job = replace(PLANTED_SHARDED["one-communicator"], separate=separate)
    trace = on_a_gpu(job)
    (step, *_) = trace.ranks[0].steps
    blocks = [f"layers.{place}" for place in range(4)]
    gathers = [one for one in step.sharded if one.kind == "all_gather"]
    assert [(one.shard.module, one.shard.backward) for one in gathers] == [
        *((name, False) for name in ("", *blocks)), *((name, True) for name in reversed(blocks)),
    ]  # fmt: skip
    assert [one.shard.by for one in gathers if one.shard.backward] == ["", *reversed(blocks[1:])]
    assert [one.shard.module for one in step.sharded if one.kind == "reduce_scatter"] == [*reversed(blocks), ""]
    assert [use.module for use in step.uses if use.backward] == ["", *reversed(blocks)]
    workload = workload_of(trace)
    plan = plan_of(trace, workload)
    assert plan.sharding.separate == separate
    assert [group.reshard for group in plan.sharding.groups] == [False, *[True] * 4]
    assert [sum(block.bytes for block in bucket.blocks) for bucket in plan.buckets] == [8 * n for n in job.elements]
    times = {name: end - start for name, (_, start, end) in times_of(job).items()}
    for place, name in enumerate(blocks):
        forward = sum(layer.forward_time for layer in workload.layers if layer.name.startswith(name))
        assert forward == pytest.approx(times[f"forward {place}"] * 1e-3, abs=1e-4)


def test_the_step_of_a_gpu_is_predicted_from_its_parts():
    """Its inputs were limited to one, as the plan has it; the reduce-scatters overlapped as streams do."""
    job = replace(PLANTED_SHARDED["one-communicator"], inputs=1)
    trace = on_a_gpu(job)
    workload = workload_of(trace)
    plan = plan_of(trace, workload)
    pricing = pricing_of(cluster_of(trace), 2, workload).for_plan(plan)
    found = predict_timeline(workload, plan, pricing).iteration_time
    assert found == pytest.approx(sharded_traces.length(job), rel=0.05)
    assert any("one, as by default" in words for words in doubts_of(trace))


def test_an_explanation_lists_groups_and_kinds():
    done = invoke(["explain", *map(str, files("hsdp"))], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    for words in ("all-gather, forward", "all-gather, backward", "0 all-gather root", "reduce-scatter layers.2"):
        assert words in done.stdout
    done = invoke(["explain", *map(str, files("hsdp")), "--format", "json"])
    document = json.loads(done.stdout)
    assert [row["kind"] for row in document["collectives"]] == [
        "all_gather",
        "all_gather",
        "reduce_scatter",
        "all_reduce",
    ]
    assert [row["process_group"] for row in document["collectives"]] == ["mesh_shards"] * 3 + ["mesh_replicas"]
    assert document["collectives"][-1]["members"] == [0, 2]
    assert {row["module"] for row in document["buckets"]} == {"", *BLOCKS}
    assert {row["cause"] for row in document["causes"]} == {*CAUSES, "compute"}
