"""Trace files: every shape they come in, what is kept of them, and files that were made to do harm."""

from __future__ import annotations

import gc
import gzip
import io
import json
import random
import re
import subprocess
import sys
import tarfile
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from osfmodel import explain
from osfmodel.entities.errors import DataError, ForeignFileError, OsfError
from osfmodel.entities.files.profiles import load_workload
from osfmodel.entities.trace import RankTrace, Step, Trace
from osfmodel.formats import (
    IMPORT_FORMATS,
    Hints,
    holds_traces,
    import_content,
    import_file,
    kineto,
    load_trace,
    of_traces,
)
from osfmodel.formats import streams as trace_files
from osfmodel.formats.kineto import recorded
from osfmodel.formats.kineto.events import COUNTS, SPELLINGS, Args, is_trace, read_events
from osfmodel.formats.reading import import_advice
from osfmodel.formats.source_text import Text
from osfmodel.formats.streams import json_stream
from osfmodel.formats.streams.archives import streamed
from tests.commands import invoke
from tests.draws import examples
from tests.formats import samples, traces
from tests.formats.damage import memory

NCCL = {
    "External id": 12346, "device": 0, "stream": 40, "correlation": 57465, "Collective name": "allreduce",
    "In msg nelems": 6563840, "Out msg nelems": 6563840, "Group size": 2, "dtype": "Float", "In split size": "[]",
    "Process Group Name": "0", "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]",
    "registers per thread": 96, "est. achieved occupancy %": 0,
}  # fmt: skip
EVENTS = [
    {"name": "process_name", "ph": "M", "ts": 4458676980000.0, "pid": 0, "tid": 0, "args": {"name": "python"}},
    {"ph": "X", "cat": "cpu_op", "name": "aten::conv", "pid": 7, "tid": 8, "ts": 100.5, "dur": 2.25,
     "args": {"External id": 1, "Input Dims": [[2, 3], [], [[1, 2], [3]]], "Input type": ["float", "", "TensorList"],
              "Call stack": 'a }, { "ph": "X" ] b \\" \u00e9'}},
    {"ph": "s", "id": 57465, "pid": 7, "tid": 8, "ts": 101, "cat": "ac2g", "name": "ac2g"},
    {"ph": "X", "cat": "kernel", "name": "ncclKernel_AllReduce<f32>", "pid": 0, "tid": "stream 40", "ts": 110,
     "dur": 50, "args": NCCL},
    {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 300},
]  # fmt: skip
HEADER = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "NVIDIA A100"}, {"id": 1, "name": "NVIDIA A100"}],
    "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2, "nccl_version": "2.17.1"},
}
FOOTER = {"traceName": "/data/x.json", "displayTimeUnit": "ms", "baseTimeNanoseconds": 1711964646000000000}


def trace(events=EVENTS, header=HEADER, footer=FOOTER, indent=None):
    return json.dumps({**header, "traceEvents": list(events), **footer}, indent=indent)


def rank(number, events=EVENTS):
    return trace(events, {**HEADER, "distributedInfo": {"backend": "nccl", "rank": number, "world_size": 2}})


def read(content, keep=None):
    """(header, events) of a trace in memory."""
    text = content if isinstance(content, str) else content.decode("utf-8", "surrogateescape")
    (found,) = read_events([Text("trace.json", text)], keep)
    events = list(found.events)
    return found.header, events


def on_disk(*paths, **more):
    """[(path, header, events)] of what lies there."""
    return [(one.path, one.header, list(one.events)) for one in read_events(paths, **more)]


def fault(content):
    with pytest.raises(DataError) as found:
        read(content)
    return checked(found.value)


def disk_fault(path):
    with pytest.raises(DataError, match=re.escape(str(path))) as found:
        on_disk(path)
    return checked(found.value)


def checked(error):
    message = str(error)
    assert "\n" not in message
    assert len(message) < 500
    return message


