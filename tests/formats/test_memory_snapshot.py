"""Memory snapshots of PyTorch: what the simulated allocator did is read back, and pickles of others are refused."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import re
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osfmodel import DataError
from osfmodel.diagnosis.snapshots import LIBRARY, explain_snapshot
from osfmodel.formats import memory_snapshot
from osfmodel.formats.memory_snapshot import SnapshotReader, load_snapshots
from osfmodel.formats.streams.pickles import plain_data
from tests.commands import invoke
from tests.draws import examples
from tests.formats.memory_snapshots import STACKS, Recorded, frames, pickled, snapshot, trained

MIB = 1 << 20


def explained(*recorded):
    """Explanations of the snapshots of simulated allocators, one GPU each."""
    data = plain_data(pickled(*recorded), 10**6, "too many")
    return [explain_snapshot(one) for one in SnapshotReader("a.pickle", data).read()]


def osf(*words):
    return invoke(["explain", *map(str, words)])


@pytest.fixture
def stored(tmp_path):
    path = tmp_path / "rank0.pickle"
    path.write_bytes(pickled(trained()))
    return path


@pytest.mark.parametrize("expandable", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_what_the_allocator_did_is_read_back(seed, expandable):
    """Sizes of two streams; only a large block of a segment that does not grow keeps what it does not need."""
    draw, one, live, peak = random.Random(seed), Recorded(expandable), [], 0
    for _ in range(300):
        if live and draw.random() < 0.45:
            one.give(live.pop(draw.randrange(len(live))), "other")
        else:
            live.append(one.take(draw.choice((700, 40_000, 3 * MIB + 5, 30 * MIB)), "other", draw.randrange(2)))
        peak = max(peak, one.allocator.reserved)
    (found,) = explained(one)
    allocator = one.allocator
    assert (found.allocated, found.reserved, found.peak_reserved) == (allocator.allocated, allocator.reserved, peak)
    assert found.peak == one.peak if expandable else one.peak - 300 * MIB < found.peak <= one.peak
    assert found.expandable is expandable
    assert sum(group.segments for group in found.groups) == len(found.segments) == len(one.segments())
    totals = [sum(part) for part in zip(*(group[3:9] for group in found.groups), strict=True)]
    reserved, allocated, pending, split, cached, rounding = totals
    assert reserved == allocated + pending + split + cached == found.reserved
    assert 0 < rounding < allocated
    assert sum(found.owners.values()) == sum(line.bytes for line in found.lines) == found.peak == max(found.levels)


def test_owners_of_the_peak_are_those_that_allocated():
    (found,) = explained(trained())
    size = 24 * MIB
    assert found.owners == {
        "optimizer state": 6 * size, "activations and scratch": 4 * size, "weights": 3 * size, "gradients": size,
        "other": MIB,
    }  # fmt: skip
    assert [(line.frame and line.frame.function, line.owner) for line in found.lines if line.owner != "other"] == [
        ("main", "optimizer state"), ("forward", "activations and scratch"), ("main", "weights"), (None, "gradients"),
    ]  # fmt: skip
    assert "the largest owner is optimizer state, 144.0 MiB (43%)" in found.verdict


@pytest.mark.parametrize("owner", STACKS)
def test_each_stack_has_its_owner(owner):
    """An optimizer's own scratch and a reduce-scatter's input are freed in the step."""
    one = Recorded()
    one.take(512, "weights")
    address = one.take(MIB, owner)
    if owner in ("update scratch", "reduce-scatter inputs"):
        one.give(address, owner)
    (found,) = explained(one)
    assert found.owners[owner] == MIB + 512 * (owner == "weights")


@pytest.mark.parametrize(
    ("words", "owner"),
    [
        (("torch/optim/adam.py:_multi_tensor_adam", "/a.py:main"), "optimizer state"),
        (("/repo/param_and_grad_buffer.py:__init__",), "buckets"),
        (("/a.py:backward", "torch/nn/modules/module.py:_call_impl"), "gradients"),
        (("torchinductor_me/x.py:call", "torch/_inductor/output_code.py:__call__"), "activations and scratch"),
        (("torch/nn/functional.py:cross_entropy", "torch/autograd/graph.py:run"), "activations and scratch"),
        (("torch/nn/modules/linear.py:__init__", "/a.py:forward"), "weights"),
        (("??:torch::autograd::Engine::thread_main()",), "gradients"),
    ],
)
def test_frames_of_other_kinds(monkeypatch, words, owner):
    monkeypatch.setitem(STACKS, "this", frames(*words))
    one = Recorded()
    one.take(MIB, "this")
    assert explained(one)[0].owners == {owner: MIB}


def test_frames_name_a_file_a_line_and_a_function():
    """A line that is no number counts as 0."""
    one, none = ({"filename": "/a.py", "line": line, "name": "forward"} for line in (7, "seven"))
    assert tuple(memory_snapshot._frame(one)) == ("/a.py", 7, "forward")
    assert tuple(memory_snapshot._frame(none)) == ("/a.py", 0, "forward")


def test_a_record_that_begins_late_is_read_backwards():
    """Events of the first step are lost: what was there before has no stack, unless it is there at the end."""
    whole, late = trained(), trained()
    late.events = late.events[40:]
    (found,), (cut,) = explained(whole), explained(late)
    assert (cut.allocated, cut.reserved, cut.peak, cut.peak_reserved) == (
        found.allocated, found.reserved, found.peak, found.peak_reserved,
    )  # fmt: skip
    assert cut.owners["optimizer state"] == found.owners["optimizer state"]
    bare = trained()
    bare.events = []
    (now,) = explained(bare)
    assert now.peak == now.allocated == sum(now.owners.values())
    assert "record them with torch.cuda.memory._record_memory_history" in now.notes[-1]


def test_memory_that_ran_out_in_pieces():
    one = Recorded()
    taken = [one.take(8 * MIB, "weights") for _ in range(8)]
    for address in taken[::2]:
        one.give(address, "weights")
    one.fail(30 * MIB, 5 * MIB)
    (found,) = explained(one)
    (failure,) = found.failures
    assert (failure.size, failure.device_free, failure.allocated) == (30 * MIB, 5 * MIB, 32 * MIB)
    assert "30.00 MiB were asked for, 5.000 MiB were free on the GPU" in found.verdict
    assert "expandable_segments:True" in found.notes[0]
    one = Recorded(expandable=True)
    one.fail(30 * MIB, 5 * MIB)
    assert not any("expandable_segments:True" in note for note in explained(one)[0].notes)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_the_command_reads_files_of_any_packing(tmp_path, pack, protocol):
    path = tmp_path / "rank0.pickle"
    path.write_bytes(pack(pickled(trained(), trained(True, 2), protocol=protocol)))
    found = json.loads(osf(path, "--json").stdout)["snapshots"]
    assert [one["device"] for one in found] == [0, 2]
    assert found[0]["peak_bytes"] == 337 * MIB
    table = osf(path, "--device", 2)
    assert "GPU 2, 78 events; at its moment 216.0 MiB allocated of 342.0 MiB reserved in 2 segments" in " ".join(
        table.stdout.split()
    )
    assert re.search(r"^optimizer state +144\.0 MiB$", table.stdout, re.MULTILINE)
    rows = osf(path, "-f", "csv").stdout.splitlines()
    assert f"{path},2,in all,{337 * MIB}," in rows


def test_what_is_expected_stands_beside_it(stored):
    words = ("--cluster", "ring:50us,10Gbps", "--workers", 16, "--plan", "ddp")
    found = json.loads(osf(stored, "--expected", "resnet50-memory", *words, "--json").stdout)
    memory = invoke(["memory", "resnet50-memory", *map(str, words), "--json"])
    (plan,) = json.loads(memory.stdout)["plans"]
    rows = {row["owner"]: row for row in found["snapshots"][0]["peak_owners"]}
    assert {name: rows[name]["expected_bytes"] for name, size in plan["peak_owners"].items() if size} == {
        name: size for name, size in plan["peak_owners"].items() if size
    }
    assert rows["in all"]["expected_bytes"] == plan["peak_bytes"]
    assert rows["weights"]["peak_bytes"] == 72 * MIB
    assert found["expected"] == "resnet50-memory, ddp"
    alone = osf(stored, "--expected", "resnet50-memory")
    assert "expected is the peak of resnet50-memory, a single worker" in alone.stdout


class Planted:
    """An object that a pickle makes by a call."""

    def __reduce__(self):
        import os

        return (os.system, ("touch ran-code",))


def nested_state():
    """A snapshot whose block has a nest of lists for a state, which cannot be written as text."""
    block = {"segments": [{"total_size": 3, "address": 4, "blocks": [{"size": 3, "state": "NEST"}]}]}
    return pickle.dumps(block, 2).replace(b"X\x04\x00\x00\x00NEST", b"]" * 10**5 + b"a" * (10**5 - 1))


WHOLE = pickled(trained())
BROKEN = {
    "holds more than plain data (posix.system), which is not loaded": pickle.dumps(Planted()),
    "holds more than plain data (nt.system)": b"\x80\x02cnt\nsystem\nX\x01\x00\x00\x00a\x85R.",
    "holds more than plain data (REDUCE)": b"\x80\x04]\x94)R.",
    "cut off or damaged": WHOLE[: len(WHOLE) // 2],
    "cut off or damaged: TypeError": b"\x80\x04})" + b"\x85" * 10**6 + b"Ns.",
    "not of torch.cuda.memory._snapshot(): write one with": pickle.dumps({"model": 1, "optimizer": 2}),
    "is a pickle of a int": pickle.dumps(3),
    "has no list of blocks": pickle.dumps({"segments": [{"total_size": 3, "address": 4}], "device_traces": []}),
    "total_size is '-3'": pickle.dumps({"segments": [{"total_size": -3, "address": 4}], "device_traces": []}),
    "segment 0: is not a dictionary": pickle.dumps({"segments": [7], "device_traces": [], "x": "total_size"}),
    "the state is 'odd'": pickle.dumps(
        {"segments": [{"total_size": 3, "address": 4, "blocks": [{"size": 3, "state": "odd"}]}]}
    ),
    "the state is ''": nested_state(),
    "has no memory; GPUs with memory: none": pickle.dumps({"segments": [], "device_traces": [[]]}),
    "unpacks to more than 200 times its size": gzip.compress(pickle.dumps([])) + gzip.compress(bytes(2**24), 1) * 2**5,
}


@pytest.mark.parametrize("said", BROKEN)
def test_other_pickles_are_refused_in_a_line_and_run_nothing(tmp_path, monkeypatch, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.pickle").write_bytes(BROKEN[said])
    result = osf("broken.pickle")
    assert (result.exit_code, result.stdout) == (1, "")
    assert said in result.stderr
    assert "broken.pickle" in result.stderr
    assert result.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["broken.pickle"]


def test_the_planted_pickle_would_run_code(tmp_path):
    """Oracle shown failing: Python's own unpickler runs it."""
    code = f"import pickle; pickle.loads({pickle.dumps(Planted())!r})"
    subprocess.run(["python", "-c", code], cwd=tmp_path, check=True)
    assert (tmp_path / "ran-code").exists()


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("LARGEST_SNAPSHOT", "is larger than"),
        ("MOST_STEPS", "more objects than a snapshot has"),
        ("MOST_OBJECTS", "blocks and"),
    ],
)
def test_sizes_are_limited(stored, monkeypatch, limit, said):
    """A block or an event that is listed many times counts as often."""
    monkeypatch.setattr(memory_snapshot, limit, 50)
    with pytest.raises(DataError, match=f"{said}.*max_entries=100000"):
        list(load_snapshots([stored]))


