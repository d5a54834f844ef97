"""PyTorch's flight recorder: prices by closed forms, hung collectives, real dumps, and pickles that are not data."""

from __future__ import annotations

import gzip
import json
import pickle
import pickletools
import struct
from dataclasses import replace

import pytest

import osfmodel as osf
from osfmodel import DataError
from osfmodel.formats import IMPORT_FORMATS, Hints, format_of, import_file, import_job
from osfmodel.formats.collectives import flight_recorder
from osfmodel.formats.source_text import Files, Text
from osfmodel.formats.streams.pickles import OPERATIONS, plain_data
from tests.commands import invoke
from tests.formats import samples
from tests.formats.flight_dumps import Dumped, dump, pickled, text

JOB = Dumped()
HUNG = samples.DATA / "flight-gloo-hung.pkl"


def job_of(job, told=None, **hints):
    """The cluster from the dumps of all ranks, in memory."""
    texts = tuple(Text(f"rank{rank}.json", text(job, rank)) for rank in range(job.ranks))
    (cluster,) = flight_recorder.read_job(Files(texts, ([] if told is None else told).append), Hints("mine", **hints))
    return cluster


def changed(field, value, number=1):
    """A dump as JSON with one field of one collective changed."""
    document = json.loads(text(JOB))
    document["entries"][number][field] = value
    return json.dumps(document)


def refused(content):
    with pytest.raises(DataError) as caught:
        IMPORT_FORMATS["flight-recorder"].read(Text("dump.json", content), Hints("mine"))
    return str(caught.value)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize(("dtype", "width"), [("BFloat16", 2), ("Float", 4), ("Float8_e4m3fn", 1)])
def test_prices_are_those_of_the_job(kind, dtype, width):
    """The whole size: what an all-gather ends with, what a reduce-scatter begins with."""
    job = replace(JOB, kinds=(kind,), dtype=dtype, width=width)
    told: list[str] = []
    cluster = job_of(job, told, gpus_per_node=2)
    assert (cluster.library, cluster.gpus_per_node, cluster.nodes, told) == ("nccl", 2, 2, [])
    for elements in job.elements:
        whole = job.whole(kind, elements)
        assert osf.cost_of(cluster, 4, collective=kind)(whole) == pytest.approx(job.time(whole) * 1e-3)


def test_of_a_call_the_rank_that_waited_least_counts():
    late = replace(JOB, waits=7.0, repeats=8)
    assert job_of(late).tables[0].times == pytest.approx(job_of(JOB).tables[0].times)


def test_collectives_that_hang_are_counted_and_named():
    told: list[str] = []
    cluster = job_of(replace(JOB, hung=2), told)
    assert cluster.tables[0].sizes == job_of(JOB).tables[0].sizes
    assert told == [
        "8 collectives had not ended when dumped; the first: 'all_reduce' number 8 of group 'default_pg', started, in "
        "rank0.json"
    ]


def test_all_collectives_that_hang_are_counted_and_the_lowest_number_is_named():
    document = dump(JOB)
    entry = document["entries"][0] | {"state": "started", "retired": False}
    document["entries"] = [entry | {"collective_seq_id": number} for number in range(3000, 1500, -1)]
    told: list[str] = []
    hung = Text("dump.json", json.dumps(document), tell=told.append)
    with pytest.raises(DataError, match="has no times"):
        IMPORT_FORMATS["flight-recorder"].read(hung, Hints("mine"))
    assert [one.partition(" of group")[0] for one in told] == [
        "1500 collectives had not ended when dumped; the first: 'all_reduce' number 1501"
    ]


def test_real_dumps_of_a_gloo_job_that_hangs():
    """Gloo records no durations; the collective that another rank did not join is named, from pickle and JSON."""
    for path in (HUNG, HUNG.with_suffix(".json")):
        assert format_of(path) == "flight-recorder"
        result = invoke(["import", str(path)])
        assert result.exit_code == 1
        assert result.stderr.splitlines() == [
            f"osf: warning: {path.name}: 1 collective had not ended when dumped; the first: 'all_reduce' number 5 of "
            f"group 'default_pg', scheduled, in {path}",
            f"osf: {path}: has no durations of its 4 collectives: record with TORCH_NCCL_ENABLE_TIMING=1 (only NCCL "
            "has durations)",
        ]


def test_a_folder_of_pickles_as_pytorch_names_them(tmp_path):
    folder = tmp_path / "dumps"
    folder.mkdir()
    for rank in range(4):
        content = pickled(replace(JOB, waits=5.0, repeats=8), rank)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(gzip.compress(content) if rank == 3 else content)
    told: list[str] = []
    (cluster,) = import_file(folder, Hints("mine"), tell=told.append)
    assert cluster.tables[0].times == pytest.approx(job_of(JOB).tables[0].times)
    assert told == []
    first = folder / "nccl_trace_rank_0"
    import_job([first], Hints("mine"), told.append)
    assert told == [
        "nccl_trace_rank_0: only 1 of 4 ranks found, so times may include waiting for the others: give the files of "
        "all ranks"
    ]


