"""Hostile files: mutated, cut, empty, binary, huge, and lines made to trip regular expressions.

Only OsfErrors on one line that names the file; memory bounded; no hang (a quadratic expression would take hours here).
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from osfmodel import OsfError, Workload
from osfmodel.engine.band_values import decode_bands
from osfmodel.entities import units
from osfmodel.entities.errors import DataError
from osfmodel.entities.files import documents, profiles
from osfmodel.formats import IMPORT_FORMATS, Hints, import_file, load_trace, recognise
from osfmodel.formats.source_text import LARGEST_JSON, LARGEST_TABLE, Text, silent
from tests.commands import invoke
from tests.conftest import ROOT
from tests.draws import examples
from tests.formats import damage, samples, traces
from tests.formats.damage import memory

HINTS = Hints("mine", workers=2, gpu="l40s")
CONTENTS = [sample for group in samples.SAMPLES.values() for sample in group]
PIECES = [
    "", "x", "-", ",", "\n", "9" * 30, "\0", "é", "{", "}", "[", "]", '"', "null", "true", "1e999", "nan", "N/A", "0",
    "-1", "\r", "\x1c", "\u2028", "٣", "²", "1_0", ":", " ",
]  # fmt: skip
MEGABYTE = 2**20
REAL = [
    "comm_tables/echo-azure-nda100v4/nccl_all_reduce_2to128.csv",
    "comm_tables/aiconfigurator/nccl_all_reduce_half.csv",
    "comm_tables/mgwfbp/alpha_beta.csv",
    "comm_tables/vidur/a100_dgx_all_reduce.csv",
    "layer_profiles/pipedream/vgg16.csv",
]


def outcome(text, form=None):
    """The nouns, or the one line of an OsfError."""
    try:
        hints = HINTS if "OSU" in text.content else Hints("mine")
        found = IMPORT_FORMATS[form or recognise(text)].read(text, hints)
    except OsfError as error:
        return str(error)
    return found


def sane(result):
    return "\n" not in result and len(result) < 2000 if isinstance(result, str) else len(result) >= 1


def damaged(content, damage, cut):
    for place, width, piece in damage:
        at = place % (len(content) + 1)
        content = content[:at] + piece + content[at + width :]
    return content[: cut or None]


DAMAGE = st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 3), st.sampled_from(PIECES)), max_size=6)
CUT = st.one_of(st.just(0), st.integers(1, 4000))


@settings(max_examples=examples(30))
@given(st.sampled_from(CONTENTS), DAMAGE, CUT, st.sampled_from([None, *IMPORT_FORMATS]))
def test_damaged_samples_in_any_format(content, damage, cut, form):
    """Files are also read as formats that they are not, as with --as."""
    assert sane(outcome(Text("file.txt", damaged(content, damage, cut)), form))


@pytest.mark.parametrize("file", REAL)
@settings(max_examples=examples(18), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(DAMAGE, CUT, st.sampled_from([None, "csv-table", "csv-layers"]))
def test_damaged_real_files(data_folder, file, damage, cut, form):
    content = (data_folder / file).read_text(encoding="utf-8")[:4000]
    assert sane(outcome(Text("file.txt", damaged(content, damage, cut)), form))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NCCL_FIELDS = st.fixed_dictionaries(
    {"nccl_version": JSON, "config": JSON | st.fixed_dictionaries({"devices": JSON | st.just([{"host": ["n"]}] * 2)})},
    optional={"results": JSON | st.lists(st.fixed_dictionaries({"size": JSON, "in_place": JSON}), max_size=3)},
)
DDP_FIELDS = st.fixed_dictionaries(
    {
        "rebuilt_bucket_sizes": JSON | st.just("4, 8"),
        "avg_forward_compute_time": JSON,
        "avg_backward_compute_time": JSON,
    }
)
LAYER_FIELDS = st.lists(
    st.fixed_dictionaries({"name": JSON, "bytes": JSON, "fwd_ms": JSON, "bwd_ms": JSON}) | JSON, max_size=3
)
HOROVOD_FIELDS = st.lists(
    st.fixed_dictionaries(
        {"ph": st.sampled_from("MBEXi") | JSON, "pid": st.integers(0, 1) | JSON},
        optional={
            "ts": st.integers(0, 99) | JSON,
            "name": st.sampled_from(["process_name", "NEGOTIATE_ALLREDUCE", "ALLREDUCE", "0", "CYCLE_START"]) | JSON,
            "args": st.just({"dtype": "float32", "shape": "[2]"}) | st.just({"name": "a"}) | JSON,
        },
    ),
    max_size=12,
)
OWN_FIELDS = st.fixed_dictionaries({"schema_version": st.just(1) | JSON}, optional={"kind": JSON, "layers": JSON})


@settings(max_examples=examples(30))
@given(
    st.one_of(
        st.tuples(st.just("nccl-tests-json"), NCCL_FIELDS),
        st.tuples(st.just("ddp-logging"), DDP_FIELDS),
        st.tuples(st.just("json-layers"), LAYER_FIELDS),
        st.tuples(st.just("osfmodel"), OWN_FIELDS),
        st.tuples(st.just("horovod-timeline"), HOROVOD_FIELDS),
    )
)
def test_json_of_the_right_shape_and_wrong_types(case):
    import json

    form, document = case
    assert sane(outcome(Text("file.txt", json.dumps(document)), form))


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300), st.sampled_from(CONTENTS), st.integers(0, 4000))
def test_bytes_that_are_no_text(tmp_path, junk, content, place):
    """Binary, and binary in the middle of text: read, or an error that names the file, on one line."""
    path = tmp_path / "file.bin"
    encoded = content.encode()
    at = place % (len(encoded) + 1)
    path.write_bytes(encoded[:at] + junk + encoded[at:])
    try:
        result = import_file(path, HINTS, tell=silent)
    except OsfError as error:
        result = str(error).removeprefix(str(path))
        named = result != str(error)
    else:
        named = True
    assert named
    assert sane(result)


def test_where_a_file_stops_being_text(tmp_path):
    path = tmp_path / "file.log"
    path.write_bytes(samples.TABLE_CSV.encode() + b"16,2,\xff\xfe\n")
    with pytest.raises(DataError, match=r"file.log: line 6: is not text"):
        import_file(path, HINTS, tell=silent)


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", b"\n", b"\0", b"\x1f\x8b\x08\x00", b"\x89PNG\r\n\x1a\n"])
def test_empty_and_binary_files(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(DataError, match="file: "):
        import_file(path, HINTS, tell=silent)


def test_a_hundred_megabytes_are_refused_and_never_held(tmp_path):
    """The reader stops behind its limit, whatever the size of the file."""
    path = tmp_path / "large.csv"
    with path.open("wb") as file:
        file.write(samples.TABLE_CSV.encode())
        file.truncate(100 * 10**6)
    with memory() as most, pytest.raises(DataError, match=r"large.csv is larger than 64 MiB"):
        import_file(path, HINTS, tell=silent)
    assert most[0] < 80 * MEGABYTE


@pytest.mark.parametrize(
    "line",
    [pytest.param("2,1\n", marks=pytest.mark.long), "2," * 400 + "2\n", pytest.param("\n", marks=pytest.mark.long)],
)
def test_a_table_below_the_limit_of_bytes_takes_bounded_memory(tmp_path, line):
    """60 MiB of short, wide and empty lines, in a process that may not have more than 1.5 GiB."""
    path = tmp_path / "rows.csv"
    names = ["bytes", "time_us", *(f"c{k}" for k in range(399))][: max(2, line.count(",") + 1)]
    with path.open("w") as file:
        file.write(",".join(names) + "\n")
        file.write(line * (60 * MEGABYTE // len(line)))
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**30 + 2**29, 2**30 + 2**29))\n"
        "from osfmodel.formats import import_file, Hints\nfrom osfmodel import OsfError\nfrom pathlib import Path\n"
        f"try: import_file(Path({str(path)!r}), Hints('x', workers=2))\nexcept OsfError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-400:]
    assert "more than 2,000,000 cells" in done.stdout


def test_large_json_is_refused_before_it_is_parsed():
    for form, start in (("ddp-logging", "{"), ("json-layers", "["), ("nccl-tests-json", "{"), ("osfmodel", "{")):
        assert "MiB of JSON" in outcome(Text("file.txt", start + " " * LARGEST_JSON), form)


def test_a_table_may_be_as_large_as_any_that_is_measured():
    assert LARGEST_TABLE > 10 * 10240 * 7, "vTrain's table, the largest at hand, ten times over"


LONG = [
    "node1 -- " + " -- forward_compute_time=1" * (MEGABYTE // 26),
    "node1 -- a" + " -- forward_compute_time=1, backward_compute_time=1, activation_size=[" * (MEGABYTE // 70),
    "node1 -- a -- forward_compute_time=1, backward_compute_time=1, activation_size=1, parameter_size="
    + " -- stage_id=1" * (MEGABYTE // 14),
    "node1" * (MEGABYTE // 5),
    "# OSU" * (MEGABYTE // 5),
    "#" + "\n" * MEGABYTE,
    ("#" + " " * 1000) * 1000,
    "# OSU " + "Allreduc " * (MEGABYTE // 9),
    "# size" + " " * MEGABYTE + "count",
    "# Rank 0 " + "on " * (MEGABYTE // 3),
    "# Rank 0 on" + " " * MEGABYTE,
    "# Rank 0 " + "on a device" * 3 + "x" * MEGABYTE,
    "[1,1" + "1" * MEGABYTE,
    '"' * MEGABYTE,
    "," * MEGABYTE,
    '"a","' + "," * MEGABYTE,
    "[" * MEGABYTE,
    '{"a":' * (MEGABYTE // 5),
    "\r" * MEGABYTE,
    "9" * MEGABYTE,
    " " * MEGABYTE,
    "all_reduce_per" * (MEGABYTE // 14),
]


@pytest.mark.covering
@pytest.mark.parametrize("form", IMPORT_FORMATS)
@pytest.mark.parametrize("number", range(len(LONG)))
def test_long_lines_take_no_square_of_their_length(form, number):
    """A megabyte each, alone and below the first lines of a good file."""
    long = LONG[number]
    assert IMPORT_FORMATS[form].sniff(long[:65536]) in (True, False)
    assert sane(outcome(Text("file.txt", long), form))
    assert sane(outcome(Text("file.txt", samples.SAMPLES[form][0] + long), form))


@pytest.mark.parametrize(
    "text", [" " * 10**6 + "x", "1" + " " * 10**6 + "!", "1" * 10**6, "1e" + "9" * 10**6, "1." * 10**6]
)
@pytest.mark.parametrize("parse", [units.parse_bytes, units.parse_time, units.parse_bandwidth])
def test_long_quantities_take_no_square_of_their_length(parse, text):
    with pytest.raises(OsfError, match=r"is not a |has no unit"):
        parse(text)


def test_layers_as_json_take_the_path_of_csv():
    (from_csv,) = outcome(Text("file.txt", samples.LAYERS_CSV))
    (from_json,) = outcome(Text("file.txt", samples.LAYERS_JSON))
    assert replace(from_json, source=from_csv.source) == from_csv
    for wrong, message in (
        (samples.LAYERS_JSON.replace("1.5", '"fast"'), "entry 1: is not a number: 'fast'"),
        (samples.LAYERS_JSON.replace('"fwd_ms": 0.1', '"fwd": 0.1'), "entry 2: has no column"),
        (samples.LAYERS_JSON.replace("0.2,", "[0.2],"), "is neither text nor a number"),
        ('[{"name": "a", "bytes": 1, "fwd_ms": 1, "bwd_ms": 1}, 7]', "entry 2: is not a JSON object"),
    ):
        assert message in outcome(Text("file.txt", wrong))
    assert outcome(Text("file.txt", "[]"), "json-layers") == "is an empty list"


def test_own_files_are_read_as_they_are(tmp_path, small_workload):
    profiles.save(small_workload, tmp_path / "own.json")
    assert import_file(tmp_path / "own.json", Hints("other")) == [small_workload]
    (workload,) = outcome(Text("file.txt", samples.OWN_WORKLOAD))
    assert isinstance(workload, Workload)
    assert outcome(Text("file.txt", samples.OWN_CLUSTER))[0].name == "wires"
    plan = '{"schema_version": 1, "workload": "w", "buckets": []}'
    assert "is a file of osfmodel, of kind plan: only workloads and clusters" in outcome(Text("file.txt", plan))


def test_a_row_without_times_is_a_fault_of_its_line():
    row = samples.NEW_TEXT.replace("61.50", "N/A").replace("60.25", "N/A")
    assert "line 14: has neither an out-of-place nor an in-place time" in outcome(Text("file.txt", row))


DEEP = b"[" * 500 + b"]" * 500
PLANNED = ["predict", "workload.json", "--cluster", "ring:50us,10Gbps", "--workers", "4", "--plan", "plan.json"]
FOUND = {
    "kind of many characters": (
        ["predict", "broken.json", "--cluster", "ring:50us,10Gbps", "--workers", "4"],
        {"broken.json": b'{"schema_version": 1, "kind": "' + b"x" * 70_000 + b'", "layers": []}'},
        "broken.json: is a 'xxx",
    ),
    "kind that is a list": (
        ["predict", "broken.json", "--cluster", "ring:50us,10Gbps", "--workers", "4"],
        {"broken.json": b'{"schema_version": 1, "kind": ' + DEEP + b"}"},
        "broken.json: is a [[[",
    ),
    "kind with codes for terminals": (
        ["import", "broken.json", "--as", "osfmodel"],
        {"broken.json": rb'{"schema_version": 1, "kind": "\u001b[31m\n"}'},
        r"broken.json: is a file of osfmodel, of kind \x1b[31m",
    ),
    "version of many numbers": (
        ["import", "broken.json"],
        {"broken.json": b'{"schema_version": [' + b"0, " * 5000 + b'0], "kind": "cluster"}'},
        "broken.json: has schema_version [0, 0, ",
    ),
    "unknown field with codes for terminals": (
        ["predict", "broken.json", "--cluster", "ring:50us,10Gbps", "--workers", "4"],
        {"broken.json": damage.WORKLOAD.replace("batch_size", "\\u001b[2Jbatch_size").encode()},
        r"broken.json: Object contains unknown field '\x1b[2Jbatch_size'",
    ),
    "name of many lines": (
        ["predict", "broken.json", "--cluster", "ring:50us,10Gbps", "--workers", "4"],
        {"broken.json": damage.WORKLOAD.replace("mine", "\\n" * 3000).encode()},
        r"broken.json: the name of the workload is '\n\n",
    ),
    "time that is a nest of lists": (
        ["import", "broken.json"],
        {"broken.json": samples.DDP_JSON.encode().replace(b"8000000", DEEP)},
        "broken.json: avg_backward_compute_time is [[[",
    ),
    "time that no float holds": (
        ["import", "broken.json"],
        {"broken.json": samples.DDP_JSON.replace("8000000", f"1{'0' * 400}").encode()},
        "broken.json: avg_backward_compute_time is 1000",
    ),
    "workers that nothing has": (
        ["import", "broken.json"],
        {"broken.json": traces.text(traces.Job()).replace('"Group size": 1', f'"Group size": {2**64}').encode()},
        "'Group size' is 18446744073709551616, which is not a whole number",
    ),
    "profile with a name too long for a file": (
        ["predict", "x" * 3000, "--cluster", "ring:50us,10Gbps", "--workers", "4"],
        {},
        "no workload named 'xxx",
    ),
    "folder with a name too long for one": (
        ["predict", "x" * 3000 + ".json", "--cluster", "ring:50us,10Gbps", "--workers", "4"],
        {},
        "cannot be read: File name too long",
    ),
    "cost model that there is not": (
        ["import", "broken.json", "-o", "out.json"],
        {"broken.json": samples.OWN_CLUSTER.replace("ring", "\\u0000").encode()},
        r"broken.json: unknown cost model '\x00'",
    ),
    "more channels than any float": (
        PLANNED,
        {"plan.json": damage.PLAN.replace('"channels": 2', f'"channels": 1{"0" * 400}').encode()},
        "plan.json: the plan has 1000",
    ),
    "block of no bytes": (
        PLANNED,
        {"plan.json": damage.PLAN.replace('"b", "bytes": 100', '"b", "bytes": -1', 1).encode()},
        "plan.json: bytes of a block of 'b' in bucket 1 is -1",
    ),
    "block of no bytes, and memory": (
        ["memory", *PLANNED[1:]],
        {"plan.json": damage.PLAN.replace('"b", "bytes": 100', '"b", "bytes": -1', 1).encode()},
        "plan.json: bytes of a block of 'b' in bucket 1 is -1",
    ),
    "name too long for a file": (
        ["import", "broken.csv", "-o", "out/"],
        {"broken.csv": samples.FITS_CSV.replace("10GbE", "x" * 300).encode()},
        "it makes the name of a file there: give a shorter one",
    ),
    "log of another model": (
        ["explain", "rank0.json", "--ddp-logging", "broken.json"],
        {"rank0.json": traces.text(traces.Job()).encode(), "broken.json": samples.DDP_JSON.encode()},
        "broken.json: DDP's log has 2 buckets, a step of the trace 'rank0' 3 all-reduces",
    ),
    "steps that are not there": (
        ["explain", "rank0.json", "--steps", "90"],
        {"rank0.json": traces.text(traces.Job()).encode()},
        "the trace 'rank0': rank 0 has no steps 90",
    ),
}  # fmt: skip
"""Faults that damaged files showed (benchmarks/fuzz.py): arguments, files, and the message now."""


@pytest.mark.parametrize("name", FOUND)
def test_what_damaged_files_brought_to_light(name, tmp_path, monkeypatch):
    """One line that names the file and can be printed; nothing new is there, and what was there is as it was."""
    arguments, files, said = FOUND[name]
    monkeypatch.chdir(tmp_path)
    before = {"workload.json": damage.WORKLOAD.encode(), "out.json": b"what was there before\n"} | files
    for file, content in before.items():
        (tmp_path / file).write_bytes(content)
    result = invoke(arguments)
    assert result.exit_code in (1, 2), result.exception
    told = result.output.removesuffix("\n")
    assert said in told
    assert told.isprintable()
    assert len(told) < 1000
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_byte_that_is_no_text_costs_a_trace_nothing(tmp_path, monkeypatch):
    """In args that are read, beside a number that no float holds, which sends them the slow way."""
    content = traces.text(traces.Job()).encode()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rank0.json").write_bytes(content)
    (clean,) = load_trace([tmp_path / "rank0.json"]).ranks
    for odd in (b'"dtype": "Float", "note": "caf\xe9"', b'"dtype": "Float", "name": "caf\xe9", "Seq": 1e400'):
        (tmp_path / "rank0.json").write_bytes(content.replace(b'"dtype": "Float"', odd))
        (found,) = load_trace([tmp_path / "rank0.json"]).ranks
        assert found.steps == clean.steps
        assert invoke(["import", "rank0.json", "-o", "out/"]).exit_code == 0


@pytest.mark.parametrize("base", ["1" + "0" * 400, "1e400", "null", '"text"', "-1e308"])
def test_a_clock_that_no_float_holds_is_left_out(tmp_path, base):
    """One rank needs none: times are those from the trace's own start."""
    found = []
    for content in (traces.text(traces.Job()), traces.text(traces.Job()).replace(str(traces.BASE), base)):
        (tmp_path / "rank0.json").write_text(content)
        found.append([step.end - step.start for step in load_trace([tmp_path / "rank0.json"]).ranks[0].steps])
    assert found[0] == pytest.approx(found[1])


