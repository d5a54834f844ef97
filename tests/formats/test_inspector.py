"""NCCL Inspector's logs: sizes and times by closed forms, all versions, waits, folders, damage, and memory."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from statistics import median

import pytest

import osfmodel as osf
from osfmodel import DataError
from osfmodel.formats import IMPORT_FORMATS, Hints, import_file, import_job, is_job, load_trace
from osfmodel.formats import streams as line_stream
from osfmodel.formats.collectives import calls as recorded
from osfmodel.formats.collectives import inspector
from osfmodel.formats.source_text import Files, Text
from tests.commands import invoke
from tests.formats.damage import memory
from tests.formats.inspector_logs import Logged, calls, header, metadata, text

JOB = Logged()
GATHERED = Logged(kinds=("AllGather", "ReduceScatter"), ranks=16, nodes=2)


def read(content, **hints):
    """(the cluster, what was told)"""
    told = []
    (cluster,) = IMPORT_FORMATS["nccl-inspector"].read(
        Text("file.log", content, tell=told.append), Hints("mine", **hints)
    )
    return cluster, told


def job_of(job, told=None):
    """The cluster from the files of all its ranks, in memory."""
    texts = tuple(Text(f"rank{rank}.log", text(job, rank)) for rank in range(job.ranks))
    tell = [].append if told is None else told.append
    (cluster,) = inspector.read_job(Files(texts, tell), Hints("mine"))
    return cluster


@pytest.mark.parametrize("version", ["v4.0", "v4.2", "v4.3"])
@pytest.mark.parametrize("job", [JOB, GATHERED, Logged(ranks=4, nodes=4, sizes=(2**16, 2**18))])
def test_prices_are_those_of_the_job(job, version):
    """In every version of the format; of all-gather and reduce-scatter the whole size is that of all parts."""
    cluster = job_of(replace(job, version=version))
    assert {table.workers for table in cluster.tables} == {job.ranks}
    assert (cluster.gpus_per_node, cluster.nodes, cluster.library) == (job.ranks // job.nodes, job.nodes, "nccl")
    names = {"AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter"}
    for kind in job.kinds:
        for size in job.sizes:
            whole = size if kind == "AllReduce" else size * job.ranks
            found = osf.cost_of(cluster, job.ranks, collective=names[kind])(whole)
            assert found == pytest.approx(job.time(kind, size) * 1e-6)


def test_of_a_call_the_rank_that_waited_least_counts():
    """Each call has another late rank, which alone waits for nobody: all ranks' files together show the price."""
    job = replace(JOB, waits=500, repeats=16)
    told: list[str] = []
    assert job_of(job, told).tables[0].times == job_of(JOB).tables[0].times
    assert told == []
    alone, said = read(text(job))
    assert alone.tables[0].times == pytest.approx([time + 500e-6 for time in job_of(JOB).tables[0].times])
    assert said == ["only 1 of 8 ranks found, so times may include waiting for the others: give the files of all ranks"]


def test_of_the_calls_of_a_size_the_median_is_taken():
    slow = [
        json.dumps({"header": header(JOB, 0), "metadata": metadata(JOB, 0), "coll_perf": call}) for call in varied()
    ]
    cluster, _ = read("\n".join(slow) + "\n")
    (table,) = cluster.tables
    for size, time, slowest in zip(table.sizes, table.times, table.slowest, strict=True):
        times = [call["coll_exec_time_us"] * 1e-6 for call in varied(size)]
        assert (time, slowest) == (pytest.approx(median(times)), pytest.approx(max(times)))


def varied(size=None):
    """Calls that take one, two, four ... times as long as each other."""
    for place, call in enumerate(calls(replace(JOB, repeats=5), 0)):
        factor = 2 ** (place * 7 % 5)
        changed = {name: value for name, value in call.items() if not name.endswith("_gbs")}
        if size in (None, call["coll_msg_size_bytes"]):
            yield changed | {"coll_exec_time_us": call["coll_exec_time_us"] * factor}


def test_an_even_sample_of_many_calls_is_kept_the_same_on_every_rank():
    """Of 3000 calls of a size at most 128; those of both ranks are the same, so that none keeps a wait."""
    job = Logged(ranks=2, sizes=(2**20, 2**21), repeats=3000, waits=900)
    cluster = job_of(job)
    counts = cluster.source.conditions.partition("median of ")[2].partition(" calls")[0].split(" to ")
    assert all(20 <= int(count) <= recorded.MOST_CALLS for count in counts)
    assert cluster.tables[0].times == pytest.approx([job.time("AllReduce", size) * 1e-6 for size in job.sizes])


