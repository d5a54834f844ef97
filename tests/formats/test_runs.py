"""Files of new users: several runs in one log, other collectives, failed tests, several files, packed ones."""

from __future__ import annotations

import gzip
import json
import pickle
from dataclasses import replace

import pytest

import osfmodel as osf
from osfmodel import DataError
from osfmodel.entities.errors import ForeignFileError
from osfmodel.formats import IMPORT_FORMATS, Hints, import_content, import_file, recognise
from osfmodel.formats.collectives.nccl_log import LoggedTest
from osfmodel.formats.reading import import_advice
from osfmodel.formats.source_text import Text
from tests.commands import invoke
from tests.formats import samples
from tests.formats.damage import memory
from tests.formats.samples import log


def read(content, **hints):
    """(the clusters, what was told)"""
    told = []
    text = Text("file.txt", content, tell=told.append)
    return IMPORT_FORMATS[recognise(text)].read(text, Hints("mine", **hints)), told


def refused(content, **hints):
    with pytest.raises(DataError) as caught:
        read(content, **hints)
    return str(caught.value)


def run(*arguments, stdin=None):
    return invoke(["import", *map(str, arguments)], input=stdin)


def json_run(program="all_reduce", nwrong=0, okay="true", ended=True):
    """JSON as nccl-tests 2.18 writes it: truth values as strings, devices inside config."""
    document = json.loads(samples.JSON_TEXT)
    document["args"] = [f"./build/{program}_perf", "-b", "1M"]
    document["results"][0]["in_place"]["nwrong"] = nwrong
    document["results"].append({**document["results"][0], "size": 2**22})
    document["results"][2] = json.loads(
        json.dumps(document["results"][2]).replace(f'"nwrong": {json.dumps(nwrong)}', '"nwrong": 0')
    )
    document["out_of_bounds"]["okay"] = okay
    if not ended:
        del document["out_of_bounds"], document["average_bus_bandwidth"]
    return json.dumps(document)


# 1. Several runs in one log


def test_runs_of_several_worker_counts_become_tables_of_one_cluster():
    (cluster,), told = read(log(hosts=1, gpus=8) + log(hosts=2, gpus=8, scale=2) + log(hosts=4, gpus=8, scale=3))
    assert [table.workers for table in cluster.tables] == [8, 16, 32]
    assert [table.times[0] / cluster.tables[0].times[0] for table in cluster.tables] == pytest.approx(
        [1, 2, 3], rel=1e-3
    )
    assert (cluster.gpus_per_node, cluster.nodes, told) == (8, 4, [])


def test_runs_of_the_same_count_are_repeats_of_which_the_median_is_taken():
    (cluster,), _ = read(log(scale=1) + log(scale=9) + log(scale=2))
    (table,) = cluster.tables
    assert table.workers == 4
    assert table.times[0] == pytest.approx(2 * (20 + 2**20 / 2e4) * 1e-6, rel=1e-3)
    assert "median of 3 runs" in cluster.source.conditions
    assert "median" not in read(log())[0][0].source.conditions


def test_of_several_communicators_the_first_is_the_one_that_is_read():
    """nccl-tests can split ranks into groups, each of which does the same; here the second spans two hosts."""
    document = json.loads(json_run())
    hosts = (("n1", 0), ("n1", 0), ("n2", 1), ("n3", 1))
    document["config"]["devices"] = [
        {"rank": rank, "host": host, "group": group} for rank, (host, group) in enumerate(hosts)
    ]
    (cluster,), _ = read(json.dumps(document), collective="all_reduce")
    assert (cluster.tables[0].workers, cluster.gpus_per_node, cluster.nodes) == (2, 2, 1)


def test_runs_of_different_collectives_become_tables_of_each():
    (cluster,), _ = read(log() + log("reduce_scatter", scale=2) + log("all_gather", scale=3))
    assert [(table.collective, table.workers) for table in cluster.tables] == [
        ("all_gather", 4),
        ("all_reduce", 4),
        ("reduce_scatter", 4),
    ]
    assert osf.cost_of(cluster, 4)(2**20) == pytest.approx((20 + 2**20 / 2e4) * 1e-6, rel=1e-3)