def test_a_refused_import_leaves_what_was_there(tmp_path, monkeypatch):
    """Cut off in the middle, also packed: no file, no folder, no temporary name, and the old file as it was."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out.json").write_bytes(b"before")
    whole = {form: texts[0].encode() for form, texts in samples.SAMPLES.items()}
    whole["packed"] = damage.gzipped(whole["kineto"])
    for form, content in whole.items():
        for output in ("out.json", "new.json", "new/"):
            (tmp_path / "broken").write_bytes(content[: len(content) // 2] + b"\0\xff")
            result = invoke(["import", "broken", "-o", output])
            assert result.exit_code == 1, (form, result.output)
            assert {path.name: path.is_file() for path in tmp_path.iterdir()} == {"out.json": True, "broken": True}
            assert (tmp_path / "out.json").read_bytes() == b"before"


@pytest.fixture
def fuzz(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("fuzz")


def test_the_samples_that_are_damaged_are_good(fuzz, tmp_path):
    """Each is read as it is, or it would be refused for what it is and not for its damage."""
    refused = {"horovod-autotune-0", "deepspeed-0"}  # nothing to import
    for number, sample in enumerate(damage.all_samples()):
        path = tmp_path / f"{number}.json"
        path.write_bytes(sample.content)
        if sample.name in refused:
            continue
        if sample.kind in fuzz.LOADERS:
            assert fuzz.LOADERS[sample.kind](path)
        elif sample.kind == "plan":
            assert profiles.load_plan(path, documents.decode_workload(damage.WORKLOAD.encode()))
        elif sample.kind == "bands":
            assert profiles.read(path, decode_bands)
        else:
            needs = sample.kind in ("osu", "nvidia-topology") or IMPORT_FORMATS[sample.kind].log
            told = HINTS if needs else Hints("mine")
            assert import_file(path, told, tell=silent)


@pytest.mark.parametrize("published", [False, pytest.param(True, marks=pytest.mark.long)])
def test_damaged_files_through_the_command_line(fuzz, monkeypatch, published):
    """As ``python benchmarks/fuzz.py``, which takes 100,000, with a few."""
    if not published:
        monkeypatch.delenv("OSFMODEL_DATA", raising=False)
    command = [sys.executable, "benchmarks/fuzz.py", "--seed", "7", "--count", "24", "--jobs", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    total = next(line for line in done.stdout.splitlines() if line.startswith("| all |"))
    count, accepted, refused, found = (int(cell) for cell in total.split("|")[2:6])
    assert count == 24 == accepted + refused
    assert found == 0
    assert accepted > 0  # how many moves with the samples that there are
    assert refused > 0


def _raised(error):
    def called(arguments):
        raise error

    return called


def _written(arguments):
    (Path.cwd() / "out.json.part").write_bytes(b"half")
    raise DataError("broken.json: is damaged")


def _overwritten(arguments):
    (Path.cwd() / "out.json").write_bytes(b'{"time_s": NaN}')


FAULTS = {
    "ValueError at outside": _raised(ValueError("odd")),
    "message without the file": _raised(DataError("is odd")),
    "message of several lines": _raised(type("Several", (DataError,), {"__str__": lambda self: "broken.json:\n"})()),
    "message of 1011 characters": _raised(
        type("Long", (DataError,), {"__str__": lambda self: "broken.json" + 1000 * "x"})()
    ),
    "left behind: ['out.json.part']": _written,
    "written JSON is invalid": _overwritten,
}


@pytest.mark.parametrize("found", FAULTS)
def test_the_search_for_faults_can_find_some(fuzz, monkeypatch, tmp_path, found):
    monkeypatch.setattr(fuzz, "called", FAULTS[found])
    case = fuzz.Case("import", {"broken.json": b"{}"}, ["import", "broken.json", "-o", "out.json"])
    verdict, _ = fuzz.within(tmp_path / "case", case)
    assert verdict.startswith(found)
    assert list(tmp_path.iterdir()) == []
