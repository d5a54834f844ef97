"""Horovod's timeline and autotune log: real ones, what older releases and other libraries write, and cut-off ones."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import osfmodel as osf
from osfmodel import Cluster, DataError, Workload
from osfmodel.entities.errors import ForeignFileError
from osfmodel.entities.measurement import Measurement
from osfmodel.formats import Hints
from osfmodel.formats import horovod as files
from osfmodel.formats import horovod as horovod_timeline
from osfmodel.formats.reading import import_advice
from osfmodel.formats.source_text import Text
from tests.commands import invoke
from tests.draws import examples
from tests.formats import samples

SIZES = {"fc.bias": 40, "fc.weight": 163840, "conv3.weight": 589824, "conv2.weight": 147456, "conv1.bias": 256,
         "conv1.weight": 37632}  # fmt: skip


def timeline(content, tell=lambda message: None):
    return horovod_timeline.timeline(Text("file.json", content, tell=tell))


def nouns(content, told=None, **hints):
    text = Text("file.json", content, tell=(told if told is not None else []).append)
    return {type(noun): noun for noun in horovod_timeline.read_timeline(text, Hints("mine", **hints))}


def formed(found):
    return [[group.names for group in groups] for groups in found.iterations]


def test_a_real_timeline_without_fusion():
    """Threshold 0: each tensor by itself, in the order in which gradients were ready."""
    found = timeline(samples.HOROVOD_UNFUSED)
    assert formed(found) == [[(name,) for name in SIZES]] * 6
    assert [group.bytes for group in found.iterations[0]] == list(SIZES.values())
    assert (found.library, found.workers, found.hierarchical) == ("gloo", 2, False)
    assert found.copy_seconds_per_byte is None
    assert found.asked == (True, False, False, False, False, False)
    assert (found.warm_ups, len(found.iteration_times)) == (1, 4)
    assert {size: len(times) for size, times in found.durations.items()} == dict.fromkeys(sorted(SIZES.values()), 5)


def test_a_real_timeline_with_fusion():
    """The groups are those that went through the fusion buffer together, one after the other."""
    found = timeline(samples.HOROVOD_FUSED)
    assert formed(found)[0] == [
        ("fc.bias", "fc.weight", "conv3.weight"),
        ("conv2.weight", "conv1.bias"),
        ("conv1.weight",),
    ]
    for groups in found.iterations:
        assert [name for group in groups for name in group.names] == list(SIZES)
        assert all(a.end <= b.start for a, b in pairwise(groups)), "gloo's collectives never overlap"
        for group in groups:
            assert group.start <= group.begun < group.done <= group.end
            assert (group.copy_in is None) == (len(group.names) == 1) == (group.copy_out is None)
    assert found.cycle_gap == pytest.approx(0.005, rel=0.05), "the cycle time that was set"
    assert min(found.negotiation()) < min(found.negotiation(asked=True)), "the cache answers sooner than the ranks"
    into, out = found.copy_seconds_per_byte
    assert 1e-12 < out < into < 1e-8


def test_what_is_imported():
    told = []
    found = nouns(samples.HOROVOD_FUSED, told, batch_size=32)
    run, workload, cluster = (found[kind] for kind in (Measurement, Workload, Cluster))
    assert run.samples == timeline(samples.HOROVOD_FUSED).iteration_times
    assert (run.plan, run.workers, run.warm_ups) == ("horovod", 2, 1)
    stated = dict(run.conditions)
    assert (stated["executor"], stated["library"], stated["batch_size"]) == ("horovod", "gloo", "32")
    assert stated["buckets"] == "753704 147712 37632", "as formed most often"
    assert stated["formations"] == "3 in 4 iterations"
    assert dict(zip(workload.gradients.names, workload.gradients.sizes, strict=True)) == SIZES
    assert workload.gradients.names == tuple(SIZES)
    assert set(workload.gradients.dtypes) == {"float32"}
    assert workload.forward_time + workload.backward_time < max(run.samples), "medians of four unequal iterations"
    # Each of the two gradients that are 2 ms apart at least may be seen a cycle late.
    assert workload.backward_time == pytest.approx(0.010, abs=0.005)
    assert "up to 5.325 ms late" in told[0]
    (table,) = cluster.tables
    assert table.sizes == tuple(timeline(samples.HOROVOD_FUSED).durations)
    assert osf.cost_of(cluster, 2)(753704) == table.times[-1]
    assert cluster.library == "gloo"
    seen = timeline(samples.HOROVOD_FUSED)
    assert cluster.effects.active == {
        "fusion_copy": sum(seen.copy_seconds_per_byte),
        "negotiation": min(seen.negotiation()),
        "negotiation_miss": min(seen.negotiation(asked=True)) - min(seen.negotiation()),
    }


EVENTS = list(json.loads(samples.HOROVOD_FUSED))
BY_OLDER = "[\n" + "".join(json.dumps(event) + ",\n" for event in EVENTS)
"""As releases before 0.28 write it: an event on a line, a comma behind each, never closed."""


def test_arrays_that_were_never_closed():
    told = []
    assert timeline(BY_OLDER, told.append) == timeline(samples.HOROVOD_FUSED)
    assert timeline(BY_OLDER.rstrip(",\n")) == timeline(samples.HOROVOD_FUSED)
    assert told == []
    assert timeline(BY_OLDER + '{"ph": "E", "ts', told.append) == timeline(samples.HOROVOD_FUSED)
    assert told == [f"event {len(EVENTS) + 1} was cut off and is left out"]


WHOLE = [group for groups in timeline(samples.HOROVOD_FUSED).iterations for group in groups]


@settings(max_examples=examples(45))
@given(st.integers(2000, len(samples.HOROVOD_FUSED)), st.sampled_from([samples.HOROVOD_FUSED, BY_OLDER]))
def test_cut_anywhere_the_groups_are_the_first_of_the_whole(cut, content):
    """Never a part of a group, and never a fault: only the last event may be incomplete."""
    groups = []
    try:
        groups = [group for groups in timeline(content[:cut]).iterations for group in groups]
    except DataError as error:
        refused = str(error)
    assert groups == WHOLE[: len(groups)]
    assert groups or refused.startswith("holds no all-reduce that ended")


def renamed(content, library):
    return content.replace("GLOO_ALLREDUCE", f"{library.upper()}_ALLREDUCE")


@pytest.mark.parametrize("library", ["mpi", "nccl", "ccl"])
def test_the_library_is_told_by_the_names_of_activities(library):
    found = timeline(renamed(samples.HOROVOD_FUSED, library))
    assert found == replace(timeline(samples.HOROVOD_FUSED), library=library)
    read = nouns(renamed(samples.HOROVOD_FUSED, library))
    assert dict(read[Measurement].conditions)["library"] == library
    assert read[Cluster].library == library


def test_a_library_that_is_not_known_is_not_stated():
    read = nouns(renamed(samples.HOROVOD_FUSED, "hccl"))
    assert dict(read[Measurement].conditions)["library"] == "not stated"
    assert read[Cluster].library == ""
    assert "Horovod, library not stated, 2 workers" in read[Measurement].source.conditions


class Trace:
    """Writes what Horovod would, with a clock of one microsecond per event."""

    def __init__(self):
        self.lines, self.clock, self.pids = [], 0, {}

    def write(self, tensor, phase, name="", **args):
        if tensor not in self.pids:
            self.pids[tensor] = len(self.pids) + 1
            named = {"name": "process_name", "ph": "M", "pid": self.pids[tensor], "args": {"name": tensor}}
            self.lines.append(named)
        self.clock += 1
        event = {"ph": phase, "ts": self.clock, "pid": self.pids[tensor], **({"name": name} if name else {})}
        self.lines.append(event | ({"args": args} if args else {}))

    def mark(self, gap=100):
        self.clock += gap
        self.lines.append({"ph": "i", "name": "CYCLE_START", "ts": self.clock, "s": "g"})

    def during(self, tensors, activity, dtype=None):
        """The steps of an activity of all tensors, each a call that writes one event."""
        yield from ((name, "B", activity) for name in tensors)
        yield from ((name, "E", "") for name in tensors)

    def loop(self, group, waits):
        """The background thread's events for a group, which ``waits`` for its data if it is on a GPU."""
        for phase in ("B", "E"):
            for name in group:
                yield name, phase, "NEGOTIATE_ALLREDUCE" if phase == "B" else ""
        yield from ((name, "B", "ALLREDUCE") for name in group)
        for name in group if waits else ():
            yield name, "B", "WAIT_FOR_DATA"
        for name in group if waits else ():
            yield name, "E", ""
            yield name, "B", "WAIT_FOR_OTHER_TENSOR_DATA"
        yield from ((name, "E", "") for name in group if waits)

    def finalizer(self, group, steps):
        """The events of a thread that waits for the GPU."""
        around = ["MEMCPY_IN_FUSION_BUFFER", "MEMCPY_OUT_FUSION_BUFFER"] if len(group) > 1 else []
        for step in [*around[:1], *steps, *around[1:]]:
            yield from self.during(group, step)
        yield from ((name, "END", "") for name in group)

    def step(self, event):
        name, phase, activity = event
        if phase == "END":
            self.write(name, "E", dtype="float16", shape="[8]")
        else:
            self.write(name, phase, activity)

    @property
    def text(self):
        return json.dumps(self.lines)