def test_a_second_table_below_the_same_devices_and_other_lines_between_runs():
    table = log()[log().index("#       size") :]
    between = "mpirun noticed 2 slots\n$ mpirun -np 4 ./build/all_reduce_perf -b 1M\n2 more processes have sent help\n"
    (cluster,), told = read(log() + between + table)
    assert [entry.workers for entry in cluster.tables] == [4]
    assert "median of 2 runs" in cluster.source.conditions
    assert told == []


def test_a_layout_that_differs_between_runs_is_refused():
    message = refused(log(hosts=2, gpus=8) + log(hosts=8, gpus=4))
    assert message.startswith("the run in line 1 has 8 GPUs per node, the run in line 27 4: a cluster has one layout")
    (cluster,), _ = read(log(hosts=1, gpus=4) + log(hosts=2, gpus=8))
    assert cluster.gpus_per_node == 8


def test_processes_that_did_not_find_each_other_are_not_a_cluster():
    """mpirun of an nccl-tests that was built without MPI: every process is rank 0 of its own test."""
    assert "line 1: the test ran on one GPU alone" in refused(log(gpus=1) * 4)


def test_groups_of_one_run_are_communicators_side_by_side():
    split = log(hosts=2, gpus=2)
    for rank in (2, 3):
        split = split.replace(f"Rank  {rank} Group  0", f"Rank  {rank} Group  1")
    assert "but all_reduce with 2 workers has 1" in refused(split)


# 2. Which collective


@pytest.mark.parametrize("program", ["alltoall", "sendrecv", "reduce", "broadcast"])
def test_other_collectives_are_refused_in_one_line(program):
    assert f"is a test of {program}" in refused(log(program))
    assert f"is a test of {program}" in refused(json_run(program))
    command = f"$ ./build/{program}_perf -g 4\n"
    assert f"is a test of {program}" in refused(command + log(program, named=False))


def test_the_name_on_the_command_line_and_the_flag():
    (cluster,), _ = read("+ mpirun -np 4 /opt/nccl-tests/all_gather_perf_mpi -b 1M\n" + log("all_gather", named=False))
    assert cluster.tables[0].collective == "all_gather"
    message = refused(log("all_gather", named=False))
    assert (
        "may be all_gather or alltoall or hypercube: give --collective all_reduce|reduce_scatter|all_gather" in message
    )
    (cluster,), _ = read(log("all_gather", named=False), collective="all_gather")
    assert cluster.tables[0].collective == "all_gather"
    assert "says all_reduce, --collective all_gather" in refused(log(), collective="all_gather")


@pytest.mark.parametrize("program", ["all_reduce", "reduce_scatter"])
def test_an_unnamed_reduction_is_told_by_its_bandwidths(program):
    (cluster,), _ = read(log(program, named=False))
    assert cluster.tables[0].collective == program
    assert "may be all_reduce or sendrecv" in refused(log("all_reduce", gpus=2, named=False))
    assert "is a test of sendrecv" in refused(log("sendrecv", named=False))
    assert "is a test of reduce" in refused(log("reduce", named=False))


def test_a_name_that_its_bandwidths_contradict_is_refused():
    wrong = log("reduce_scatter").replace("reduce_scatter_perf", "all_reduce_perf")
    assert refused(wrong).startswith("line 10: ")
    assert "busbw/algbw is 0.75, but all_reduce with 4 workers has 1.5" in refused(wrong)
    assert "is 1.5, but reduce_scatter with 4 workers has 0.75" in refused(json_run("reduce_scatter"))
    (cluster,), told = read(wrong, collective="all_reduce")
    assert cluster.tables[0].collective == "all_reduce"
    assert "taken as all_reduce, as told" in told[0]


def test_json_names_its_program():
    (cluster,), told = read(json_run())
    assert (cluster.tables[0].collective, told) == ("all_reduce", [])


# 3. Tests that failed


def test_rows_with_wrong_results_are_left_out_and_told():
    (cluster,), told = read(log(wrong=3))
    assert cluster.tables[0].sizes == (2**20, 2**22)
    assert "line 11: has 3 and 3 wrong results and is left out: '2097152" in told[1]
    assert told[0].startswith("line 13: the results of the test are wrong: '# Out of bounds values : 3 FAILED'")
    (cluster,), told = read(json_run(nwrong="17", okay="false"))
    assert cluster.tables[0].sizes == (2**21, 2**22)
    assert told[0] == "results[0]: has 17 wrong results and is left out"
    assert told[1].startswith("out_of_bounds: nccl-tests reports a failure")