def test_what_is_left_out_is_told():
    document = dump(JOB)
    first = document["entries"][0]
    document["entries"] += [
        first | {"is_p2p": True, "profiling_name": "nccl:send 0->1"},
        first | {"profiling_name": "nccl:all_reduce_barrier"},
        first | {"profiling_name": "nccl:broadcast"},
        first | {"input_dtypes": ["Long"]},
        {name: value for name, value in first.items() if name != "duration_ms"},
    ]
    told: list[str] = []
    content = json.dumps(document)
    IMPORT_FORMATS["flight-recorder"].read(Text("dump.json", content, tell=told.append), Hints("mine"))
    assert told == [
        "left out: 1 collective without a duration",
        "sends and receives are left out: 1",
        "left out (only all-reduce, all-gather and reduce-scatter of floating-point types are read): 1 'all_reduce of "
        "another type', 1 'all_reduce_barrier', 1 'broadcast'",
        "only 1 of 4 ranks found, so times may include waiting for the others: give the files of all ranks",
    ]


def test_ranks_that_the_dump_does_not_name_are_asked_for():
    document = json.loads(text(JOB))
    document["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[]"}}
    content = json.dumps(document)
    assert refused(content).endswith("does not say how many ranks group 'default_pg' has: give --workers N")
    (cluster,) = IMPORT_FORMATS["flight-recorder"].read(Text("dump.json", content), Hints("mine", workers=4))
    assert cluster.tables[0].times == job_of(JOB).tables[0].times


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("duration_ms", -1, "entry 1: has duration_ms -1, not a time"),
        ("duration_ms", [[[1]]], "entry 1: has duration_ms a list, not a time"),
        ("collective_seq_id", None, "entry 1: has collective_seq_id None, not a whole number of 0 or more"),
        ("input_sizes", [], "entry 1: has no input_sizes with input_dtypes"),
        ("input_sizes", [["a"]], "entry 1: has input_sizes a list, not the shape of a tensor"),
        ("process_group", "0", "entry 1: has no process_group with a name and a description"),
        ("profiling_name", 7, "entry 1: has no profiling_name"),
    ],
)
def test_damaged_entries_are_refused(field, value, message):
    assert refused(changed(field, value)) == message


def test_damaged_dumps_are_refused():
    assert "is not valid JSON" in refused(text(JOB)[:-40])
    assert refused('{"pg_config": {}, "pg_status": {}, "entries": 3}') == "entries is not a list"
    assert refused('{"pg_config": {}, "pg_status": {}, "entries": [3]}') == "entry 0: is not a dictionary"
    assert "has no times of all_reduce" in refused('{"pg_config": {}, "pg_status": {}, "entries": []}')


class Planted:
    """An object that a pickle makes by a call."""

    def __reduce__(self):
        return (print, ("the pickle ran code",))


def huge_memo():
    """A pickle of a few bytes whose index in the memo asks for 32 GiB."""
    return b"\x80\x02}X\x09\x00\x00\x00pg_config}r" + struct.pack("<I", 2**32 - 1) + b"s."


def deep_key():
    """A pickle whose key is a nest of tuples, the hash of which no stack has room for."""
    return b"\x80\x02}X\x09\x00\x00\x00pg_config}s)" + b"\x85" * 2**20 + b"K\x01s."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps({"pg_config": {}, "pg_status": Planted()}, 2), r"plain data \(__builtin__.print\), which is not"),
        (pickle.dumps({"pg_config": Planted()}, 4), r"more than plain data \(builtins.print\), which is not loaded"),
        (pickle.dumps({"pg_config": Dumped()}, 5), "more than plain data"),
        (huge_memo(), "has no times"),
        (deep_key(), "is a pickle that is cut off or damaged: TypeError"),
        (pickled(JOB)[:-30], "is a pickle that is cut off or damaged"),
        (b"\x80\x02\x95" + b"\xff" * 8 + b"pg_config", r"is a pickle that holds more than plain data \(PUT\)"),
        (pickle.dumps([{"pg_config": {}}], 2), "is not a dump of the flight recorder"),
    ],
)
def test_pickles_that_are_no_dump_are_refused_and_run_nothing(tmp_path, content, message, capsys):
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(content)
    assert format_of(path) == "flight-recorder"
    with pytest.raises(DataError, match=message):
        import_file(path, Hints("mine"))
    assert capsys.readouterr().out == ""


def test_plain_pickles_of_every_protocol_are_read():
    data = {"a": [1, -(2**70), 2.5, None, True, False, "ä" * 300], "b": ({}, (), (1, 2), (1, 2, 3), tuple(range(9)))}
    for protocol in range(2, 6):
        content = pickle.dumps(data, protocol)
        assert plain_data(content, 10**4, "more") == data
        assert plain_data(pickletools.optimize(content), 10**4, "more") == data


def test_a_pickle_of_too_many_objects_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(flight_recorder, "MOST_STEPS", 100)
    (tmp_path / "0.pkl").write_bytes(pickled(JOB))
    with pytest.raises(
        DataError, match="with more objects than a dump has: record with a smaller TORCH_FR_BUFFER_SIZE"
    ):
        import_file(tmp_path / "0.pkl", Hints("mine"))


def test_no_known_opcode_names_a_class_or_calls_anything():
    calling = {"GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "REDUCE", "BUILD", "EXT1", "PERSID"}
    known = {pickletools.code2op[chr(code)].name for code in OPERATIONS}
    assert not known & calling
    assert len(known) == len(OPERATIONS)