@settings(max_examples=examples(30))
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=6),
    st.integers(0, 3),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_groups_of_asynchronous_collectives(counts, streams, hierarchical, random):
    """The loop forms the next groups while up to three finalizers write of groups before, all interleaved.

    With 0 there is one, and no tensor waits for its data.
    """
    streams, waits = max(1, streams), streams > 0
    numbers = iter(range(100))
    groups = [tuple(f"allreduce.t{next(numbers)}" for _ in range(count)) for count in counts]
    steps = ["NCCL_REDUCESCATTER", "MEMCPY_IN_HOST_BUFFER", "MPI_ALLREDUCE", "NCCL_ALLGATHER"]
    trace = Trace()
    loop = iter([list(trace.loop(group, waits)) for group in groups])
    queues = [[] for _ in range(streams)]
    begun = iter(enumerate(groups))
    pending = []
    while True:
        busy = [queue for queue in queues if queue]
        if not pending and (batch := next(loop, None)) is not None:
            pending = batch
            place, group = next(begun)
        if not pending and not busy:
            break
        if pending and (not busy or random.random() < 0.5):
            trace.step(pending.pop(0))
            if not pending:
                chosen = steps if hierarchical else ["NCCL_ALLREDUCE"]
                queues[place % streams] += trace.finalizer(group, chosen)
        else:
            trace.step(random.choice(busy).pop(0))
    found = timeline(trace.text)
    assert formed(found) == [[tuple(name.removeprefix("allreduce.") for name in group) for group in groups]]
    assert (found.library, found.hierarchical, found.workers) == ("nccl", hierarchical, None)
    assert all((tensor.ready is not None) == waits for group in found.iterations[0] for tensor in group.tensors)