def tar(entries, mode="w", form=tarfile.PAX_FORMAT):
    """An archive of (name, content) or TarInfo."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, format=form) as archive:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                archive.addfile(entry)
            else:
                info = tarfile.TarInfo(entry[0])
                info.size = len(entry[1])
                archive.addfile(info, io.BytesIO(entry[1]))
    return buffer.getvalue()


# 1. What is read


@pytest.mark.parametrize("indent", [None, 0, 2])
def test_events_as_written(indent):
    header, events = read(trace(indent=indent))
    assert header == {**HEADER, **FOOTER}
    assert [event.name for event in events] == [event["name"] for event in EVENTS]
    process, convolution, _, kernel, end = events
    assert (process.ph, process.cat, process.args.name) == ("M", "", "python")
    assert (convolution.ts, convolution.dur, convolution.pid, convolution.tid) == (100.5, 2.25, "7", "8")
    assert convolution.args.input_dims == [[2, 3], [], [[1, 2], [3]]]
    assert (kernel.tid, kernel.ts, kernel.dur) == ("stream 40", 110.0, 50.0)
    args = kernel.args
    assert (args.collective, args.in_elements, args.group_size, args.dtype) == ("allreduce", 6563840, 2, "Float")
    assert (args.external_id, args.correlation, args.stream, args.group_name) == (12346, 57465, 40, "0")
    assert (end.dur, end.args, events[2].id) == (0.0, Args(), "57465")


def test_every_arg_is_read_from_its_spelling():
    for name, spelling in SPELLINGS.items():
        _, (event,) = read(trace([{**EVENTS[1], "args": {spelling: "7" if name == "name" else 7}}]))
        assert str(getattr(event.args, name)) == "7", spelling


def test_events_that_are_not_wanted_are_dropped_and_asked_for_once():
    asked = []

    def keep(cat, name):
        asked.append((cat, name))
        return cat == "kernel"

    _, events = read(trace(EVENTS * 50), keep)
    assert [event.cat for event in events] == ["kernel"] * 50
    assert len(asked) == len(set(asked)) == len(EVENTS)
    assert len({id(event.name) for event in events}) == 1, "names are held once"


def test_dropped_events_may_be_wrong():
    wrong = {"ph": "X", "cat": "cpu_op", "name": "x", "ts": "never", "dur": -1, "args": {"Group size": "many"}}
    _, events = read(trace([wrong, EVENTS[3]]), lambda cat, name: cat == "kernel")
    assert [event.name for event in events] == ["ncclKernel_AllReduce<f32>"]


def slowly(content):
    """Value by value, whatever it is."""
    stream = pytest.MonkeyPatch()
    with stream.context() as patch:
        patch.setattr("osfmodel.formats.kineto.events._decoded", lambda content: None)
        return read(content)


@pytest.mark.parametrize("size", [1, 7, 64, 1000, 2**18])
def test_the_fast_and_the_slow_way_agree_wherever_chunks_end(monkeypatch, size):
    content = trace(EVENTS * 40)
    expected = read(content)
    assert len(expected[1]) == 200
    assert slowly(content) == expected
    monkeypatch.setattr(json_stream, "CHUNK", max(size, 16))
    pieces = [content.encode()[start : start + size] for start in range(0, len(content.encode()), size)]
    monkeypatch.setattr(
        "osfmodel.formats.kineto.events.opened", lambda files, known, endings, what: [("x", iter(pieces))]
    )
    assert read(content) == expected
    assert slowly(content) == expected


def test_the_fast_way_is_taken(monkeypatch):
    """All chunks of an ordinary trace but the last take the fast path.

    Without it the figures of benchmarks/trace_import.py do not hold.
    """
    monkeypatch.setattr(json_stream, "CHUNK", 4096)
    slow = []
    whole = json_stream.ArrayStream._slow
    monkeypatch.setattr(
        json_stream.ArrayStream, "_slow", lambda self, number: slow.append(number) or whole(self, number)
    )
    count = len(read(trace(EVENTS * 200))[1])
    assert count == 1000
    assert len(slow) <= 2
    assert slow[0] > 950


@pytest.mark.parametrize("running", [True, False])
def test_the_collector_runs_as_before(running):
    was = gc.isenabled()
    try:
        (gc.enable if running else gc.disable)()
        read(trace())
        assert gc.isenabled() is running
        fault('{"traceEvents": [{"ph": }')
        assert gc.isenabled() is running
    finally:
        (gc.enable if was else gc.disable)()


def test_an_empty_list_of_events():
    assert read(trace([])) == ({**HEADER, **FOOTER}, [])
    assert read('\ufeff {"traceEvents" :[ ] }') == ({}, [])


# 2. What vendors write


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"ts": "110.5"}, {"ts": 110.5}),
        ({"ts": 110, "dur": "3"}, {"dur": 3.0}),
        ({"dur": None}, {"dur": 0.0}),
        ({"pid": 1.0, "tid": None}, {"pid": "1.0", "tid": ""}),
        ({"cat": None}, {"cat": ""}),
        ({"ts": 10**30 % 2**61}, {"ts": float(10**30 % 2**61)}),
    ],
)
def test_times_and_names_of_other_types(change, expected):
    _, (event,) = read(trace([{**EVENTS[3], **change}]))
    assert {name: getattr(event, name) for name in expected} == expected


def test_args_of_other_types_are_read_or_left_out():
    args = {
        "stream": "7", "correlation": 8.0, "External id": "x", "Group size": "4", "In msg nelems": 5.0,
        "Process Group Name": 3, "Collective name": [0, 1], "dtype": {}, "Seq": None,
    }  # fmt: skip
    _, (event,) = read(trace([{**EVENTS[3], "args": args}]))
    found = event.args
    assert (found.stream, found.correlation, found.external_id) == (7, 8, None)
    assert (found.group_size, found.in_elements, found.group_name, found.collective) == (4, 5, "3", "[0, 1]")
    assert (found.dtype, found.seq) == (None, None)
    for other in (None, [], "text", 3):
        assert read(trace([{**EVENTS[3], "args": other}]))[1][0].args == Args()


@pytest.mark.parametrize("number", ["1e999", "9" * 400 + ".5"])
def test_numbers_that_no_float_holds_are_left_out(number):
    content = trace([{**EVENTS[3], "args": {"stream": 777, "correlation": 8}}] * 4)
    _, events = read(content.replace("777", number))
    assert [(event.args.stream, event.args.correlation) for event in events] == [(None, 8)] * 4
    assert "holds a number with too many digits" in fault(content.replace("777", "9" * 5000))


@pytest.mark.parametrize("count", [1, 4])
def test_the_older_spelling_of_external_id(count):
    """A lone event is decoded by another way than those of a long file."""
    events = read(trace([{**EVENTS[3], "args": {"external id": 9}}] * count))[1]
    assert [event.args.external_id for event in events] == [9] * count


def test_missing_values_and_words_for_no_number_are_null():
    content = trace().replace('"default_pg"', "").replace('%": 0', '%": nan').replace('"dur": 2.25', '"dur": NaN')
    assert '"Process Group Description": ,' in content
    _, events = read(content.replace('"stream": 40', '"stream": -inf').replace('"device": 0', '"device": Infinity'))
    kernel = events[3]
    assert (kernel.args.stream, kernel.args.correlation) == (None, 57465)
    assert kernel.args.in_elements == 6563840
    assert events[1].args.input_dims == [[2, 3], [], [[1, 2], [3]]]
    assert read('{"distributedInfo": {"a": , "b": 1}, "traceEvents": [], "x": }')[0] == {
        "distributedInfo": {"a": None, "b": 1}, "x": None,
    }  # fmt: skip


def test_what_only_looks_like_a_missing_value_stays():
    odd = {**EVENTS[1], "name": 'a: , b: nan, "c": inf}'}
    _, events = read(trace([odd]).replace('"dur": 2.25', '"dur": '))
    assert (events[0].name, events[0].dur) == (odd["name"], 0.0)


# 3. What is wrong in a trace


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ts": None}, "event 2: 'x' has no time 'ts'"),
        ({"ts": "soon"}, "event 2: 'x' has no time 'ts'"),
        ({"ts": [1]}, "event 2: 'x' has no time 'ts'"),
        ({"ts": 1e300}, "event 2: 'x' has no time 'ts'"),
        ({"ts": float("nan")}, "event 2: 'x' has no time 'ts'"),
        ({"ts": float("inf")}, "event 2: 'x' has no time 'ts'"),
        ({"ts": 10**400}, "event 2: 'x' has no time 'ts'"),
        ({"dur": -1}, "event 2: 'x' takes -1"),
        ({"dur": "long"}, "event 2: 'x' takes nan"),
        ({"dur": 1e300}, "event 2: 'x' takes 1e+300"),
        *(({"args": {SPELLINGS[name]: value}}, f"event 2: 'x': {SPELLINGS[name]!r} is")
          for name in COUNTS for value in (-1, "many", [3], 1.5)),
    ],
)  # fmt: skip
def test_wrong_values_that_matter(change, message):
    content = trace([EVENTS[0], {**EVENTS[3], "name": "x", **change}, EVENTS[4]])
    assert f"trace.json: {message}" in fault(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("[]", "is not a JSON object"),
        ("7", "is not a JSON object"),
        ("{}", "has no list 'traceEvents'"),
        ('{"traceEvents": 7}', "has no list 'traceEvents'"),
        ('{"traceEvents": {}}', "has no list 'traceEvents'"),
        ('{"traceEvents": [], "traceEvents": []}', "has 'traceEvents' twice"),
        ('{"traceEvents": []} x', "has something behind the end"),
        ('{"traceEvents": [] "x": 1}', "followed by '\"x\": 1}'"),
        ('{"traceEvents": [{"ph": "X"} {"ph": "X"}]}', "event 1: is followed by"),
        ('{"traceEvents": [7]}', "event 1: is 7, not an object"),
        ('{"traceEvents": [{"ph": "M"}, null]}', "event 2: is None, not an object"),
        ('{"traceEvents": [{"ph": "M"}, {"ph": "M" "a"}]}', "event 2: is not JSON"),
        ('{"traceEvents": [{"ph": "M"}, {"ph": 1' + "0" * 5000 + "}]}", "event 2: holds a number with too many digits"),
        ('{3: 4, "traceEvents": []}', "is not a name with a value"),
        ('{"a" 4, "traceEvents": []}', "is not a name with a value"),
    ],
)
def test_files_that_are_no_traces_are_refused(content, message):
    assert message in fault(content)


def test_a_trace_that_was_cut_off_is_never_taken_for_whole():
    content = trace(EVENTS * 2)
    for length in range(2, len(content)):
        message = fault(content[:length])
        assert "cut off" in message, (content[max(0, length - 40) : length], message)


def test_cut_off_in_a_later_chunk_names_the_event(monkeypatch):
    monkeypatch.setattr(json_stream, "CHUNK", 2048)
    assert "was cut off in event 499" in fault(trace(EVENTS * 100).partition('"traceName"')[0][:-500])


@pytest.mark.parametrize("depth", [10, 200, 100_000])
def test_nesting(depth):
    deep = "[" * depth + "]" * depth
    for content in (
        trace([EVENTS[1], EVENTS[2]]).replace('"ac2g"', f'"ac2g", "odd": {deep}', 1),
        trace([EVENTS[1]]).replace('"External id": 1', f'"odd": {deep}, "Input Strides": {deep}'),
        trace([EVENTS[1]]).replace("[[2, 3], [], [[1, 2], [3]]]", deep),
        trace([EVENTS[1]]).replace('"nccl"', deep),
        trace([EVENTS[1]]).replace('"/data/x.json"', deep),
    ):
        assert deep in content
        if depth < 1000:
            assert read(content)[1]
        else:
            assert "is nested too deeply" in fault(content)


def test_unfinished_nesting():
    for start in ("[", '{"a":', '{"traceEvents": [', '{"traceEvents": [{"args": {"a": '):
        assert fault(start + '{"a":' * 100_000)
        assert fault(start + "[" * 100_000)


@pytest.mark.parametrize("text", ["aten::conv", "NVIDIA", "default_pg", '"allreduce', '"Float', '"float', '"python'])
def test_bytes_that_are_no_utf_8_spoil_their_own_text_alone(tmp_path, text):
    """Of names, args and the header; times and counts are those of the file without them."""
    path = tmp_path / "latin.json"
    content, spoilt = trace(EVENTS).encode(), text.encode() + b"\xff\xe9"
    path.write_bytes(content.replace(text.encode(), spoilt))
    assert path.read_bytes() != content
    ((_, header, events),) = on_disk(path)
    clean_header, clean_events = read(content)
    assert repr((header, events)).replace("\ufffd", "") == repr((clean_header, clean_events))


def test_another_encoding_is_no_trace(tmp_path):
    path = tmp_path / "wide.json"
    path.write_bytes(trace(EVENTS).encode("utf-16"))
    assert "is not a JSON object" in disk_fault(path)
    _, events = read(trace(EVENTS).replace("aten::conv", "aten::\\ud800"))
    assert events[1].name == "aten::?"


def test_characters_of_several_bytes_at_the_ends_of_pieces(monkeypatch):
    content = trace([{**event, "name": "é\u20ac\U0001f600"} for event in EVENTS]).encode()
    content = json.dumps(json.loads(content), ensure_ascii=False).encode()
    for size in (1, 2, 3, 5):
        pieces = [content[start : start + size] for start in range(0, len(content), size)]
        monkeypatch.setattr(
            "osfmodel.formats.kineto.events.opened", lambda files, known, endings, what, p=pieces: [("x", iter(p))]
        )
        assert {event.name for event in read("")[1]} == {"é\u20ac\U0001f600"}


def test_an_event_or_a_header_longer_than_any():
    long = " " * (json_stream.LONGEST + json_stream.CHUNK)
    assert "event 1: is longer than 4 MiB" in fault('{"traceEvents": [{"a": "' + long + '"}]}')
    assert "event 1: is longer than 4 MiB" in fault('{"traceEvents": [{"a": "' + long)
    assert "event 1: is longer than 4 MiB" in fault('{"traceEvents": [{"a": 1,' + long + "}]}")
    assert "'a': is longer than 4 MiB" in fault('{"a": "' + long + '", "traceEvents": []}')
    many = ",".join(f'"a{number}": "{" " * 2**20}"' for number in range(10))
    assert "has more than 8 MiB beside 'traceEvents'" in fault("{" + many + ', "traceEvents": []}')
    assert read('{"traceEvents": [' + long * 2 + "]}") == ({}, []), "space alone is let go"


# 4. Where they lie


def test_files_packed_and_not(tmp_path):
    expected = read(trace())
    for name, content in (("a.json", trace().encode()), ("a.json.gz", gzip.compress(trace().encode()))):
        path = tmp_path / name
        path.write_bytes(content)
        assert on_disk(path) == [(str(path), *expected)]
    path.write_bytes(gzip.compress(trace().encode()[:100]) + gzip.compress(trace().encode()[100:]) + b"\0" * 600)
    assert on_disk(path) == [(str(path), *expected)]


FOLDER = tarfile.TarInfo("ranks")
FOLDER.type = tarfile.DIRTYPE


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_archives(tmp_path, mode, form):
    long = "d" * 90 + "/" + "e" * 80 + "/"
    packed = gzip.compress(rank(1).encode())
    entries = [FOLDER, (f"{long}rank0.json", rank(0).encode()), ("ranks/notes.txt", b"no trace"), ("é.json.gz", packed)]
    path = tmp_path / "job.tgz"
    path.write_bytes(tar(entries, mode, form))
    told = []
    found = on_disk(path, tell=told.append)
    assert [name for name, _, _ in found] == [f"{path}:{long}rank0.json", f"{path}:é.json.gz"]
    assert [header["distributedInfo"]["rank"] for _, header, _ in found] == [0, 1]
    assert [len(events) for _, _, events in found] == [5, 5]
    assert told == [f"{path}:ranks/notes.txt: left out: it is not a trace of torch.profiler"]


def test_archives_where_a_trace_is_not_read_to_its_end(tmp_path):
    path = tmp_path / "job.tar"
    path.write_bytes(tar([(f"{number}.json", rank(number, EVENTS * 2000).encode()) for number in range(3)]))
    firsts = [(next(one.events).name, one.header["distributedInfo"]["rank"]) for one in read_events([path])]
    assert firsts == [("process_name", 0), ("process_name", 1), ("process_name", 2)]


def test_folders(tmp_path):
    (tmp_path / "b.json").write_text(rank(1))
    (tmp_path / "a.pt.trace.json.gz").write_bytes(gzip.compress(rank(0).encode()))
    (tmp_path / "layers.json").write_text(samples.LAYERS_JSON)
    (tmp_path / "notes.txt").write_text(rank(7))
    (tmp_path / "inner").mkdir()
    told = []
    found = on_disk(tmp_path, tell=told.append)
    assert [header["distributedInfo"]["rank"] for _, header, _ in found] == [0, 1]
    assert told == [f"{tmp_path / 'layers.json'}: left out: it is not a trace of torch.profiler"]
    assert "is a folder without a file of a known format" in disk_fault(tmp_path / "inner")
    assert "cannot be read: No such file" in disk_fault(tmp_path / "none.json")


def test_several_files_and_progress(tmp_path):
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for number, path in enumerate(paths):
        path.write_text(rank(number, EVENTS * 500))
    heard = []
    found = on_disk(*paths, progress=lambda done, total: heard.append((done, total)))
    assert [header["distributedInfo"]["rank"] for _, header, _ in found] == [0, 1]
    total = sum(path.stat().st_size for path in paths)
    assert heard == sorted(heard)
    assert {whole for _, whole in heard} == {total}
    assert heard[-1] == (total, total)
    assert heard[0][0] <= 2**16


# 5. Files that were made to do harm


def link(name, kind=tarfile.SYMTYPE, target="/etc/passwd"):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_entries_of_archives_that_are_left_out(tmp_path):
    path = tmp_path / "job.tar"
    kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)
    entries = [link(f"{number}.json", kind) for number, kind in enumerate(kinds)]
    content = rank(0).encode()
    entries += [(name, content) for name in ("../up.json", "a/../../up.json", "/etc/cron.json", "fine.json")]
    path.write_bytes(tar(entries))
    told = []
    assert [name for name, _, _ in on_disk(path, tell=told.append)] == [f"{path}:fine.json"]
    assert len(told) == 6
    assert told[0] == f"{path}: 0.json: left out: it is a symbolic link"
    assert told[5] == "and 3 more are left out"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["job.tar"]


def test_names_that_lead_out_of_an_archive_are_left_out(tmp_path):
    path = tmp_path / "job.tar"
    names = ("../up.json", "a/../../up.json", "/etc/cron.json", "fine.json")
    path.write_bytes(tar([(name, rank(0).encode()) for name in names]))
    told = []
    assert [name for name, _, _ in on_disk(path, tell=told.append)] == [f"{path}:fine.json"]
    assert len(told) == 3
    assert told[0] == f"{path}: ../up.json: left out: its name leads out of the archive"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["job.tar"]


@pytest.mark.parametrize("names", [["/data/job/rank0.json"], ["/data/job/rank0.json", "../rank1.json"]])
def test_an_archive_of_nothing_but_such_names_says_how_to_pack_it(tmp_path, names):
    path = tmp_path / "job.tar"
    path.write_bytes(tar([(name, rank(0).encode()) for name in names]))
    with pytest.raises(
        DataError, match=r"job\.tar: is a tar archive of files whose names lead out of it .*: pack them"
    ):
        list(on_disk(path))
    result = invoke(["explain", str(path)])
    assert result.exit_code == 1
    assert "tar -C FOLDER" in result.stderr


def test_names_of_archives_hold_no_codes_for_terminals(tmp_path):
    path = tmp_path / "job.tar"
    path.write_bytes(tar([("a\x1b[31m\n<b>.json", rank(0).encode())]))
    ((name, _, _),) = on_disk(path)
    assert name == f"{path}:a\\x1b[31m\\n<b>.json"


def damaged_tar(change, form=tarfile.PAX_FORMAT, name="a.json"):
    content = bytearray(tar([(name, rank(0).encode())], form=form))
    change(content)
    return bytes(content)


END = 512 + -(-len(rank(0)) // 512) * 512
"""Place of the end mark in an archive of one trace."""


def with_header(content, place, value):
    """``value`` written into the first header, and its checksum set right."""
    content[place : place + len(value)] = value
    content[148:156] = b" " * 8
    content[148:156] = b"%06o\0 " % sum(content[:512])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tar([("a.json", b"{}"), ("a.json", b"{}")]), "holds a.json twice"),
        (tar([]), "is not a JSON object"),
        (tar([FOLDER]), "is a tar archive without a trace of torch.profiler"),
        (tar([("a.txt", b"x")]), "is a tar archive without a trace of torch.profiler"),
        (tar([("a.json", rank(0).encode())])[:1000], "is a tar archive that was cut off in a.json"),
        (tar([("a.json", rank(0).encode())])[:END], "was cut off: its end mark is missing"),
        (damaged_tar(lambda c: c.__setitem__(slice(END, END + 4), b"junk")), "a header has a wrong checksum"),
        (damaged_tar(lambda c: with_header(c, 124, b"-0000000001\0")), "size of a file is not a number"),
        (damaged_tar(lambda c: with_header(c, 124, b"\x80" + b"\xff" * 11)), "cut off"),
        (damaged_tar(lambda c: with_header(c, 156, b"S")), "is a tar archive without a trace of torch.profiler"),
        (damaged_tar(lambda c: with_header(c, 156, b"x")), "is not a number"),
        *((damaged_tar(lambda c, k=kind: (with_header(c, 156, k), with_header(c, 124, b"77777777777\0"))),
           "a header of 8,589") for kind in (b"x", b"g", b"L", b"K")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("packed", [False, True])
def test_damaged_archives(tmp_path, content, message, packed):
    path = tmp_path / "job.tar"
    path.write_bytes(gzip.compress(content) if packed else content)
    assert message in disk_fault(path)


def test_archives_of_very_many_entries(tmp_path, monkeypatch):
    monkeypatch.setattr("osfmodel.formats.streams.archives.MOST_ENTRIES", 50)
    path = tmp_path / "job.tar"
    path.write_bytes(tar([(f"{number}.json", rank(0).encode()) for number in range(51)]))
    assert "more than 50 entries" in disk_fault(path)
    header = tar([("p" * 150, b"")], form=tarfile.GNU_FORMAT)[:1024]
    path.write_bytes(header * 300)
    assert "more than 50 entries" in disk_fault(path)


def test_gzip_that_is_cut_off_damaged_or_followed_by_something(tmp_path):
    path = tmp_path / "a.json.gz"
    whole = gzip.compress(trace(EVENTS * 300).encode())
    for length in (3, 12, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert "is a gzip file that was cut off" in disk_fault(path)
    path.write_bytes(whole[:-8] + b"\1" * 8)
    assert "cannot be unpacked" in disk_fault(path)
    path.write_bytes(whole[:60] + b"\xff\xff" + whole[62:])
    assert disk_fault(path)
    path.write_bytes(whole + b"more")
    assert len(on_disk(path)[0][2]) == 1500


def test_unpacking_gives_all_bytes_whatever_the_pieces():
    content = bytes(range(256)) * 5000
    for packed in (gzip.compress(content), gzip.compress(content[:7]) + gzip.compress(content[7:]), content):
        for step in (1, 2, 1000, 2**16):
            if step < 1000 and len(packed) > 10**6:
                continue
            pieces = (packed[start : start + step] for start in range(0, len(packed), step))
            assert b"".join(streamed(pieces)) == content


def bomb(path, unit, megabytes, start=b'{"schemaVersion": 1, "deviceProperties": [], "traceEvents": ['):
    """``unit`` repeated to so many megabytes, packed."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = unit * (2**20 // len(unit))
    with path.open("wb") as file:
        file.write(packer.compress(start))
        for _ in range(megabytes):
            file.write(packer.compress(block))
        file.write(packer.flush())


