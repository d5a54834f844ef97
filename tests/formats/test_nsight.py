"""Exports of Nsight Systems: the same job as from PyTorch's traces, names of steps, sizes, and hostile databases."""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
import struct
from contextlib import closing
from dataclasses import replace

import pytest

from osfmodel import DataError
from osfmodel.formats import Hints, format_of, import_file, load_trace
from osfmodel.formats.nsight import database, device
from osfmodel.formats.nsight.database import LEAST_ROW, Database, opened_database
from osfmodel.formats.source_text import Text, silent
from osfmodel.formats.traces.usual import with_steps
from tests.commands import invoke
from tests.draws import examples
from tests.formats import nsight_reports, traces
from tests.formats.nsight_reports import CALL_SCHEMA, COMMUNICATOR, Report, blob, write

JOB = traces.Job(late=(0, 30), clocks=(0, 0))
COMPARED = ("number", "start", "end", "compute", "copies", "forward", "backward", "update")
OF_COLLECTIVES = ("kind", "start", "end", "issued", "elements", "dtype", "workers", "arrival")


def steps_in(trace):
    """All that both formats say of the steps of each rank."""
    return [
        [
            (*(getattr(step, name) for name in COMPARED),
             [tuple(getattr(one, name) for name in OF_COLLECTIVES) for one in step.collectives])
            for step in rank.steps
        ]
        for rank in trace.ranks
    ]  # fmt: skip


def kineto(job):
    return load_trace([Text(f"rank{rank}.json", traces.text(job, rank)) for rank in range(job.ranks)], Hints("job"))


@pytest.mark.parametrize(
    "job",
    [
        JOB,
        traces.Job(late=(0,), clocks=(0,), steps=4, gap=25),
        traces.Job(late=(0, 0, 70), clocks=(0, 0, 0), lead=0, buckets=((1000,), (20_000, 5), (7,), (9_000,))),
        traces.Job(late=(0, 40), clocks=(0, 0), metric=30, gap=60),
    ],
)
def test_steps_are_those_of_the_same_job_in_pytorch_traces(tmp_path, job):
    """Every time to the last bit: of steps, computation, phases, collectives and the ranks' arrivals in them."""
    report = write(tmp_path / "node.sqlite", job, range(job.ranks))
    found = load_trace([report], Hints("job"))
    assert steps_in(found) == steps_in(kineto(job))
    assert (found.workers, found.ranks[0].device, found.ranks[0].host) == (job.ranks, "GPU X", "node-0")
    assert len(found.remarks) == (job.metric > 0)  # NCCL notes nothing of the metric's


def test_a_folder_of_a_report_for_each_rank(tmp_path):
    """Names of files do not matter: NCCL's notes say which rank it is. Names of ranges may be numbers of texts."""
    folder = tmp_path / "job"
    folder.mkdir()
    write(folder / "b.sqlite", JOB, (0,), by_id=True)
    write(folder / "a.sqlite", JOB, (1,))
    (folder / "c.db").write_text("a note")
    told: list[str] = []
    found = load_trace([folder], Hints("job"), told.append)
    assert steps_in(found) == steps_in(kineto(JOB))
    assert told == [f"{folder / 'c.db'}: left out: it is not an SQLite export of Nsight Systems"]
    assert [rank.file for rank in found.ranks] == [str(folder / "b.sqlite"), str(folder / "a.sqlite")]