def steady(iterations=4, extra=(), cycles=True, ranks=0, waits=0, late=0):
    """Iterations of three tensors, one by one, of 1000 us of forward each; ``extra``: (before, tensor).

    ``waits``: microseconds that the loop waits for the data of each, as on a GPU.
    ``late``: microseconds by which the last rank is later than the one that writes the timeline, with each tensor.
    """
    trace = Trace()
    for number in range(iterations):
        trace.clock += 1000
        for name in [*[tensor for before, tensor in extra if before == number], "c", "b", "a"]:
            if cycles:
                trace.mark()
            trace.write(name, "B", "NEGOTIATE_ALLREDUCE")
            for rank in range(ranks if number == 0 else 0):
                trace.write(name, "X", str(rank))
            for _ in range(late // 100):
                trace.clock += 0 if cycles else 100
                if cycles:
                    trace.mark()
            trace.write(name, "E")
            trace.write(name, "B", "ALLREDUCE")
            if waits:
                trace.write(name, "B", "WAIT_FOR_DATA")
                trace.clock += waits
                trace.write(name, "E")
            for step in trace.during([name], "MPI_ALLREDUCE"):
                trace.step(step)
            trace.write(name, "E", dtype="float32", shape="[]" if len(name) > 1 else f"[{ord(name)}, 2]")
    return trace.text


def test_what_no_rank_says_must_be_told():
    with pytest.raises(DataError, match="give --workers N"):
        nouns(steady())
    assert nouns(steady(), workers=4)[Measurement].workers == 4
    assert nouns(steady(ranks=3))[Measurement].workers == 3
    with pytest.raises(DataError, match="says 3 workers, --workers 4"):
        nouns(steady(ranks=3), workers=4)


def test_iterations_that_the_cache_did_not_know_are_warm_up():
    """Later ones in which ranks are asked again count; without a cache, the first is warm-up all the same."""
    found = timeline(steady(6, ranks=2))
    for asked, warm_ups in (
        ((True, True, False, False, True, False), 2),
        ((False,) * 6, 1),
        ((True,) * 6, 1),
    ):
        other = replace(found, asked=asked)
        assert (other.warm_ups, len(other.iteration_times)) == (warm_ups, 5 - warm_ups)


def test_one_worker_shows_the_model_and_no_network():
    found = nouns(steady(ranks=1))
    assert set(found) == {Measurement, Workload}
    assert found[Workload].gradients.names == ("c", "b", "a")
    assert found[Workload].forward_time == pytest.approx(1100e-6)
    assert found[Measurement].workers == 1


def test_a_host_that_runs_ahead_of_its_gpu():
    """Ready when the loop had waited, submitted when it had found it."""
    gradients = nouns(steady(ranks=2, waits=50))[Workload].gradients
    found = [1100e-6, 1258e-6, 1416e-6]  # a cycle of 100, 50 of waiting, and eight events of 1 us
    assert gradients.enqueue_times == pytest.approx(found)
    assert gradients.ready_times == pytest.approx([time + 55e-6 for time in found])
    assert nouns(steady(ranks=2))[Workload].layers[0].enqueue_time is None


@pytest.mark.parametrize("cycles", [True, False])
def test_a_gradient_is_ready_when_the_last_rank_has_it(cycles):
    """Each step then takes the measured time again; with the first rank's times it was 2.4 ms too short."""
    told = []
    found = nouns(steady(6, cycles=cycles, ranks=2, late=800), told)
    run, workload, cluster = (found[kind] for kind in (Measurement, Workload, Cluster))
    prediction = osf.predict(workload, cluster, workers=2, plan="horovod:0B,0s")
    assert prediction.iteration_time == pytest.approx(run.iteration_time, rel=0.05)
    (apart,) = [remark for remark in told if remark.startswith("ranks are apart")]
    later = 701 if cycles else 801  # the cycle before the last did not see it
    assert f"the last rank has its gradients {later}" in apart
    assert f"({later * 1e-6 / run.iteration_time:.0%} of a step)" in apart
    assert not any("put together again" in remark for remark in told)


def test_ranks_that_are_not_apart_are_not_warned_of():
    told = []
    nouns(steady(6, ranks=2), told)
    assert not any(remark.startswith(("ranks are apart", "put together again")) for remark in told)


def test_a_timeline_that_does_not_add_up_is_told_as_for_a_trace():
    """Each iteration of this one formed other groups than most did."""
    told = []
    nouns(samples.HOROVOD_FUSED, told)
    said = r"put together again, the step is off by \+\d+%: take predictions from it as rough"
    assert any(re.fullmatch(said, remark) for remark in told)


def test_iterations_of_other_tensors_are_left_out():
    """A metric twice between the third and the fourth of eight: neither of these is a sample, nor the steps to them."""
    told = []
    found = nouns(steady(8, extra=[(3, "metric"), (3, "metric")], ranks=2), told)
    assert len(found[Measurement].samples) == 3
    assert "iterations are incomplete or of other tensors" in told[-1]
    assert "metric" not in found[Workload].gradients.names


def test_without_marks_of_cycles_it_is_said_that_lateness_is_unknown():
    told = []
    found = nouns(steady(cycles=False, ranks=2), told)
    assert timeline(steady(cycles=False)).cycle_gap is None
    assert timeline(steady(cycles=False)).negotiation() == ()
    assert "HOROVOD_TIMELINE_MARK_CYCLES" in told[0]
    assert "HOROVOD_TIMELINE_MARK_CYCLES" in found[Workload].source.conditions


def test_a_failed_all_reduce_is_told_and_left_out():
    events = json.loads(samples.HOROVOD_UNFUSED)
    last = max(place for place, event in enumerate(events) if "shape" in str(event.get("args")))
    del events[last]["args"]
    told = []
    found = timeline(json.dumps(events), told.append)
    assert told == ["1 all-reduces ended without dtype and shape, as those that fail do, and are left out"]
    assert [len(groups) for groups in found.iterations] == [6, 6, 6, 6, 6, 5]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"ts": 31285, "pid": 2', '"ts": "late", "pid": 2', "event 22: has no time 'ts' in microseconds"),
        ('"ts": 31285, "pid": 2', '"ts": 31285, "pid": 99', "event 22: has pid 99, but no event names"),
        ('"ts": 31285, "pid": 2', '"ts": 31285, "pid": [2]', "event 22: names no tensor by 'pid'"),
        ('"ts": 31285, "pid": 2', '"ts" 31285, "pid": 2', r"event 22: is not a JSON object {\.\.\.}"),
        ('"shape": "[10]"', '"shape": "[10, x]"', r"has no dtype and shape such as '\[64, 3\]'"),
        ('"dtype": "float32"', '"dtype": "<unknown>"', "is not a dtype of Horovod: '<unknown>'"),
        ('"shape": "[10]"', '"shape": "[9999999999, 9999999999]"', "is too large to be the shape of a tensor"),
        ('"s": "g"}]', '"s": "g"}] junk', "comes after the end of the array: 'junk'"),
    ],
)
def test_a_bad_event_is_named(old, new, message):
    assert old in samples.HOROVOD_UNFUSED
    with pytest.raises(DataError, match=message):
        timeline(samples.HOROVOD_UNFUSED.replace(old, new))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[", "holds no all-reduce that ended"),
        ('[{"ph": "i", "name": "CYCLE_START", "ts": 5, "s": "g"}]', "holds no all-reduce that ended"),
        ("{}", "is not a JSON array of events"),
        ("[7]", "event 1: is not a JSON object"),
    ],
)
def test_what_holds_no_training_is_refused(content, message):
    with pytest.raises(DataError, match=message):
        timeline(content)