@pytest.mark.parametrize(
    ("unit", "message"),
    [
        (b" ", "is larger than 5 MiB when unpacked"),
        (b'{"ph": "X", "cat": "cpu_op", "name": "x", "ts": 1},', "is larger than 5 MiB when unpacked"),
        (b'{"a":', "is nested too deeply"),
        (b'"', "event 1: is '', not an object"),
        (b"[],", "event 1: is [], not an object"),
    ],
)
def test_bombs_take_little_memory(tmp_path, monkeypatch, unit, message):
    monkeypatch.setattr(trace_files, "LARGEST_TRACE", 5 * 2**20)
    path = tmp_path / "bomb.json.gz"
    bomb(path, unit, 6)
    assert path.stat().st_size < 50_000
    with memory() as most, pytest.raises(DataError, match=re.escape(message)):
        on_disk(path, keep=lambda cat, name: False)
    assert most[0] < 20 * 2**20


def test_archives_packed_more_tightly_than_any_trace_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("osfmodel.formats.streams.archives.SUSPECT", 2**20)
    path = tmp_path / "bomb.json.gz"
    bomb(path, json.dumps(EVENTS[1]).encode() + b",", 4)
    assert "unpacks to more than 200 times its size" in disk_fault(path)
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert disk_fault(path)


