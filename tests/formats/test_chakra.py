"""Chakra execution traces: prices by closed forms, groups, traces without times, damage, memory, and the encoding."""

from __future__ import annotations

import gzip
import random
from dataclasses import replace

import pytest

import osfmodel as osf
from osfmodel import DataError
from osfmodel.formats import Hints, format_of, import_file, import_job, is_job, load_trace
from osfmodel.formats.collectives import chakra
from tests.commands import invoke
from tests.formats.chakra_traces import (
    COLLECTIVE,
    METADATA,
    SEND,
    Traced,
    attribute,
    collective,
    content,
    delimited,
    field,
    messages,
    node,
    start,
    varint,
)
from tests.formats.damage import memory

JOB = Traced()
NAMES = {"AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter"}


def written(folder, job=JOB, ranks=None):
    """The files of a job."""
    folder.mkdir(exist_ok=True)
    for rank in range(job.ranks if ranks is None else ranks):
        (folder / f"trace.{rank}.et").write_bytes(content(job, rank))
    return folder


def read(path, **hints):
    """(the cluster, what was told)"""
    told: list[str] = []
    (cluster,) = import_file(path, Hints("mine", **hints), tell=told.append)
    return cluster, told


@pytest.mark.parametrize(
    "job",
    [
        JOB,
        replace(JOB, schema="1.0.3-chakra.0.0.4", sizes=(300, 70_000)),
        replace(JOB, kinds=("AllGather", "ReduceScatter"), ranks=8),
        replace(JOB, waits=5000, repeats=8),
        replace(JOB, group="1", ranks=4),
    ],
)
def test_prices_are_those_of_the_job(tmp_path, job):
    """Of each call the rank counts that waited least; of an all-gather the bytes of all ranks."""
    cluster, told = read(written(tmp_path / "job", job))
    workers = 2 if job.group == "1" else job.ranks
    assert told == []
    assert cluster.library == "nccl"
    assert {table.workers for table in cluster.tables} == {workers}
    for kind in job.kinds:
        for size in job.sizes:
            found = osf.cost_of(cluster, workers, collective=NAMES[kind])(job.whole(kind, size))
            assert found == pytest.approx(job.time(kind, size) * 1e-6)


def test_files_of_one_rank_and_packed(tmp_path):
    path = tmp_path / "rank.et"
    path.write_bytes(content(replace(JOB, waits=700)))
    assert format_of(path) == "chakra"
    assert is_job([path])
    cluster, told = read(path)
    assert told == [
        "rank.et: only 1 of 4 ranks found, so times may include waiting for the others: give the files of all ranks"
    ]
    packed = tmp_path / "rank.et.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read(packed)[0].tables == cluster.tables
    assert import_job([packed])[0].name == "rank"
    with pytest.raises(DataError, match=r"is chakra .*they have no steps.*, not a profiler trace: convert it with osf"):
        load_trace([path])


def test_without_a_list_of_groups_workers_are_asked_for(tmp_path):
    job = replace(JOB, listed=False)
    path = written(tmp_path / "job", job)
    file = path / "trace.0.et"
    with pytest.raises(DataError, match=rf"^{file}: node 2: does not say how many ranks group '0' has: give --workers"):
        read(path)
    assert read(path, workers=4)[0].tables == read(written(tmp_path / "other"))[0].tables
    bare = tmp_path / "bare.et"
    bare.write_bytes(content(replace(JOB, group="")))
    with pytest.raises(DataError, match="does not say how many ranks group '' has: give --workers N"):
        read(bare)


def test_traces_without_durations_say_where_these_come_from(tmp_path):
    path = tmp_path / "bare.et"
    path.write_bytes(content(replace(JOB, timed=False)))
    result = invoke(["import", str(path)])
    assert result.exit_code == 1
    assert result.stderr == (
        f"osf: {path}: has no durations of its 9 collectives: Chakra's converter takes them from a trace of "
        "torch.profiler that chakra_trace_link has linked, which osfmodel reads as well\n"
    )
    path.write_bytes(start(JOB) + node(1, "aten::mm", 4, 7))
    with pytest.raises(
        DataError, match=r"has no times of all_reduce, .* between two ranks or more: Chakra's converter takes them"
    ):
        read(path)


def test_what_is_left_out_is_told(tmp_path):
    more = [
        node(90, "ncclDevKernel_SendRecv", SEND, 9),
        collective(JOB, 91, "Broadcast", 2**20, 50),
        collective(JOB, 92, "AllReduce", 2**20, 0),
        collective(JOB, 93, "AllReduce", 2**20, 90)[:-5],
    ]
    path = tmp_path / "rank.et"
    path.write_bytes(content(JOB) + b"".join(more))
    cluster, told = read(path)
    whole = tmp_path / "whole.et"
    whole.write_bytes(content(JOB))
    assert cluster.tables == read(whole)[0].tables
    last = len(list(messages(JOB))) + 3
    assert told == [
        f"{path}: node {last}: was cut off and is left out",
        "rank.et: left out: 1 collective without a duration",
        "rank.et: sends and receives are left out: 1",
        "rank.et: left out (only all-reduce, all-gather and reduce-scatter are read): 1 'broadcast'",
        "rank.et: only 1 of 4 ranks found, so times may include waiting for the others: give the files of all ranks",
    ]