def test_a_damaged_file_in_a_folder_is_named(tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    write(folder / "a.sqlite", JOB, (0,))
    packed = folder / "b.sqlite"
    packed.write_bytes(gzip.compress(b"x" * 100)[:-9])
    with pytest.raises(DataError, match=rf"^{packed}: is a gzip file that was cut off"):
        load_trace([folder], Hints("job"))


@pytest.mark.parametrize(
    "name", ["iteration {}", "Step #{}", "train_step {}", "iter_{}", "ProfilerStep#{}", "batch: {}"]
)
def test_names_of_steps(tmp_path, name):
    found = load_trace([write(tmp_path / "a.sqlite", JOB, (0, 1), name)], Hints("job"))
    assert steps_in(found) == steps_in(kineto(JOB))


@pytest.mark.parametrize("name", ["iteration", "training_step"])
def test_steps_without_numbers_are_counted(tmp_path, name):
    found = load_trace([write(tmp_path / "a.sqlite", JOB, (0, 1), name)], Hints("job"))
    assert [step.number for step in found.pace.steps] == [0, 1, 2]


@pytest.mark.parametrize("name", ["forward_step {}", "optimizer step {}", "stepper {}", "epoch {}", ""])
def test_other_ranges_are_no_steps(tmp_path, name):
    path = write(tmp_path / "a.sqlite", JOB, (0,), name)
    with pytest.raises(
        DataError, match=rf"{path}: process 4000 has no NVTX ranges of steps: wrap each step in `with torch"
    ):
        load_trace([path], Hints("job"))


def test_steps_may_be_chosen(tmp_path):
    path = write(tmp_path / "a.sqlite", JOB, (0, 1))
    assert [step.number for step in load_trace([path], Hints("job", steps=(6, 7))).pace.steps] == [6, 7]


def test_ranks_of_different_steps_are_refused(tmp_path):
    paths = [write(tmp_path / "a.sqlite", JOB, (0,)), write(tmp_path / "b.sqlite", JOB, (1,), "step 10{}")]
    with pytest.raises(DataError, match=r"no step is on the record of all ranks: rank 0 has 5..7, rank 1 has 105..107"):
        load_trace(paths, Hints("job"))


def since_the_first(trace):
    """The steps with times counted from the first of them, in whole nanoseconds."""
    begin = trace.ranks[0].steps[0].start

    def counted(value):
        if isinstance(value, float):
            return round((value - begin) * 1e9)
        return [counted(one) for one in value] if isinstance(value, tuple | list) else value

    return counted(steps_in(trace))


LONG = replace(JOB, steps=30, lead=2500)


@pytest.mark.parametrize(("room", "first", "last"), [(10, 15, 24), (4, 18, 21), (0, 18, 20)])
def test_of_a_large_report_the_steps_in_the_middle_are_read(tmp_path, monkeypatch, room, first, last):
    """Each as in the whole report, on a clock that begins later; the host is three steps ahead."""
    path = write(tmp_path / "a.sqlite", LONG, (0, 1))
    whole = load_trace([path], Hints("job"))
    numbers = [step.number for step in whole.pace.steps]
    assert numbers == list(range(5, 35))
    with closing(sqlite3.connect(path)) as database, database:
        (kernels,) = database.execute("SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()
    monkeypatch.setattr(device, "MOST_KERNELS", kernels * (room + 2 * device.AROUND) // 30)
    found = load_trace([path], Hints("job"))
    assert [step.number for step in found.pace.steps] == list(range(first, last + 1))
    assert since_the_first(found) == since_the_first(with_steps(whole, range(first, last + 1)))
    said = f"has {kernels:,} kernels in 30 steps, of which {first} to {last} are read: --steps chooses others"
    assert found.remarks == (said, *whole.remarks)
    asked = load_trace([path], Hints("job", steps=(7, 9)))
    assert since_the_first(asked) == since_the_first(with_steps(whole, range(7, 10)))
    assert asked.remarks == whole.remarks


def test_without_blobs_sizes_are_missing_and_it_says_how_to_export_them(tmp_path):
    found = load_trace([write(tmp_path / "a.sqlite", JOB, (0, 1), blobs=False)], Hints("job"))
    assert found.remarks == (
        "18 of 18 collectives have no size: export with nsys export --type sqlite --include-blobs=true",
    )
    assert {one.elements for step in found.pace.steps for one in step.collectives} == {None}


def with_calls(path, kernel, calls):
    """A report of one step whose NCCL kernel was launched at the end of a group of ``calls``: (name, bytes)."""
    report = Report(path)
    process, thread = 7, (7 << 24) + 1
    joined = struct.pack("<QII", COMMUNICATOR, 4, 0)
    report.nvtx("ncclCommInitRank", 0, 1, thread, blob(nsight_reports.COMM_SCHEMA, joined))
    report.nvtx("step 0", 10, 200, thread)
    report.nvtx("ncclGroupStart", 20, 21, thread)
    for place, (name, size) in enumerate(calls):
        payload = blob(CALL_SCHEMA, struct.pack("<QQI", COMMUNICATOR, size, 0))
        report.nvtx(name, 22 + place, 22.5 + place, thread, payload)
    report.nvtx("ncclGroupEnd", 30, 40, thread)
    report.launch(35, 36, thread, 1)
    report.kernel(kernel, 50, 90, 20, 1, process)
    report.launch(60, 61, thread, 2)
    report.kernel("gemm", 70, 120, 7, 2, process)
    report.save()
    (step,) = load_trace([path], Hints("job")).pace.steps
    (found,) = step.collectives
    assert (found.start, found.end) == pytest.approx((step.start + 40e-6, step.start + 80e-6))
    return found


@pytest.mark.parametrize(
    ("kernel", "calls", "expected"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", [("ncclAllReduce", 4096)], ("all_reduce", 2048, "bfloat16", 4096)),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", [("ncclAllReduce", 4096)] * 3,
         ("all_reduce", 3072, "float32", 12288)),
        ("ncclDevKernel_AllGather_RING_LL", [("ncclAllGather", 4096)], ("all_gather", 4096, "int8", 4096)),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", [("ncclReduceScatter", 4096)],
         ("reduce_scatter", 4096, "float32", 16384)),
        ("ncclDevKernel_SendRecv", [("ncclSend", 64), ("ncclRecv", 64)], ("send_recv", None, None, None)),
    ],
)  # fmt: skip
def test_sizes_are_of_what_a_rank_puts_in(tmp_path, kernel, calls, expected):
    """NCCL notes a rank's part: what it gives to an all-gather, and what it gets of a reduce-scatter of 4 ranks."""
    found = with_calls(tmp_path / "a.sqlite", kernel, calls)
    assert (found.kind, found.elements, found.dtype if found.elements else None, found.bytes) == expected


def test_copies_graphs_and_other_devices(tmp_path):
    path = write(tmp_path / "a.sqlite", JOB, (0, 1))
    with closing(sqlite3.connect(path)) as database, database:
        start, pid = database.execute("SELECT start, globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()
        database.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, 0, 7, 1, ?, 64, 1)", (start - 9000, start - 4000, pid)
        )
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 3, 1, 7, 999, ?, 1, 1, 1)", (0, 1, pid))
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER)")
    found = load_trace([path], Hints("job"))
    assert found.remarks == (
        "CUDA graphs are left out: record with nsys profile --cuda-graph-trace=node",
        "process 4000 uses 2 GPUs: only GPU 0 is read",
    )
    assert sum(len(step.copies) for step in found.ranks[0].steps) == 1