def test_too_few_iterations_are_refused():
    with pytest.raises(DataError, match="has 1 iterations of the same tensors, 1 of them to warm up: record 4 or more"):
        nouns(steady(1, ranks=2))


def test_the_autotune_log():
    found = files.autotune(Text("file.csv", samples.HOROVOD_AUTOTUNE))
    assert len(found.tried) == 16
    assert found.converged == found.best == found.tried[11]
    assert found.best.plan == "horovod:8MiB,10ms"
    assert found.best.score == pytest.approx(29.521e6)
    assert dict(found.best.switches)["cache_enabled"]
    assert not dict(found.tried[0].switches)["cache_enabled"]
    assert found.steps(steps_per_sample=2, warm_ups=1) == 17 * 5 * 2
    stopped = samples.HOROVOD_AUTOTUNE[: samples.HOROVOD_AUTOTUNE.rindex("0,0,0, 1,10")]
    assert files.autotune(Text("file.csv", stopped)) == replace(found, converged=None)


def test_an_older_log_and_fractions():
    """Fewer switches; a threshold of which six digits are written."""
    content = "cache_enabled,cycle_time_ms,tensor_fusion_threshold,score\n1,2.5,32,100\n1,17.3456,23.4567,7.5\n"
    found = files.autotune(Text("file.csv", content))
    assert [setting.plan for setting in found.tried] == ["horovod:32MiB,2.5ms", "horovod:24596132B,17.3456ms"]
    assert found.converged is None