@pytest.mark.parametrize(("counts", "said"), [(("0", "5"), "5"), (("3e+01", "N/A"), "3e+01")])
def test_results_that_are_wrong_in_one_column_are_enough(counts, said):
    (cluster,), told = read(in_wrong(*counts))
    assert cluster.tables[0].sizes == (2**20, 2**22)
    assert told[0].startswith(f"line 11: has {said} wrong results and is left out")


@pytest.mark.parametrize("counts", [("0", "0.0"), ("N/A", "0e+00"), ("?", "5x")])
def test_no_number_of_wrong_results_is_none(counts):
    (cluster,), told = read(in_wrong(*counts))
    assert (cluster.tables[0].sizes, told) == ((2**20, 2**21, 2**22), [])


def in_wrong(out_of_place, in_place):
    """A log with these words under #wrong in the row of 2 MiB."""
    rows = log().splitlines()
    place = next(k for k, row in enumerate(rows) if row.startswith(f"  {2**21} "))
    fields = rows[place].split()
    fields[8], fields[12] = out_of_place, in_place
    rows[place] = "  " + "  ".join(fields)
    return "\n".join(rows) + "\n"


def test_a_test_that_was_cut_off_is_told_with_its_place():
    (cluster,), told = read(log(hosts=2) + log(hosts=1, ended=False))
    assert [len(table.sizes) for table in cluster.tables] == [2, 3]
    assert told == ["line 29: the test was cut off after 2097152 of 4194304 bytes: no '# Avg bus bandwidth' follows"]
    complete = log().replace("# Avg bus bandwidth    : 9.1\n", "")
    assert read(complete)[1] == []
    (_,), told = read(json_run(ended=False))
    assert "results[2]: the test was cut off after 4194304 bytes" in told[0]


def test_a_failure_of_nccl_and_a_test_without_rows_are_told():
    failure = "node-0: Test NCCL failure all_reduce.cu:44 'unhandled system error'\n"
    begun = log()[: log().index("#       size")]
    (_,), told = read(log(ended=False) + 4 * failure + begun)
    assert sum("the test failed" in message for message in told) == 1
    assert any('line 12: the test failed: "node-0: Test NCCL failure' in message for message in told)
    assert any("line 16: a test began here and printed no rows" in message for message in told)
    assert any("cut off" in message for message in told)


def test_warnings_are_lines_on_stderr_and_python_warnings_elsewhere(tmp_path):
    path = tmp_path / "cut.log"
    path.write_text(log(ended=False))
    result = run(path)
    assert result.exit_code == 0
    assert f"osf: warning: {path}: line 11: the test was cut off" in result.stderr
    with pytest.warns(UserWarning, match="cut off"):
        import_file(path, Hints("mine"))


def test_a_run_of_one_size_is_left_out_and_told():
    short = "\n".join(line for line in log(hosts=2).splitlines() if "2097152 " not in line and "4194304  " not in line)
    (cluster,), told = read(log() + short + "\n")
    assert [table.workers for table in cluster.tables] == [4]
    assert told == ["all_reduce with 8 workers has one size only and is left out"]


def test_columns_are_found_by_their_names():
    """Rows with a time stamp (-T), and times of the CPU (-C), which say nothing of the collective."""
    stamped = log().replace("#wrong\n", "#wrong           timestamp\n")
    lines = [line + " 2026-04-19 03:18:27" if " float " in line else line for line in stamped.splitlines()]
    (cluster,), _ = read("\n".join(lines) + "\n")
    assert cluster.tables[0].times == read(log())[0][0].tables[0].times
    assert "has times of the CPU" in refused(log().replace("    time ", " cputime "))


def test_a_table_below_much_of_nccls_own_log():
    (cluster,), _ = read("node-0:1:1 [0] NCCL INFO Channel 00/02 : 0 1\n" * 3000 + log())
    assert cluster.tables[0].workers == 4


# 6. and 14. Output