def test_events_of_megabytes_are_not_parsed_over_and_over(tmp_path):
    """The parser is given a few times the length in all, however small the pieces."""
    given = []

    class Counting(json.JSONDecoder):
        def raw_decode(self, text, place=0):
            given.append(len(text) - place)
            return super().raw_decode(text, place)

    long = {**EVENTS[1], "args": {"Input Dims": [[7] * 100_000]}}
    content = trace([long, EVENTS[3]]).encode()
    pieces = (content[start : start + 1000] for start in range(0, len(content), 1000))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "DECODER", Counting(strict=False))
        patch.setattr("osfmodel.formats.kineto.events.opened", lambda files, known, endings, what: [("x", pieces)])
        (_, events) = read("")
    assert [len(events[0].args.input_dims[0]), events[1].cat] == [100_000, "kernel"]
    assert sum(given) < 8 * len(content)


def test_a_long_trace_takes_no_more_memory_than_a_short_one(tmp_path):
    """In a process of its own: what it takes beyond the interpreter, for 2 and for 14 MB of which little is kept."""
    code = (
        "import resource, sys\nfrom pathlib import Path\nfrom osfmodel.formats.kineto.events import read_events\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "traces = read_events([Path(sys.argv[1])], lambda cat, name: cat == 'kernel')\n"
        "kept = [event for one in traces for event in one.events]\n"
        "print(len(kept), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    grown = []
    for megabytes in (2, 14):
        path = tmp_path / f"{megabytes}.json.gz"
        unit = json.dumps(EVENTS[1]).encode() + b", "
        bomb(path, unit, megabytes)
        with gzip.open(path, "ab") as file:
            file.write(json.dumps(EVENTS[3]).encode() + b"]}")
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
        count, growth = map(int, done.stdout.split())
        assert count == 1, done.stderr
        grown.append(growth)
    assert grown[1] < grown[0] + 8 * 1024


PIECES = [b"", b"x", b"-", b",", b"\n", b"9" * 400, b"\0", b"\xc3", b"{", b"}", b"[", b"]", b'"', b"null", b"true",
          b"1e999", b"nan", b"-1", b":", b" ", b"\\", b'""', b"{}", b"[]", b"\\ud800", b"NaN", b"}, {"]  # fmt: skip
DAMAGE = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 5), st.sampled_from(PIECES)), max_size=5)