def test_switches_of_the_tuner_in_the_names_of_plans(tmp_path):
    """One that names cannot say makes no plan; the message names it."""
    header = "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,"
    content = f"{header}cycle_time_ms,tensor_fusion_threshold,score\n1,1,0,0,1.2345678,32,100\n0,0,1,1,5,64,200\n"
    over_nodes, torus = files.autotune(Text("file.csv", content)).tried
    assert over_nodes.plan == "horovod:32MiB,1.2345678ms,cache=0,hierarchical"
    with pytest.raises(DataError, match="torus_allreduce is on, which the name of a plan cannot state"):
        assert torus.plan
    source = tmp_path / "autotune.csv"
    source.write_text(content)
    result = invoke(["import", str(source)])
    assert "the best so far is horovod:64MiB,5ms with torus_allreduce, cache_enabled" in result.stderr


def test_the_command(tmp_path):
    def run(*words):
        return invoke(["import", *map(str, words)])

    source, folder = tmp_path / "run.json", tmp_path / "read"
    source.write_text(samples.HOROVOD_FUSED)
    folder.mkdir()
    shown = run(source)
    assert [line.partition(" ")[0] for line in shown.stdout.splitlines()] == ["measurement:", "workload", "cluster"]
    refused = run(source, "-o", tmp_path / "one.json")
    assert refused.exit_code == 2
    assert "holds measurements, workload, cluster: choose with --kind, or give -o a folder" in refused.stderr
    assert run(source, "--kind", "workload", "-o", tmp_path / "one.json").exit_code == 0
    assert osf.load_workload(tmp_path / "one.json").name == "run"
    assert run(source, "--kind", "measurements", "-o", tmp_path / "runs.json").exit_code == 0
    assert osf.load_measurements(tmp_path / "runs.json")[0].workload == "unknown", "none is written beside it"
    assert run(source, "-o", folder).exit_code == 0
    assert sorted(path.name for path in folder.iterdir()) == [
        f"run-{kind}.json" for kind in ("cluster", "measurements", "workload")
    ]
    checked = invoke(["check", str(folder / "run-measurements.json"), "--format", "json"])
    assert checked.exit_code == 0, "the run names the two files beside it"
    assert run(source, "--fit", "hockney").stdout.startswith("cluster run: fits for 2 workers")
    layers = tmp_path / "layers.csv"
    layers.write_text(samples.LAYERS_CSV)
    refused = run(layers, "--kind", "cluster")
    assert (refused.exit_code, "holds none, only workload" in refused.stderr) == (1, True)