def test_communicators_of_most_ranks_are_read_and_the_others_told():
    """Of equally many ranks those on most nodes, whatever the order of the lines."""
    inner = Logged(ranks=8, nodes=1, communicator="0x2", rate=400_000)
    small = Logged(ranks=2, communicator="0x3")
    outer = Logged(ranks=8, nodes=8)
    for order in ((inner, outer, small), (small, inner, outer), (outer, small, inner)):
        cluster, told = read("".join(map(text, order)))
        assert cluster.tables == read(text(outer))[0].tables
        assert (cluster.gpus_per_node, cluster.nodes) == (1, 8)
        assert told[0] == (
            "18 calls of other communicators (of 2, 8 ranks) are left out: read are those of 8 ranks on 8 nodes"
        )


def test_what_is_left_out_is_told():
    common = {"header": header(JOB, 0), "metadata": metadata(JOB, 0)}
    perf = next(calls(JOB, 0))
    extra = [
        {"p2p_perf": {"p2p": "Send", "p2p_msg_size_bytes": 8192}},
        {"coll_perf": perf | {"coll": "Broadcast"}},
        {"coll_perf": perf | {"coll_timing_source": "collective_cpu"}},
        {"coll_perf": perf | {"coll_exec_time_us": 0}},
        {"proxy_trace": {"record_type": "proxy_op"}},
        {"dump_stats": {"coll_dropped_since_last_dump": 512}},
    ]
    cluster, told = read(text(JOB) + "".join(json.dumps(common | one) + "\n" for one in extra) + '{"coll_perf": {"co')
    assert cluster.tables == read(text(JOB))[0].tables
    assert told == [
        "line 17: was cut off and is left out",
        "Inspector lost 512 collectives: raise NCCL_INSPECTOR_DUMP_COLL_RING_SIZE",
        "left out: 2 collectives without a duration",
        "sends and receives are left out: 1",
        "left out (only all-reduce, all-gather and reduce-scatter are read): 1 'Broadcast'",
        "only 1 of 8 ranks found, so times may include waiting for the others: give the files of all ranks",
    ]


def test_times_of_the_host_are_told():
    _, told = read(text(JOB).replace("kernel_gpu", "kernel_cpu"))
    assert told[0] == "9 collectives timed by the host, whose delays the times include"


def with_field(name, value):
    """The log of a job with one call changed."""
    first, second, *rest = text(JOB).splitlines(keepends=True)
    document = json.loads(second)
    part = "header" if name in document["header"] else "coll_perf"
    document[part][name] = value
    return "".join([first, json.dumps(document) + "\n", *rest])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("coll_exec_time_us", 31, "says 32.19 GB/s of bus bandwidth, but its size and time give 59.19"),
        ("coll_msg_size_bytes", 2**23, "says 32.19 GB/s of bus bandwidth, but its size and time give 257.5"),
        ("coll_msg_size_bytes", -1, "has coll_msg_size_bytes -1, not a whole number"),
        ("coll_exec_time_us", "60", "has coll_exec_time_us '60', not a time"),
        ("coll_sn", None, "has coll_sn None, not a whole number"),
        ("n_ranks", 1.5, "has n_ranks 1.5, not a whole number"),
        ("nnodes", 9, "has a size or a number of nodes that no job has"),
        ("id", 7, "has no id of its communicator"),
        ("coll", 3, "does not name its collective"),
    ],
)
def test_a_line_that_contradicts_itself_is_refused(name, value, message):
    with pytest.raises(DataError, match=rf"^line 2: {message}"):
        read(with_field(name, value))


def test_lines_without_a_communicator_and_damaged_ones():
    beginning, *rest = text(replace(JOB, version="v4.3")).splitlines(keepends=True)
    with pytest.raises(DataError, match=r"line 1: names no communicator, nor does a line before it"):
        read("".join(rest))
    with pytest.raises(DataError, match=r"line 3: is not a JSON object: '\{\"coll_perf"):
        read(beginning + rest[0] + rest[1][:40] + "\n" + rest[2])
    with pytest.raises(
        DataError, match=r"has no times of all_reduce, reduce_scatter, all_gather between two ranks or more"
    ):
        read(beginning)
    with pytest.raises(DataError, match=r"has 8 ranks, --workers 4: leave --workers out"):
        read(text(JOB), workers=4)