def test_the_output_is_json_and_never_the_input(tmp_path):
    source = tmp_path / "new.log"
    source.write_text(log())
    own = tmp_path / "own.json"
    own.write_text(samples.OWN_CLUSTER)
    (tmp_path / "link.json").symlink_to(source)
    for target, read_from in ((source, source), (tmp_path / "link.json", source), (own, own)):
        before = read_from.read_text()
        result = run(read_from, "-o", target)
        assert (result.exit_code, "is the file that is read" in result.stderr) == (2, True)
        assert read_from.read_text() == before
    folder = tmp_path / "wires.json"
    folder.write_text(samples.OWN_CLUSTER)
    result = run(folder, "-o", tmp_path)
    assert (result.exit_code, "is the file that is read" in result.stderr) == (2, True)
    for name in ("cluster.yaml", "cluster.csv", "cluster"):
        result = run(source, "-o", tmp_path / name)
        assert (result.exit_code, "writes JSON: name it .json" in result.stderr) == (2, True)
        assert not (tmp_path / name).exists()


def test_what_was_written_is_said_on_stderr(tmp_path):
    source, target = tmp_path / "new.log", tmp_path / "cluster.json"
    source.write_text(log())
    result = run(source, "-o", target)
    assert result.stdout == ""
    assert result.stderr == f"osf: wrote {target}: cluster new: all_reduce with 4 workers, 1.000 MiB to 4.000 MiB\n"
    shown = run(source, "-o", "-")
    assert shown.stdout == target.read_text()


# 7. Empty cells


@pytest.mark.parametrize("row", ["32,1024,", "32,1024, "])
def test_an_empty_time_is_a_fault_of_its_line(row):
    assert refused(f"n_gpus,bytes,time_us\n8,1024,20\n{row}\n") == f"line 3: has no time (time_us): {row.strip()!r}"


def test_a_table_without_any_worker_count_and_times_of_two_units():
    assert "no row states its workers: fill the column n_gpus" in refused("n_gpus,bytes,time_us\n,1024,20\n,2048,20\n")
    mixed = "n_gpus,bytes,time_ms,inplace_time_us\n8,1024,20,19000\n8,2048,21,22000\n"
    assert read(mixed)[0][0].tables[0].times == pytest.approx((19e-3, 21e-3))


# 9. Several files


def test_several_logs_become_one_cluster(tmp_path):
    for hosts in (1, 2, 4):
        (tmp_path / f"n{8 * hosts}.log").write_text(log(hosts=hosts, gpus=8, scale=hosts))
    files = [tmp_path / f"n{workers}.log" for workers in (16, 8, 32)]
    assert run(*files, "-o", tmp_path / "all.json", "--name", "mine").exit_code == 0
    cluster = osf.load_cluster(tmp_path / "all.json")
    assert [table.workers for table in cluster.tables] == [8, 16, 32]
    assert (cluster.name, cluster.gpus_per_node, cluster.nodes) == ("mine", 8, 4)
    assert all(path.name in cluster.source.origin for path in files)
    assert run(*files[:2]).stdout.startswith("cluster n16-n8: all_reduce with 8 workers")


def test_files_that_are_not_of_one_cluster_are_named(tmp_path):
    one, two, layers = tmp_path / "one.log", tmp_path / "two.log", tmp_path / "layers.csv"
    layers.write_text(samples.LAYERS_CSV)
    for first, second, message in (
        (log(), log(scale=2), f"{one} and {two} both hold all_reduce with 4 workers"),
        (log(hosts=2), log(hosts=6, gpus=1), f"{one} has 4 GPUs per node, {two} 1"),
    ):
        one.write_text(first)
        two.write_text(second)
        result = run(one, two)
        assert (result.exit_code, message in result.stderr) == (1, True), result.stderr
    result = run(one, layers)
    assert (result.exit_code, f"{layers}: several files are read as the tables" in result.stderr) == (1, True)


# 10. What cannot be read


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        (" \n\n", "is empty"),
        (
            "gpus,size_in_bytes,us\n8,1024,20\n",
            "has the columns gpus, size_in_bytes, us: csv-table needs a size (bytes or",
        ),
        (
            "tensor,bytes,ms\na,1,2\n",
            "csv-layers needs a forward time (forward_us or forward_ms or forward_s) and a backward time "
            "(backward_us or backward_ms or backward_s)",
        ),
        (log()[: log().index("#       size")], "is a log of nccl-tests or NCCL without the table of results"),
        ("$ ./build/all_reduce_perf -g 8\nbash: no such file\n", "without the table of results"),
        (
            "# OSU MPI Latency Test v5.4\n# Size  Latency (us)\n1 2\n",
            "is 'OSU MPI Latency Test v5.4', not a collective",
        ),
        ("# OSU MPI Broadcast Latency Test\n1 2\n", "osu_allreduce, osu_reduce_scatter or osu_allgather is needed"),
        ("hello", "has no format that osfmodel reads (nccl-tests, "),
        ('{"a": 1, "b": 2}', "has no format that osfmodel reads (nccl-tests, "),
    ],
)
def test_missing_fields_are_named(content, message):
    assert message in refused(content)