@settings(max_examples=examples(18))
@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=4), st.randoms())
def test_damaged_pickles_are_read_or_refused(changes, draw):
    content = bytearray(WHOLE)
    for place, value in changes:
        content[place] = value
    try:
        data = plain_data(bytes(content), 10**6, "too many")
        for one in SnapshotReader("a.pickle", data).read():
            found = explain_snapshot(one)
            assert sum(found.owners.values()) == found.peak
    except DataError:
        return


def test_an_event_of_any_kind_in_any_place_is_read():
    """Fields that older releases and other recorders lack."""
    data = snapshot(trained())
    for segment in data["segments"]:
        for field in ("is_expandable", "segment_type", "stream", "device"):
            del segment[field]
        for block in segment["blocks"]:
            del block["address"], block["requested_size"]
    data["device_traces"][0] = [{"action": "snapshot", "size": 0, "addr": 0, "frames": None}]
    del data["allocator_settings"]
    for shape in (data, data["segments"]):
        (found,) = SnapshotReader("a.pickle", shape).read()
        assert explain_snapshot(found).peak == 216 * MIB


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--steps", "3"], 2, "--steps: a memory snapshot has no steps: leave it out"),
        (["--cluster", "ring:50us,10Gbps"], 2, "give --expected"),
        (["--workers", "4"], 2, "give --expected WORKLOAD"),
        (["--expected", "resnet50-memory", "--workers", "4"], 2, "--cluster, --workers and --plan together"),
        (["--expected", "resnet50-v100"], 1, "does not say what its layers keep in memory"),
        (["--device", "3"], 1, "has no memory of GPU 3; GPUs with memory: 0"),
        (["-o", "page.html"], 2, "is written as text, .json, .yaml or .csv"),
    ],
)
def test_options_that_do_not_go_together(stored, words, code, said):
    result = osf(stored, *words)
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr


