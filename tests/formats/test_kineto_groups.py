"""Process groups in a trace: each collective is priced for the ranks of its own group, not for all of the job."""

from __future__ import annotations

import json

import pytest

from osfmodel import explain
from osfmodel.formats import Hints, load_trace
from osfmodel.formats.kineto.collectives import Found
from osfmodel.formats.kineto.sharding import by_threads
from osfmodel.formats.source_text import Text
from osfmodel.formats.traces.cautions import cautions
from osfmodel.formats.traces.network import wire_times_by_size
from tests.formats import traces
from tests.formats.traces import Job
from tests.jobs import HEALTHY, PLANTED, trace_of
from tests.live import explained

KERNEL = "ncclDevKernel_{}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SIDES = {"all_gather": ("AllGather", 100, 800), "reduce_scatter": ("ReduceScatter_Sum_f32", 800, 100)}
"""Kernel, elements put in and elements got by a rank of a group of 8."""


def priced(document):
    """(kind, workers) of all prices of the trace's collectives."""
    trace = load_trace([Text("rank0.json", json.dumps(document))], Hints("job"))
    return {(kind, workers, *sizes) for (kind, workers), sizes in wire_times_by_size(trace).items()}


def of_sixteen(args=None, note=None, groups=None):
    """A job of 16 ranks, with one more collective in each step: a kernel's arguments, or a note around its launch."""
    document = traces.trace(Job())
    document["distributedInfo"] = {"backend": "nccl", "rank": 0, "world_size": 16, "pg_config": groups or []}
    kernels = [event for event in document["traceEvents"] if event["name"] == "update"]
    for number, event in enumerate(kernels):
        begin, correlation = event["ts"] + 10, 5000 + number
        launch = event["ts"] - 150
        host = {"ph": "X", "pid": 1, "tid": traces.THREAD}
        document["traceEvents"] += [
            host | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": launch, "dur": 1,
                    "args": {"correlation": correlation}},
            host | {"cat": "kernel", "name": KERNEL.format(args["kernel"]), "tid": 21, "ts": begin, "dur": 20,
                    "args": {"stream": 21, "correlation": correlation} | args.get("told", {})},
        ]  # fmt: skip
        if note:
            document["traceEvents"].append(host | {"cat": "cpu_op", "ts": launch - 1, "dur": 3} | note)
    for event in document["traceEvents"]:  # DDP's all-reduces are of all ranks
        if event["args"].get("Group size") and event["name"] == Job().kernel:
            event["args"]["Group size"] = 16
    return document


@pytest.mark.parametrize("kind", SIDES)
@pytest.mark.parametrize("said", [{}, {"Group size": 8}, {"Process Group Name": "3"}])
def test_a_group_has_the_ranks_that_its_sizes_show(kind, said):
    """All-gathers of groups of 8 were priced as of 16 where the kernel does not say the group's size."""
    kernel, put, got = SIDES[kind]
    told = {"dtype": "Float", "In msg nelems": put, "Out msg nelems": got} | said
    assert (kind, 8, 3200) in priced(of_sixteen({"kernel": kernel, "told": told}))


@pytest.mark.parametrize("kind", SIDES)
def test_a_group_has_the_ranks_that_its_operator_shows(kind):
    """The operator of PyTorch has the whole vector and a rank's part as inputs, whichever it makes of the other."""
    kernel, put, got = SIDES[kind]
    name = {"all_gather": "c10d::_allgather_base_", "reduce_scatter": "c10d::_reduce_scatter_base_"}[kind]
    args = {"Input Dims": [[got], [put], []], "Input type": ["float", "float", ""]}
    told = {"dtype": "Float", "In msg nelems": put}
    assert (kind, 8, 3200) in priced(of_sixteen({"kernel": kernel, "told": told}, {"name": name, "args": args}))


@pytest.mark.parametrize("entry", [{"pg_name": "3", "pg_size": 8}, {"pg_name": "3", "ranks": list(range(8))}])
def test_a_group_has_the_ranks_that_the_header_lists(entry):
    told = {"dtype": "Float", "In msg nelems": 100, "Process Group Name": "3"}
    assert ("all_gather", 8, 3200) in priced(of_sixteen({"kernel": "AllGather", "told": told}, groups=[entry]))


def test_sides_that_are_no_multiple_say_nothing():
    """An all-gather of unequal parts; the kernel's own figure counts."""
    told = {"dtype": "Float", "In msg nelems": 100, "Out msg nelems": 830, "Group size": 8}
    assert ("all_gather", 8, 3200) in priced(of_sixteen({"kernel": "AllGather", "told": told}))