def test_semicolons_and_tabs_separate_where_the_header_has_no_comma():
    for sign in (";", "\t"):
        (found,), (known,) = read(samples.TABLE_CSV.replace(",", sign))[0], read(samples.TABLE_CSV)[0]
        assert replace(found, source=known.source) == known


def test_osu_counts_what_each_worker_gives_to_an_all_gather():
    (cluster,), _ = read(samples.OSU_TEXT.replace("Allreduce", "Allgather"), workers=8)
    assert cluster.tables[0].sizes == (32, 8 * 8192, 8 * 2**20)


# 12. Contradictions


@pytest.mark.parametrize("content", [log(), samples.JSON_TEXT, "n_gpus,bytes,time_us\n4,1024,20\n4,2048,21\n"])
def test_workers_that_contradict_the_file_are_refused(content):
    assert "says 4 workers, --workers 16: leave --workers out" in refused(content, workers=16)
    assert read(content, workers=4)[0] == read(content)[0]


def test_gpus_per_node_that_contradict_the_hosts_are_told():
    """Pods on one node have names of their own, so the user may know better."""
    (cluster,), told = read(log(hosts=4, gpus=1), gpus_per_node=4)
    assert cluster.gpus_per_node == 4
    assert "the hosts have 1 GPUs each: taken as 4, as told" in told[0]
    assert read(log(hosts=1, gpus=4), gpus_per_node=8)[1] == []


# 13. Standard input and gzip


def test_standard_input(tmp_path):
    assert run("-", stdin=log()).stdout == "cluster stdin: all_reduce with 4 workers, 1.000 MiB to 4.000 MiB\n"
    result = run("-", stdin="")
    assert (result.exit_code, result.stderr) == (1, "osf: standard input: is empty\n")


def test_gzip(tmp_path):
    path = tmp_path / "new.log.gz"
    path.write_bytes(gzip.compress(log().encode()))
    assert run(path).stdout == "cluster new: all_reduce with 4 workers, 1.000 MiB to 4.000 MiB\n"
    path.write_bytes(gzip.compress(log().encode()) + gzip.compress(log(hosts=2).encode()))
    assert "all_reduce with 8 workers" in run(path).stdout
    path.write_bytes(gzip.compress(log().encode())[:-20])
    assert "is a gzip file that was cut off" in run(path).stderr
    assert "cannot be unpacked" in run("-", stdin=b"\x1f\x8bnot gzip").stderr


def test_what_unpacks_to_more_than_a_file_may_have_is_refused_in_bounded_memory():
    bomb = gzip.compress(b"\n" * 2**27, 9) * 4
    with memory() as most, pytest.raises(DataError, match="larger than 64 MiB when unpacked"):
        import_content(bomb, "bomb.gz", Hints("mine"))
    assert most[0] < 140 * 2**20


# 11. Profiles that are none


@pytest.mark.parametrize(
    ("file", "content", "tool"),
    [
        ("new.log", log(), "nccl-tests output"),
        ("old.log", samples.OLD_TEXT, "nccl-tests output"),
        ("new.json", samples.JSON_TEXT, "nccl-tests JSON"),
        ("osu.txt", samples.OSU_TEXT, "OSU output"),
        ("layers.csv", samples.LAYERS_CSV, "a CSV file of layers"),
        ("layers.json", samples.LAYERS_JSON, "a JSON list of layers"),
        ("graph.txt", samples.GRAPH_TEXT, "PipeDream's graph"),
        ("ddp.json", samples.DDP_JSON, "DDP's log"),
    ],
)
def test_a_file_of_another_tool_is_told_how_to_become_a_profile(tmp_path, file, content, tool):
    path = tmp_path / file
    path.write_text(content)
    for load, kind in ((osf.load_cluster, "cluster"), (osf.load_workload, "workload")):
        target = path.with_suffix(".json") if path.suffix != ".json" else tmp_path / f"{kind}.json"
        with pytest.raises(ForeignFileError, match=r"; to convert another tool's output: osf import$") as caught:
            load(path)
        assert import_advice(caught.value) == (
            f"{path}: looks like {tool}: run `osf import {path} -o {target}`, and give that file"
        )
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    result = invoke(["predict", "resnet50-v100", "--cluster", str(path), "--workers", "4"])
    assert (result.exit_code, f"looks like {tool}: run `osf import" in result.stderr) == (1, True)