def damaged(content, damage, cut):
    for place, width, piece in damage:
        at = place % (len(content) + 1)
        content = content[:at] + piece + content[at + width :]
    return content[: len(content) * cut // 100]


def outcome(path):
    """The number of events in it, or the one line of an OsfError."""
    try:
        return sum(len(list(one.events)) for one in read_events([path]))
    except OsfError as error:
        return checked(error)


WHOLE = trace(EVENTS, indent=1).encode()
FORMS = {
    "json": WHOLE,
    "gzip": gzip.compress(WHOLE),
    "tar": tar([("a.json", WHOLE), ("b.json", WHOLE)]),
    "pax": tar([("é" * 80 + ".json", WHOLE), ("b.json.gz", gzip.compress(WHOLE))]),
    "gnu": tar([("a" * 120 + ".json", WHOLE), link("c")], form=tarfile.GNU_FORMAT),
}


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=examples(24), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=DAMAGE, cut=st.just(100) | st.integers(0, 99))
def test_damaged_files_are_read_or_refused(tmp_path, form, damage, cut):
    path = tmp_path / "file"
    path.write_bytes(damaged(FORMS[form], damage, cut))
    assert outcome(path) is not None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELD = st.sampled_from([*EVENTS[3], "id"])


@settings(max_examples=examples(45))
@given(
    event=st.sampled_from(EVENTS),
    change=st.dictionaries(FIELD, JSON, max_size=3),
    args=st.dictionaries(st.sampled_from(list(SPELLINGS.values())), JSON, max_size=4),
)
def test_values_of_any_type_are_read_or_refused(event, change, args):
    """Read, they are of the types that are declared, the fast way and the slow way alike."""
    wrong = {**event, "args": args, **change}
    content = json.dumps({"traceEvents": [wrong, EVENTS[3], EVENTS[3]]})
    results = []
    for way in (read, slowly):
        try:
            results.append(repr(way(content)))
        except DataError as error:
            results.append(checked(error))
    assert results[0] == results[1]
    for found in read(content)[1] if "Event(" in results[0] else ():
        assert all(isinstance(text, str) for text in (found.ph, found.cat, found.name, found.pid, found.tid))
        assert 0 <= found.dur < 2**62
        assert abs(found.ts) < 2**62
        numbers = (getattr(found.args, name) for name in COUNTS)
        assert all(number is None or (isinstance(number, int) and number >= 0) for number in numbers)