def on_hosts(runs):
    """A job of 4 ranks over gloo, each step with these (note of gloo, its elements, operator, its dims)."""
    events = []
    for step in range(3):
        begin = 1000 + 1000 * step
        at = begin + 100
        events.append(("user_annotation", f"ProfilerStep#{step}", begin, 900, 1, {}))
        events.append(("cpu_op", "autograd::engine::evaluate_function: MmBackward0", at - 30, 20, 1, {}))
        for note, elements, call, dims in runs:
            kinds = {"Input type": ["float"] * len(dims)}
            events.append(("cpu_op", call, at, 5, 1, {"Input Dims": dims} | kinds))
            told = {"Input Dims": [[elements]], "Input type": ["float"]}
            events.append(("user_annotation", note, at + 10, 60, 2, told))
            events.append(("cpu_op", "aten::copy_", at + 50, 10, 2, {}))  # gloo's thread copies what has arrived
            events.append(("cpu_op", "aten::mm", at + 90, 40, 1, {}))
            at += 150
    fields = ("cat", "name", "ts", "dur", "tid", "args")
    listed = [{"ph": "X", "pid": 1} | dict(zip(fields, event, strict=True)) for event in events]
    told = {"backend": "gloo", "rank": 0, "world_size": 4}
    return {"deviceProperties": [], "distributedInfo": told, "traceEvents": listed}


GATHERED = ("gloo:all_gather", 100, "c10d::_allgather_base_", [[200], [100]])
SCATTERED = ("gloo:all_reduce", 200, "c10d::_reduce_scatter_base_", [[100], [200]])


def test_groups_of_gloo_are_told_by_the_operators():
    assert priced(on_hosts([GATHERED, SCATTERED])) == {("all_gather", 2, 800), ("all_reduce", 2, 800)}


def test_a_wait_in_a_hook_of_fsdp_is_no_computation():
    """Of a node of backward around FSDP2's hooks, which wait, only the operators inside count."""
    document = on_hosts([GATHERED])
    for begin in (1000, 2000, 3000):
        node = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "args": {}}
        for name, start, end in [
            ("autograd::engine::evaluate_function: ReluBackward0", 95, 200),
            ("FSDP::pre_backward (0)", 100, 185),
            ("aten::mul", 187, 198),
        ]:
            document["traceEvents"].append(node | {"name": name, "ts": begin + start, "dur": end - start})
            if name.startswith("FSDP"):
                document["traceEvents"][-1]["cat"] = "user_annotation"
    (step, *_) = load_trace([Text("rank0.json", json.dumps(document))], Hints("job")).ranks[0].steps
    (one,) = step.collectives
    (node,) = [(start, end) for start, end in step.compute if end > one.end]
    assert node[0] == pytest.approx(one.end + 15e-6)
    assert not any(start < one.end and end > one.start for start, end in step.compute)
    found = explain(load_trace([Text("rank0.json", json.dumps(document))], Hints("job")))
    assert found.parts.transfer == pytest.approx(60e-6)
    assert found.gains["bandwidth"] > 0


def test_a_copy_in_the_thread_of_gloo_is_no_computation():
    """It is part of the collective, so that the step waits for the collective until its end."""
    trace = load_trace([Text("rank0.json", json.dumps(on_hosts([GATHERED])))], Hints("job"))
    (step, *_) = trace.ranks[0].steps
    (one,) = step.collectives
    assert not any(start < one.end and end > one.start for start, end in step.compute)


def test_an_import_names_the_rank_that_is_late():
    even = trace_of(HEALTHY)
    assert not any("ranks are apart" in said for said in cautions(even))
    (said,) = [words for words in cautions(trace_of(PLANTED["imbalance"])) if words.startswith("ranks are apart")]
    assert "rank 1 has its gradients" in said
    assert "later than the first" in said


def ran(kind, thread, group=""):
    """A collective of a library's thread."""
    return Found(kind, 0.0, 1.0, 0.0, 10, "float32", "dims", group, None, 2, thread=thread)


def listed(*names):
    return {"distributedInfo": {"pg_config": [{"pg_name": name, "ranks": [0, 1]} for name in names]}}


def test_gloo_has_threads_for_each_group():
    """Two for each; the group made first has the first ones."""
    found = [ran("all_gather", "103"), ran("all_reduce", "99"), ran("all_reduce", "100"), ran("broadcast", "100"),
             ran("all_gather", "102")]  # fmt: skip
    assert [one.group for one in by_threads(listed("0", "1"), found)] == ["1", "0", "0", "0", "1"]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("0",), [ran("all_gather", "9"), ran("all_reduce", "7")]),
        (("0", "1", "2"), [ran("all_gather", "9"), ran("all_reduce", "7")]),
        (("0", "1"), [ran("all_reduce", "9"), ran("all_reduce", "7")]),
        (("0", "1"), [ran("all_gather", "9"), ran("all_reduce", "9")]),
        (("0", "1"), [ran("all_gather", ""), ran("all_reduce", "7")]),
        (("0", "1"), [ran("all_gather", "9", "1"), ran("all_reduce", "7")]),
    ],
)
def test_threads_tell_no_groups_apart_where_that_would_be_a_guess(names, found):
    """One group; a group of which nothing ran; one kind in both; one thread; no threads; groups that are noted."""
    assert by_threads(listed(*names), found) == found


def test_the_recorded_job_has_two_groups():
    rows = explain(explained.paths_of("shared-network")).collectives
    assert {(row.group, row.kind) for row in rows} == {("activations", "all_gather"), ("default_pg", "all_reduce")}