@pytest.fixture
def folder(tmp_path):
    """Files of 4 ranks, two of them packed, beside a file that is none."""
    job = Logged(ranks=4, waits=500, repeats=8)
    into = tmp_path / "nccl-inspector-77"
    into.mkdir()
    for rank in range(4):
        content = text(job, rank).encode()
        path = into / f"node-0-pid{rank}.log{'.gz' if rank % 2 else ''}"
        path.write_bytes(gzip.compress(content) if rank % 2 else content)
    (into / "notes.log").write_text("restarted once\n")
    return into


def test_a_folder_of_files_is_one_job(folder):
    told: list[str] = []
    assert is_job([folder])
    (cluster,) = import_file(folder, Hints("mine"), tell=told.append)
    assert cluster.tables[0].times == job_of(Logged(ranks=4)).tables[0].times
    assert told == [f"{folder / 'notes.log'}: left out: it is not a log of NCCL Inspector"]
    files = sorted(folder.glob("node*"))
    assert import_job(files, Hints("mine"))[0].tables == cluster.tables
    assert import_job(files)[0].name == "node-0-pid"
    result = invoke(["import", str(folder)])
    assert result.exit_code == 0
    assert "cluster nccl-inspector-77: all_reduce with 4 workers, 1.000 MiB to 16.00 MiB" in result.output


def test_errors_name_the_file_of_the_folder(folder):
    path = folder / "node-0-pid2.log"
    path.write_text(path.read_text() + "{}x\n")
    with pytest.raises(DataError, match=rf"^{path}: line 26: is not a JSON object"):
        import_file(folder, Hints("mine"))
    packed = folder / "node-0-pid1.log.gz"
    packed.write_bytes(packed.read_bytes()[:-40])
    for given in (folder, packed):
        result = invoke(["import", str(given), "--as", "nccl-inspector"])
        assert result.exit_code == 1
        assert result.stderr.splitlines()[-1] == f"osf: {packed}: is a gzip file that was cut off"


def test_it_is_no_trace_and_not_mixed_with_others(folder, tmp_path):
    file = folder / "node-0-pid0.log"
    with pytest.raises(DataError, match=r"is nccl-inspector .* not a profiler trace: convert it with osf import"):
        load_trace([file])
    other = tmp_path / "table.csv"
    other.write_text("n_gpus,bytes,time_us\n4,1024,20\n4,2048,21\n")
    with pytest.raises(DataError, match="are not of one format: import each by itself"):
        is_job([file, other])


def peak_of(path, megabytes):
    """The most memory that Python had while a file of that size was read, in bytes."""
    job = replace(JOB, ranks=2, sizes=tuple(2**14 + 2**10 * k for k in range(40)), repeats=40, version="v4.0")
    block = text(job).encode()
    with path.open("wb") as file:
        while file.tell() < megabytes * 10**6:
            file.write(block)
    with memory() as most:
        import_file(path, Hints("mine"), tell=[].append)
    return most[0]


def test_ten_times_the_file_takes_no_more_memory(tmp_path):
    assert peak_of(tmp_path / "large.log", 5) < 1.05 * peak_of(tmp_path / "small.log", 0.5) + 10**5


def test_more_sizes_than_any_job_has_are_refused(monkeypatch):
    monkeypatch.setattr(recorded, "MOST_SIZES", 2)
    with pytest.raises(DataError, match="has more than 2 sizes of collectives: give the files of a shorter run"):
        read(text(JOB))


def test_lines_across_pieces_are_put_together():
    content = b"\n".join([b"one", b"", b"two" * 50, b"three"])
    for step in (1, 2, 7, 1000):
        pieces = [content[start : start + step] for start in range(0, len(content), step)]
        found = list(line_stream.lines_of(pieces))
        assert found == [(1, b"one", True), (3, b"two" * 50, True), (4, b"three", False)]


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_without_an_end_is_refused_before_it_is_held(end):
    pieces = [b"x" * 2**16] * 20 + [end]
    taken = iter(pieces)
    with pytest.raises(DataError, match="line 1: is longer than 1 MiB"):
        list(line_stream.lines_of(taken))
    assert len(list(taken)) >= 3