# 6. What it is recognised by, and its place among the formats


def test_what_a_trace_begins_with():
    long = trace(header={**HEADER, "deviceProperties": [{"name": "x" * 70_000}]})
    yes = (trace(), trace(indent=2), "\n\n" + trace(), "\ufeff" + trace(), trace([]), trace(EVENTS, {}), long[:65_536])
    for content in (*yes, trace(EVENTS, {}, {})):
        assert [name for name, entry in IMPORT_FORMATS.items() if entry.sniff(content[:65_536])] == ["kineto"]
    for content in (
        "", "{}", "[]", '{"traceEvents": []}', '{"schemaVersion": 1}', '[{"traceEvents": [], "schemaVersion": 1}]',
        '{"traceEvents": [{"ph": "X", "cat": "render", "name": "x"}]}',
        *(sample for name, group in samples.SAMPLES.items() for sample in group if name != "kineto"),
    ):  # fmt: skip
        assert not is_trace(content)


def seen_in(files, hints):
    """A trace with a rank for each file, and its headers as remarks."""
    found = [one.header for one in read_events(files.paths, None, files.tell, files.progress) if list(one.events)]
    ranks = tuple(RankTrace(number, (Step(0, 0.0, 1.0, ((0.0, 1.0),)),)) for number in range(len(found)))
    return Trace(hints.name or "job", ranks, tuple(str(header["distributedInfo"]["rank"]) for header in found))