@pytest.mark.parametrize("name", [name for name in IMPORT_FORMATS if name != "osfmodel"])
def test_each_format_has_a_label_by_which_its_files_are_recognised(tmp_path, name):
    path = tmp_path / "given"
    path.write_text(samples.SAMPLES[name][0])
    result = invoke(["predict", str(path), "--cluster", "ring:1us,1Gbps", "--workers", "4"])
    assert f"{path}: looks like {IMPORT_FORMATS[name].label}: run `osf import" in result.stderr
    assert IMPORT_FORMATS[name].label


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"nothing that is known",
            "is not valid JSON: invalid character at line 1, column 5; to convert another tool's output: osf import",
        ),
        (b"[1, 2]", "holds a JSON list, but an object {...} is needed; to convert another tool's output: osf import"),
        (gzip.compress(log().encode()), "looks like nccl-tests output"),
        (gzip.compress(log().encode())[:-20], "is a gzip file that was cut off"),
        (gzip.compress(samples.OWN_CLUSTER.encode()), "; to convert another tool's output: osf import"),
    ],
)
def test_the_command_line_says_what_a_file_is_that_is_not_its_own(tmp_path, content, message):
    path = tmp_path / "given.json"
    path.write_bytes(content)
    result = invoke(["predict", "resnet50-v100", "--cluster", str(path), "--workers", "4"])
    assert (result.exit_code, result.stderr.count("\n"), message in result.stderr) == (1, 1, True), result.stderr


def test_a_broken_profile_of_ones_own_is_not_taken_for_another_tools(tmp_path):
    path = tmp_path / "own.json"
    cut = "is not valid JSON: Input data was truncated"
    for content, message in (
        (samples.OWN_CLUSTER[:-10], cut),
        ("{", f"{cut}; to convert another tool's output: osf import"),
        ('{"schema_version": 1, "tables": [{"a": 1}]}\n', "Object contains unknown field 'a' at '.tables[0]'"),
    ):
        path.write_text(content)
        with pytest.raises(DataError, match=r"own\.json") as caught:
            osf.load_cluster(path)
        assert str(caught.value) == f"{path}: {message}"


XLA = (
    '{"displayTimeUnit": "ns", "traceEvents": [{"ph": "M", "pid": 3, "name": "process_name", "args": {"name": "%s"}}]}'
)
NOT_READ = {
    "chakra": (
        b'{\n  "schema": "1.1.1-chakra.0.0.4", "pid": 7, "time": "", "start_ts": 1,\n  "nodes": []}',
        "is a Chakra execution trace in JSON, which is not read, as PyTorch's has no times: give torch.profiler's",
    ),
    "jax": ((XLA % "/device:TPU:0").encode(), "is a profile of XLA, as JAX and torch_xla write it, which is not read"),
    "torch_xla": ((XLA % "/host:CPU").encode(), "is a profile of XLA, as JAX and torch_xla write it"),
    "xplane": (b"\n\x9f\x01\x12\x0d/device:TPU:0\x1a\xff\x80", "is a profile of XLA, as JAX and torch_xla write it"),
}


@pytest.mark.parametrize("command", ["import", "explain"])
@pytest.mark.parametrize("kind", NOT_READ)
def test_kinds_that_are_known_and_not_read_are_named(tmp_path, kind, command):
    content, said = NOT_READ[kind]
    path = tmp_path / "profile"
    for written in (content, gzip.compress(content)):
        path.write_bytes(written)
        result = invoke([command, str(path)])
        assert result.exit_code == 1
        assert result.stderr.startswith(f"osf: {path}: {said}")
        assert result.stderr.count("\n") == 1


def test_a_rank_of_an_absurd_number_takes_no_memory():
    """A fuzzed log had one; a gap of so many ranks is no line that went missing between neighbours."""
    test = LoggedTest(1, ranks={0: ("1", "a"), 1: ("1", "a"), 10**12: ("1", "b")})
    test.mend_hosts(Text("log.txt", ""))
    assert test.ranks == {0: ("1", "a"), 1: ("1", "a"), 10**12: ("1", "b")}