def changed(path, *statements):
    """A good report, changed."""
    write(path, JOB, (0, 1))
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)
    database.close()
    return path


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        (["DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL"], "has no kernels .*: record with nsys profile -t cuda,nvtx"),
        (["DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL"], r"has no kernels \(no table CUPTI_ACTIVITY_KIND_KERNEL\)"),
        (["DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL", "DROP TABLE StringIds"], "is no export of Nsight Systems"),
        (["ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN start TO begin"], "has no column start"),
        (["UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon'"], "KERNEL has 'soon' where a whole number belongs"),
        (["UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 1"], "ends before it starts"),
        (["UPDATE NVTX_EVENTS SET start = 1e300"], "NVTX_EVENTS has '1e[+]300' where a whole number belongs"),
        (["UPDATE NVTX_EVENTS SET globalTid = NULL"], "NVTX_EVENTS has 'None' where a whole number belongs"),
        (["DROP TABLE NVTX_EVENTS"], "has no NVTX ranges of steps"),
        (["DROP TABLE StringIds", "CREATE VIEW StringIds AS SELECT 1 AS id, randomblob(9) AS value"],
         "has no table StringIds"),
    ],
)  # fmt: skip
def test_reports_that_lack_something_are_refused_in_one_line(tmp_path, statements, message):
    path = changed(tmp_path / "a.sqlite", *statements)
    before = path.read_bytes()
    result = invoke(["explain", str(path)])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"osf: {path}: ")
    assert result.stderr.count("\n") == 1
    with pytest.raises(DataError, match=message):
        load_trace([path], Hints("job"))
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.sqlite"]


def test_payloads_of_another_layout_are_no_sizes(tmp_path):
    path = changed(tmp_path / "a.sqlite", "UPDATE NVTX_EVENTS SET binaryData = substr(binaryData, 1, 40)")
    assert {one.elements for step in load_trace([path], Hints("j")).pace.steps for one in step.collectives} == {None}


def test_a_report_given_twice_is_refused(tmp_path):
    path, other = (write(tmp_path / name, JOB, (0,)) for name in ("a.sqlite", "b.sqlite"))
    with pytest.raises(DataError, match=rf"{path} and {other} are the same report twice: leave one out"):
        load_trace([path, other], Hints("job"))