@pytest.fixture
def counting(monkeypatch):
    """A format of traces in the table in the place of ours, under a name of its own."""
    entry = of_traces(is_trace, seen_in, "counts", (".json", ".json.gz"))
    table = {name: entry for name, entry in IMPORT_FORMATS.items() if name != "kineto"}
    monkeypatch.setattr("osfmodel.formats.reading.IMPORT_FORMATS", {**table, "counting": entry})


@pytest.mark.usefixtures("counting")
def test_traces_are_read_where_they_lie(tmp_path):
    hints = Hints("mine")
    plain, packed, archive = tmp_path / "a.json", tmp_path / "b.json.gz", tmp_path / "c.tar"
    plain.write_text(rank(0))
    packed.write_bytes(gzip.compress(rank(1).encode()))
    archive.write_bytes(tar([("0.json", rank(0).encode()), ("1.json", rank(1).encode())]))
    other = tmp_path / "layers.csv"
    other.write_text(samples.LAYERS_CSV)
    for path, form, said in ((plain, None, "0"), (packed, None, "1"), (archive, None, "01"), (plain, "counting", "0")):
        told = []
        (measured,) = import_file(path, hints, form, told.append)
        assert (measured.workload, "".join(told[: len(said)])) == ("mine", said)
    assert import_file(other, hints)[0].name == "mine"
    assert load_trace([plain, packed, archive], hints).remarks == ("0", "1", "0", "1")
    assert holds_traces([plain, packed, archive])
    assert not holds_traces([other, other])
    assert not holds_traces([plain], "csv-layers")
    with pytest.raises(DataError, match="are not of one format: import each by itself"):
        holds_traces([plain, other])
    with pytest.raises(OsfError, match="unknown format"):
        holds_traces([plain], "none")
    with pytest.raises(
        DataError, match=r"layers.csv: is csv-layers .* not a profiler trace: convert it with osf import"
    ):
        load_trace([other])


@pytest.mark.usefixtures("counting")
def test_traces_in_memory_are_read_too():
    told = []
    assert len(import_content(rank(0).encode(), "standard input", Hints("mine"), tell=told.append)) == 1
    assert told[0] == "0"


TOY = "toy trace\n"


@pytest.fixture
def toy(monkeypatch):
    """A second format of traces, after ours: a line, in files whose names end in .toy; gives what it was asked for."""
    asked = []

    def sniff(head):
        return head.startswith(TOY)

    def trace_of(files, hints):
        asked.append([name for name, pieces in trace_files.opened(files, sniff, (".toy",)) if b"".join(pieces)])
        return Trace("toy", (RankTrace(0, (Step(0, 0.0, 1.0, ((0.0, 1.0),)),)),))

    table = {**IMPORT_FORMATS, "toy": of_traces(sniff, trace_of, "toys", (".toy",))}
    monkeypatch.setattr("osfmodel.formats.reading.IMPORT_FORMATS", table)
    return asked


@pytest.mark.parametrize("place", ["folder", "a.tar", "folder/a.tgz", "a.toy"])
def test_traces_go_to_the_format_that_recognises_their_content(tmp_path, toy, place):
    """Whatever stands first in the table; import, explain and report ask in the same way."""
    where = tmp_path / place
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.json").write_text("{}")
    if ".t" in place and "toy" not in place:
        packed = "w:gz" if place.endswith("gz") else "w"
        where.write_bytes(tar([("notes.json", b"{}"), ("a.toy", TOY.encode())], packed))
        name = f"{where}:a.toy"
    else:
        name = where / "a.toy" if where.is_dir() else where
        name.write_text(TOY)
    given = tmp_path / place.partition("/")[0]
    assert load_trace([given]).name == "toy"
    assert import_file(given, Hints("mine"), tell=lambda message: None)[0].samples == (1.0,)
    assert explain(given).name == "toy"
    assert toy == [[str(name)]] * 3


@pytest.mark.usefixtures("toy")
def test_ours_are_still_ours_beside_another_format(tmp_path):
    (tmp_path / "a.json").write_text(traces.text(traces.Job(late=(0, 0), clocks=(0, 0))))
    (tmp_path / "b.toy").write_text("nothing")
    assert len(load_trace([tmp_path], Hints("mine")).ranks) == 1
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(
        DataError, match=r"is a folder without a file of a known format: none is of .*, kineto, .* or toy"
    ):
        load_trace([tmp_path])