def test_a_trace_among_snapshots_is_refused(stored, tmp_path):
    (tmp_path / "rank1.json").write_text('{"traceEvents": []}')
    result = osf(stored, tmp_path / "rank1.json")
    assert result.exit_code == 1
    assert "rank1.json: is not a memory snapshot of PyTorch" in result.stderr


def test_options_of_snapshots_are_refused_for_traces(tmp_path):
    (tmp_path / "rank0.json").write_text('{"traceEvents": []}')
    result = osf(tmp_path / "rank0.json", "--device", 0, "--plan", "ddp")
    assert result.exit_code == 2
    assert "--device and --plan: these are traces: leave them out" in result.stderr


def test_import_says_which_command_reads_it(stored):
    result = invoke(["import", str(stored)])
    assert result.exit_code == 1
    assert "holds no workload: osf explain reads it" in result.stderr


@pytest.mark.parametrize(
    ("file", "library"),
    [("/job/train.py", False), ("/home/torch/train.py", False), ("/opt/pytorch/torch/nn/modules/linear.py", True),
     ("<string>", True), ("/usr/lib/python3.12/contextlib.py", True), ("CUDACachingAllocator.cpp", True), ("??", True)],
)  # fmt: skip
def test_files_of_users_are_told_from_libraries(file, library):
    assert bool(LIBRARY.search(file)) is library