KERNEL = field(1, 5) + field(2, "ncclDevKernel_AllReduce") + field(3, COLLECTIVE) + field(7, 30)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (KERNEL + field(10, attribute("comm_size", 9, 64)), "is a collective without comm_type: 'ncclDevKernel_AllRed"),
        (KERNEL + field(10, attribute("comm_type", 9, 0)), "all_reduce: comm_size is implausible: None"),
        (KERNEL + field(10, attribute("comm_type", 9, 0)) + field(10, attribute("comm_size", 9, 2**63)),
         "all_reduce: comm_size is implausible: 9223372036854775808"),
        (KERNEL + b"\x52\x7f\x01", "ends within a field"),
        (KERNEL + b"\x52", "ends within a number"),
        (KERNEL + b"\x53", "has a field of type 3, which no message has"),
        (KERNEL + b"\x50" + b"\xff" * 12, "has a number of more than 64 bits"),
        (b"\xff" * 12, "has a number of more than 64 bits"),
    ],
)  # fmt: skip
def test_damaged_nodes_are_refused_with_their_number(tmp_path, message, said):
    path = tmp_path / "rank.et"
    path.write_bytes(start(JOB) + delimited(message) + content(JOB))
    with pytest.raises(DataError, match=rf"^{path}: node 1: {said}"):
        read(path)


def test_a_message_that_no_node_is_as_long_as_is_refused(tmp_path):
    path = tmp_path / "rank.et"
    path.write_bytes(start(JOB) + varint(chakra.LONGEST + 1) + b"x" * 100)
    with pytest.raises(DataError, match=rf"^{path}: message 1: is longer than 16 MiB, the maximum for a node"):
        read(path)


def test_messages_across_pieces_are_put_together():
    parts = [b"", b"one", b"x" * 300, b"last"]
    written = b"".join(map(delimited, parts))
    for step in (1, 2, 7, 1000):
        pieces = [written[place : place + step] for place in range(0, len(written), step)]
        assert list(chakra.delimited(pieces)) == [(number, part, True) for number, part in enumerate(parts)]
        cut = list(chakra.delimited([*pieces, b"\x09abc"]))[-1]
        assert cut == (4, b"\x09abc", False)


def test_all_types_of_values_are_passed():
    """Whole numbers to 64 bits, bytes, and those of 4 and 8 bytes, which stay bytes."""
    message = field(1, 2**64 - 1) + field(2000, "text") + b"\x1d" + b"\1\2\3\4" + b"\x21" + b"\1" * 8
    assert list(chakra.fields(message)) == [(1, 2**64 - 1), (2000, b"text"), (3, b"\1\2\3\4"), (4, b"\1" * 8)]


def test_ten_times_the_file_takes_no_more_memory(tmp_path):
    def peak(name, repeats):
        path = tmp_path / name
        path.write_bytes(content(replace(JOB, repeats=repeats, computing=0)))
        with memory() as most:
            read(path)
        return most[0]

    assert peak("large.et", 500) < 1.1 * peak("small.et", 50) + 10**5


def test_damaged_traces_are_read_or_refused_in_one_line(tmp_path):
    whole = content(replace(JOB, repeats=1, kinds=("AllReduce", "AllGather")))
    path = tmp_path / "broken.et"
    chance = random.Random(7)
    outcomes = set()
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(chance.choice((1, 2, 9))):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged[: chance.choice((len(whole), chance.randrange(len(whole))))])
        try:
            import_file(path, Hints("mine"), "chakra", tell=[].append)
            outcomes.add("")
        except DataError as error:
            outcomes.add(str(error))
    assert "" in outcomes
    assert len(outcomes) > 5
    for refused in outcomes - {""}:
        assert refused.startswith(f"{path}: ")
        assert refused.isprintable()
        assert len(refused) < 1000


def test_groups_name_their_ranks_or_their_number(tmp_path):
    """As PyTorch has written them over the years; of a group whose ranks are known, these tell it from its like."""
    for listed, workers in (
        ('[{"pg_name": "0", "ranks": [0, 1, 2], "group_size": 3}]', 3),
        ('[{"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 5, "group_count": 1}]', 5),
        ('[{"pg_name": "0", "pg_size": 6, "ranks": []}]', 6),
    ):
        path = tmp_path / "rank.et"
        begin, _, *nodes = messages(JOB)
        path.write_bytes(begin + node(1, "## process_group:init ##", METADATA, values=str([listed])) + b"".join(nodes))
        assert read(path)[0].tables[0].workers == workers