def test_the_tuner_is_told_not_imported(tmp_path):
    source = tmp_path / "autotune.csv"
    source.write_text(samples.HOROVOD_AUTOTUNE)
    result = invoke(["import", str(source)])
    assert result.exit_code == 1
    assert "converged to horovod:8MiB,10ms with cache_enabled (29.52 MB/s; 16 settings tried" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_several_timelines_become_the_tables_of_one_cluster(tmp_path):
    for ranks in (2, 4):
        (tmp_path / f"n{ranks}.json").write_text(steady(ranks=ranks))
    target = tmp_path / "wires.json"
    files = [str(tmp_path / f"n{ranks}.json") for ranks in (2, 4)]
    assert invoke(["import", *files, "-o", str(target)]).exit_code == 0
    cluster = osf.load_cluster(target)
    assert [table.workers for table in cluster.tables] == [2, 4]
    assert cluster.library == "mpi"
    assert cluster.effects == nouns(steady(ranks=4))[Cluster].effects
    assert cluster.effects.negotiation > 0


def test_where_a_timeline_is_given_for_a_workload(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(samples.HOROVOD_FUSED)
    with pytest.raises(ForeignFileError, match=f"{path}: ") as caught:
        osf.load_workload(path)
    assert re.search(
        r"looks like Horovod's timeline: run `osf import .* --kind workload -o", import_advice(caught.value)
    )


def test_groups_of_tensors_that_a_workload_lacks_are_not_predicted(small_workload):
    """A fuzzed timeline named a tensor in one iteration alone."""
    assert horovod_timeline._usual_groups(timeline(samples.HOROVOD_UNFUSED), small_workload) == []