def test_files_of_a_job_are_imported_together(tmp_path, monkeypatch):
    """One call for all ranks; its warnings, its name, and what cannot be mixed."""
    seen = []

    def noted(files, hints):
        trace = seen_in(files, hints)
        seen.append((hints.name, list(map(int, trace.remarks))))
        return trace

    entry = of_traces(is_trace, noted, "counts", (".json",))
    monkeypatch.setattr(
        "osfmodel.formats.reading.IMPORT_FORMATS", {"osfmodel": IMPORT_FORMATS["osfmodel"], "counting": entry}
    )
    for number in range(2):
        (tmp_path / f"run_rank{number}.json").write_text(rank(number))
    (tmp_path / "job.tar").write_bytes(tar([link("x.json"), ("0.json", rank(0).encode())]))
    (tmp_path / "own.json").write_text(samples.OWN_WORKLOAD)
    monkeypatch.chdir(tmp_path)

    def run(*arguments, **more):
        return invoke(["import", *arguments], **more)

    result = run("run_rank0.json", "run_rank1.json", "-o", "out.json")
    assert (result.exit_code, seen.pop()) == (0, ("run_rank", [0, 1])), result.output
    assert json.loads((tmp_path / "out.json").read_text())["name"] == "run_rank"
    assert run("job.tar", "--name", "mine").exit_code == 0
    assert seen.pop() == ("mine", [0])
    assert "osf: warning: job.tar: x.json: left out: it is a symbolic link" in run("job.tar").stderr
    assert run("-", input=rank(3)).exit_code == 0
    assert seen.pop() == ("stdin", [3])
    result = run("run_rank0.json", "own.json")
    assert result.exit_code == 1
    assert "run_rank0.json and own.json are not of one format: import each by itself" in result.stderr


def test_a_trace_given_for_a_workload_is_told_how_to_become_one(tmp_path):
    path = tmp_path / "rank0.json"
    path.write_text(trace())
    with pytest.raises(ForeignFileError, match=f"{path}: ") as caught:
        load_workload(path)
    assert re.search(
        r"looks like a trace of torch.profiler: run `osf import .* --kind workload -o", import_advice(caught.value)
    )


# 7. Traces of others


REAL = {
    "hta_dlrm_ddp_2xV100_rank1.json.gz": 105_167, "hta_dlrm_ddp_8xA100_rank3.json.gz": 109_123,
    "hta_pertensor_allreduce_2xV100_rank1.json.gz": 216_092, "hta_resnet50_ddp_2xA100_rank0.json.gz": 40_573,
    "kineto_resnet50_bs32_1gpu.json.gz": 71_424, "param_resnet18_1x2080Ti.json.gz": 111_631,
    "tracelens_resnet18_1xMI300X_compute_only.json.gz": 29_746,
}  # fmt: skip
"""Events in each, as json.load counts them."""


SHORT = [name for name, count in REAL.items() if count < 80_000]
LONG = [pytest.param(name, marks=pytest.mark.long) for name in REAL if name not in SHORT]


@pytest.mark.parametrize("name", [*SHORT, *LONG])
def test_traces_of_others(data_folder, name):
    path = data_folder / "traces/kineto" / name
    (one,) = ((found.header, sum(1 for _ in found.events)) for found in read_events([path]))
    assert one[0]["schemaVersion"] == 1
    assert one[1] == REAL[name]
    assert holds_traces([path])


def test_the_ranks_of_a_job_in_an_archive(data_folder):
    found = on_disk(data_folder / "traces/kineto/param_dlrm_8xV100_all8ranks.tar.gz")
    assert sorted(header["distributedInfo"]["rank"] for _, header, _ in found) == list(range(8))
    assert sum(len(events) for _, _, events in found) == 26_538


def test_sizes_of_collectives_in_a_trace_of_others(data_folder):
    path = data_folder / "traces/kineto/hta_resnet50_ddp_2xA100_rank0.json.gz"
    ((_, _, events),) = on_disk(path, keep=lambda cat, name: cat == "kernel")
    sizes = [event.args.in_elements for event in sorted(events, key=lambda event: event.ts) if event.args.collective]
    assert {2049000, 7875584, 6563840, 6637568, 2431040} <= set(sizes)
    assert {event.args.dtype for event in events} == {"Float", "Long", None}


@settings(max_examples=examples(18), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=DAMAGE, cut=st.just(100) | st.integers(0, 99))
def test_damaged_traces_of_others(data_folder, tmp_path, damage, cut):
    """The first events of one, and what stands behind them."""
    path = data_folder / "traces/kineto/tracelens_resnet18_1xMI300X_compute_only.json.gz"
    with gzip.open(path) as file:
        start = file.read(12_000)
    start = start[: start.rindex(b"},\n  {") + 1] + b'], "traceName": "x"}'
    (tmp_path / "cut.json").write_bytes(start)
    assert outcome(tmp_path / "cut.json") > 5
    (tmp_path / "cut.json").write_bytes(damaged(start, damage, cut))
    assert outcome(tmp_path / "cut.json") is not None


def test_a_union_in_bounded_memory_is_the_union(monkeypatch):
    rng = random.Random(3)
    rows = [(start, start + rng.random()) for start in (rng.uniform(0, 20) for _ in range(100))]
    monkeypatch.setattr(recorded, "MOST_INTERVALS", 7)
    union = recorded.Union()
    for row in rows:
        union.add(*row)
    assert union.rows().tolist() == recorded.unite(np.array(rows)).tolist()


def test_a_count_is_one_or_more():
    assert [kineto._whole(value) for value in (0, 1, True, "1", None)] == [None, 1, None, None, None]


@pytest.mark.parametrize(
    ("more", "said"), [([], "has no work of a device and no operators"), ([30], "has steps but no work in them")]
)
def test_a_rank_without_work_is_refused_with_its_file(tmp_path, more, said):
    """With a collective alone, and with a step in which nothing is."""
    steps = [{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "ts": ts, "dur": 9} for ts in more]
    for number in (0, 1):
        (tmp_path / f"{number}.json").write_text(rank(number, [*EVENTS, *steps]))
    with pytest.raises(DataError, match=rf"0\.json: {said}"):
        load_trace([tmp_path / "0.json", tmp_path / "1.json"])