def test_packed_and_cut_and_in_memory(tmp_path):
    content = write(tmp_path / "a.sqlite", JOB, (0, 1)).read_bytes()
    packed = tmp_path / "a.sqlite.gz"
    packed.write_bytes(gzip.compress(content))
    assert format_of(packed) == "nsight-systems"
    with pytest.raises(DataError, match=rf"{packed}: is a packed SQLite database: unpack it first"):
        load_trace([packed], Hints("job"))
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=rf"{cut}: is a damaged SQLite database"):
        load_trace([cut], Hints("job"))
    with pytest.raises(DataError, match="is a database, which is read from a file only: give its path"):
        load_trace([Text("a", "SQLite format 3\0")], Hints("job"))


def test_a_tree_that_repeats_its_pages_ends(tmp_path):
    """All children of a table's root are one page: more rows than the file has bytes for are not taken."""
    path = tmp_path / "a.sqlite"
    write(path, replace(JOB, steps=40), (0, 1))
    with closing(sqlite3.connect(path)) as database, database:
        (root,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'NVTX_EVENTS'").fetchone()
        (size,) = database.execute("PRAGMA page_size").fetchone()
    content = bytearray(path.read_bytes())
    page = (root - 1) * size
    assert content[page] == 5, "an interior page of a table"
    count = struct.unpack(">H", content[page + 3 : page + 5])[0]
    cell = struct.unpack(">H", content[page + 12 : page + 14])[0]
    repeated = struct.pack(">H", cell) * ((size - 400) // 2)
    content[page + 12 : page + 12 + len(repeated)] = repeated
    content[page + 3 : page + 5] = struct.pack(">H", len(repeated) // 2)
    path.write_bytes(content)
    assert count < 1000
    with pytest.raises(DataError, match="is a damaged SQLite database"):
        load_trace([path], Hints("job"))


def refusal(path):
    """The error of a file; "" if it is read."""
    try:
        import_file(path, Hints("mine"), tell=silent)
    except DataError as error:
        return str(error)
    return ""


def test_no_more_rows_are_taken_than_the_bytes_can_hold(tmp_path):
    """The size is that of a file which claims more rows than it has room for."""
    path = tmp_path / "rows.sqlite"
    with closing(sqlite3.connect(path)) as made, made:
        made.execute("CREATE TABLE numbers (value INTEGER)")
        made.executemany("INSERT INTO numbers VALUES (?)", [(number,) for number in range(20)])
    query = "SELECT value FROM numbers"
    with closing(sqlite3.connect(path)) as connection:
        assert len(list(Database(connection, 20 * LEAST_ROW).rows(query))) == 20
    with closing(sqlite3.connect(path)) as connection, pytest.raises(DataError, match="more rows than bytes"):
        list(Database(connection, 19 * LEAST_ROW).rows(query))


def test_a_database_is_never_written(tmp_path):
    path = write(tmp_path / "report.sqlite", traces.Job())
    before = path.read_bytes()
    with opened_database(path) as database, pytest.raises(DataError, match="readonly"):
        list(database.rows("CREATE TABLE ours (value INTEGER)"))
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_damaged_databases_are_read_or_refused_in_one_line(tmp_path):
    """Bytes of every page overwritten, also those of its header."""
    content = write(tmp_path / "a.sqlite", JOB, (0, 1)).read_bytes()
    path = tmp_path / "broken.sqlite"
    chance = random.Random(7)
    outcomes = set()
    for _ in range(examples(50)):
        damaged = bytearray(content)
        for _ in range(chance.choice((1, 3, 20))):
            place = chance.randrange(16, len(damaged))
            damaged[place : place + 2] = chance.randbytes(2)
        path.write_bytes(damaged)
        outcomes.add(refusal(path))
    assert "" in outcomes
    assert len(outcomes) > 3
    for refused in outcomes - {""}:
        assert refused.startswith(f"{path}: ")
        assert refused.isprintable()
        assert len(refused) < 1000
    assert json.dumps(sorted(file.name for file in tmp_path.iterdir())) == '["a.sqlite", "broken.sqlite"]'


def test_more_ranges_than_any_report_has_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "MOST_RANGES", 5)
    with pytest.raises(DataError, match="has more than 5 NVTX ranges of steps and collectives: record fewer steps"):
        load_trace([write(tmp_path / "a.sqlite", JOB, (0, 1))], Hints("job"))
