"""Files of other tools: what is read from samples, from the published tables, and from damaged files."""

from __future__ import annotations

import csv
import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import osfmodel as osf
from osfmodel import DataError, OsfError
from osfmodel.cli.importing import fitted
from osfmodel.formats import IMPORT_FORMATS, Hints, import_file, layers, recognise
from osfmodel.formats.collectives import tables
from osfmodel.formats.source_text import Text
from tests.commands import invoke
from tests.conftest import ROOT
from tests.draws import examples
from tests.formats import samples
from tests.live.explained import paths_of

HINTS = Hints("mine", workers=None)


def read(content, **hints):
    text = Text("file.txt", content)
    return IMPORT_FORMATS[recognise(text)].read(text, Hints("mine", **hints))


def test_every_format_has_a_sample():
    assert set(samples.SAMPLES) == set(IMPORT_FORMATS)


@pytest.mark.parametrize("name", IMPORT_FORMATS)
def test_sniffing_is_exclusive(name):
    for sample in samples.SAMPLES[name]:
        assert [other for other, entry in IMPORT_FORMATS.items() if entry.sniff(sample)] == [name]
    assert IMPORT_FORMATS[name].summary


def test_new_nccl_tests_text():
    """The faster of both times, four workers on two nodes, the row of 0 bytes left out."""
    (cluster,) = read(samples.NEW_TEXT)
    (table,) = cluster.tables
    assert (cluster.name, cluster.gpus_per_node, cluster.nodes, table.workers) == ("mine", 2, 2, 4)
    assert table.collective == "all_reduce"
    assert table.sizes == (2**20, 2**21, 2**22)
    assert table.times == pytest.approx((60.25e-6, 84.10e-6, 129.9e-6))


def test_a_log_names_the_gpu_unless_its_ranks_differ():
    (cluster,), (old,) = read(samples.NEW_TEXT), read(samples.OLD_TEXT)
    assert (cluster.source.gpu, old.source.gpu) == ("NVIDIA A100-SXM4-40GB", "Tesla V100-SXM2-16GB")
    (mixed,) = read(samples.NEW_TEXT.replace("[0x0f] NVIDIA A100-SXM4-40GB", "[0x0f] NVIDIA H100", 1))
    assert mixed.source.gpu == osf.Source().gpu


@pytest.mark.parametrize(
    ("found", "put", "message"),
    [
        (
            "   130.4   32.16   48.25      0    129.9   32.29",
            "   0.0 0.0 0.0 0 0.0 0.0",
            "line 16: 4194304 bytes in no time",
        ),
    ],
)
def test_times_that_cannot_be_are_refused(found, put, message):
    with pytest.raises(DataError, match=message):
        read(samples.NEW_TEXT.replace(found, put))


def test_a_table_in_another_unit_is_refused():
    """A single row whose time and bandwidth contradict is left out, as it is garbled; most of them are a unit."""
    lines = samples.NEW_TEXT.splitlines()
    for place in (13, 14, 15):
        fields = lines[place].split()
        fields[5], fields[9] = (f"{float(time) / 1e3:.4f}" for time in (fields[5], fields[9]))
        lines[place] = "  ".join(fields)
    with pytest.raises(DataError, match=r"line 16: takes 0\.1299 us, but 129\.9 us by its algbw"):
        read("\n".join(lines))


def test_the_gpu_can_be_told(tmp_path):
    table, log, written = tmp_path / "run.csv", tmp_path / "run.log", tmp_path / "cluster.json"
    table.write_text("n_gpus,bytes,time_us\n4,1024,20\n4,2048,21\n")
    log.write_text(samples.NEW_TEXT)
    for words in ([table, "--gpu", "L40S"], [log, "--gpu", "a100"]):
        assert invoke(["import", *map(str, words), "-o", str(written)]).exit_code == 0
        assert osf.load_cluster(written).source.gpu == ("L40S" if words[0] is table else "NVIDIA A100-SXM4-40GB")
    result = invoke(["import", str(log), "--gpu", "H100"])
    assert result.exit_code == 2
    assert "says that it was measured on 'NVIDIA A100-SXM4-40GB'" in result.stderr


def test_old_nccl_tests_text_through_mpirun():
    (cluster,) = read(samples.OLD_TEXT)
    (table,) = cluster.tables
    assert (table.workers, table.sizes) == (2, (1024, 2048, 4096))
    assert table.times == pytest.approx((19.88e-6, 21.07e-6, 22.11e-6))


def with_prefix(text, prefix):
    return "".join(prefix + line for line in text.splitlines(keepends=True))


@pytest.mark.parametrize("prefix", ["    ", "\t", "> ", "0: ", " 0: ", "  0:"])
def test_nccl_tests_text_indented_quoted_and_through_srun(prefix):
    (plain,), (found,) = read(samples.NEW_TEXT), read(with_prefix(samples.NEW_TEXT, prefix))
    assert (found.tables, found.gpus_per_node, found.nodes) == (plain.tables, 2, 2)


def test_nccl_tests_text_on_a_page_of_markdown():
    before, after = "# Results of June\n\n2 nodes were used. all_reduce_perf:\n\n", "\n\n3 more follow.\n"
    (found,) = read(before + with_prefix(samples.NEW_TEXT, "    ") + after)
    assert found.tables == read(samples.NEW_TEXT)[0].tables


@pytest.mark.parametrize("damage", ["on     nodX-a device", "", "garbled"])
def test_a_garbled_rank_line_makes_no_node_of_its_own(damage):
    """It is told, and taken as on the host of its neighbours."""
    ranks = [f"#  Rank {k} Group  0 Pid {k} on     node-a device {k} [0x07] A100\n" for k in range(4)]
    if damage.startswith("on"):
        ranks[1] = ranks[1].replace("on     node-a device", damage)
    else:
        ranks[1] = f"# {damage}\n" if damage else ""
    before, _, rest = samples.NEW_TEXT.partition("#  Rank  0")
    told = []
    text = Text("file.txt", before + "".join(ranks) + rest[rest.index("#\n") :], tell=told.append)
    (found,) = IMPORT_FORMATS["nccl-tests"].read(text, HINTS)
    assert (found.tables[0].workers, found.gpus_per_node, found.nodes) == (4, 4, 1)
    (line,) = told
    assert "the line of rank 1 " in line
    assert "taken as on 'node-a'" in line


def test_other_collectives_and_unnamed_ones():
    (cluster,) = read(samples.log(program="reduce_scatter"))
    assert cluster.tables[0].collective == "reduce_scatter"
    anonymous = samples.NEW_TEXT.replace("# Collective test starting: all_reduce_perf\n", "").replace(" sum ", " none ")
    with pytest.raises(DataError, match="does not name the collective"):
        read(anonymous)


def test_nccl_tests_json():
    (cluster,) = read(samples.JSON_TEXT)
    assert cluster.tables[0].times == pytest.approx((60.25e-6, 84.1e-6))
    assert (cluster.tables[0].workers, cluster.gpus_per_node) == (4, 2)
    assert "2.29.2" in cluster.source.conditions


def test_rccl_tests_in_lines_and_as_csv():
    """The sizes and times in the files, in place or not; all GPUs of the process are on one node."""
    lines, table = (samples.SAMPLES["rccl-tests"][place] for place in (2, 3))
    (from_lines,), (from_csv,) = read(lines), read(table)
    for cluster in (from_lines, from_csv):
        assert (cluster.gpus_per_node, cluster.nodes, cluster.tables[0].workers) == (4, 1, 4)
        assert cluster.tables[0].collective == "all_reduce"
        assert cluster.tables[0].sizes == tuple(2**power for power in range(10, 29))
    assert from_lines.tables[0].times[0] == pytest.approx(19.034133333333333e-6)
    assert from_csv.tables[0].times == pytest.approx(from_lines.tables[0].times, rel=1e-4)
    (spaced,) = read(samples.RCCL_SPACED)
    assert spaced.tables[0].collective == "reduce_scatter"
    assert spaced.tables[0].times == pytest.approx((19.034e-6, 88.905e-6))


def test_rccl_tests_with_mpi():
    """Ranks and GPUs of each; where they lie is in the file only if its bandwidths are of more than are on a node."""
    (cluster,) = read(samples.RCCL_LISTED)
    assert (cluster.tables[0].workers, cluster.gpus_per_node, cluster.nodes) == (16, 8, 2)
    assert cluster.tables[0].times == pytest.approx((60.25e-6, 84.1e-6, 129.9e-6))
    text = Text(
        "file.txt", samples.RCCL_LISTED.replace('"ranksPerNode":8', '"ranksPerNode":16'), tell=(told := []).append
    )
    (unplaced,) = IMPORT_FORMATS["rccl-tests"].read(text, HINTS)
    assert (unplaced.tables, unplaced.gpus_per_node) == (cluster.tables, 1)
    assert told == [
        "how ranks lie on nodes is not in the file: each is taken to be on a node of its own: give --gpus-per-node"
    ]
    (placed,) = read(samples.RCCL_LISTED.replace('"ranksPerNode":8', '"ranksPerNode":16'), gpus_per_node=8)
    assert (placed.gpus_per_node, placed.nodes) == (8, 2)
    split = samples.RCCL_LISTED
    for both in (
        ("15.984390", "14.918764"),
        ("16.316017", "15.228282"),
        ("23.377883", "21.819358"),
        ("30.270670", "28.252625"),
    ):
        split = split.replace(*both)
    (split,) = read(split)
    assert (split.tables[0].workers, split.tables[0].times) == (8, cluster.tables[0].times)


@pytest.mark.parametrize(
    ("found", "put", "told"),
    [
        ('"wrong":"N/A"', '"wrong":"3"', "entry 1: has 3 wrong results and is left out"),
        ('"wrong":"N/A"', '"wrong":"0"', None),
    ],
)
def test_wrong_results_of_rccl_tests_are_left_out(found, put, told):
    heard = []
    text = Text("file.txt", samples.RCCL_LISTED.replace(found, put), tell=heard.append)
    (cluster,) = IMPORT_FORMATS["rccl-tests"].read(text, HINTS)
    assert [one.partition(": '")[0] for one in heard] == ([told] if told else [])
    assert cluster.tables[0].times == pytest.approx([84.1e-6, 129.9e-6] if told else [60.25e-6, 84.1e-6, 129.9e-6])


def test_a_line_of_rccl_tests_that_was_cut_is_left_out():
    heard = []
    text = Text("file.txt", samples.SAMPLES["rccl-tests"][2][:-40], tell=heard.append)
    (cluster,) = IMPORT_FORMATS["rccl-tests"].read(text, HINTS)
    assert len(cluster.tables[0].sizes) == 19
    assert [one.partition(" is left out")[0] for one in heard] == ["entry 38: was cut and"]


def test_osu():
    (cluster,) = read(samples.OSU_TEXT, workers=8)
    assert cluster.tables[0].times == pytest.approx((31.92e-6, 67.49e-6, 1905.11e-6))
    with pytest.raises(DataError, match="give --workers"):
        read(samples.OSU_TEXT)


def test_csv_tables_are_grouped_by_what_tells_them_apart():
    (cluster,) = read(samples.TABLE_CSV)
    assert [table.workers for table in cluster.tables] == [8, 16]
    assert cluster.tables[0].times == pytest.approx((19e-6, 22e-6))
    assert (cluster.gpus_per_node, cluster.nodes) == (8, 2)
    clusters = {cluster.name: cluster for cluster in read(samples.GROUPED_CSV)}
    assert set(clusters) == {"mine-a-4", "mine-a-1", "mine-b-4"}
    assert clusters["mine-b-4"].tables[0].times == pytest.approx((8e-6, 10e-6))
    assert clusters["mine-a-1"].gpus_per_node == 1
    fits = {cluster.name: cluster for cluster in read(samples.FITS_CSV)}
    assert osf.cost_of(fits["mine-paper-10gbe"], 16)(10**6) == pytest.approx(9.0e-4 + 7.4e-4)


def test_layer_profiles():
    (workload,) = read(samples.LAYERS_CSV, batch_size=4)
    assert workload.gradients.names == ("fc", "conv")
    assert workload.compute_time == pytest.approx(2.9e-3)
    assert workload.layers[2].dtype == "bfloat16"
    (graph,) = read(samples.GRAPH_TEXT)
    assert [layer.name for layer in graph.layers] == ["node2", "node3"]
    assert graph.layers[1].activation_bytes == 6291456 + 2 * 131072
    assert graph.layers[0].backward_time == pytest.approx(6.405e-3)
    (log,) = read(samples.DDP_JSON)
    assert log.gradients.sizes == (4000, 12000)
    assert log.compute_time == pytest.approx(12e-3)


TABLES = (
    "aiconfigurator/nccl_all_reduce_half", "aws-efa/g5_8xlarge_2nodes_25g", "aws-efa/p4d_2nodes_2022",
    "aws-efa/p4d_2nodes_nccl2.8", "aws-hyperpod/2nodes_1gpu_each", "azure/nd_allreduce_busbw",
    "bcaffe/osu_allreduce_2_4_8", "coreweave/gb200_h100_large", "deepops/dgx1_v100_2nodes_roce2x100g",
    "deepops/dgxa100_2nodes_8xhdr", "deepops/dgxa100_4nodes", "echo-azure-nda100v4/nccl_all_reduce_2to128",
    "gcp-a3mega/h100_2nodes", "issues/6kd_2nodes_ib_p2p_off", "mgwfbp/alpha_beta", "oci/a100_2nodes",
    "stas00/all_reduce_bench", "vidur/a100_dgx_all_reduce", "vidur/a100_pairwise_nvlink_all_reduce",
    "vidur/a40_all_reduce_old", "vidur/v100_all_reduce_old", "vtrain/nccl_lut_1node",
)  # fmt: skip
"""Files of comm_tables; another one that is added there may be of any kind."""


def test_every_published_table_loads(data_folder):
    """Each figure read is one that stands there."""
    for path in (data_folder / "comm_tables" / f"{name}.csv" for name in TABLES):
        told: list[str] = []
        clusters = import_file(path, Hints(path.stem), tell=told.append)
        assert clusters
        assert [path.stem] * len(told) == ["a100_dgx_all_reduce"] * len(told), "which has 2 GPUs on 1 node and on 2"
        with open(path, newline="") as file:
            rows = list(csv.DictReader(file))
        for cluster in clusters:
            for table in cluster.tables:
                assert osf.cost_of(cluster, table.workers)(table.sizes[0]) == table.times[0]
            assert sum(len(table.sizes) for table in cluster.tables) + len(cluster.fits) <= len(rows)


def test_published_profiles_load_as_bundled(data_folder):
    """PipeDream's table as CSV gives the layer times of the bundled profile (which leaves the input row out)."""
    (workload,) = import_file(data_folder / "layer_profiles/pipedream/vgg16.csv", Hints("vgg16"))
    bundled = osf.load_workload("vgg16-pipedream")
    assert [layer.backward_time for layer in workload.layers[1:]] == pytest.approx(
        [layer.backward_time for layer in bundled.layers]
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("hello", "no format that osfmodel reads"),
        (samples.TABLE_CSV.replace("16,2,1024", "16,2,-1"), "line 4"),
        (samples.TABLE_CSV + "16,2\n", "line 6: has 2 columns, the header 7"),
        (samples.LAYERS_CSV.replace("0.5,1.5", "0.5,nan"), "line 2: is not a finite number"),
        (samples.log().replace("float", "flo at"), "line 10: is not a row of the table, and no other line is"),
        (samples.LAYERS_CSV.replace("relu", "conv"), "two layers named 'conv'"),
        (samples.GRAPH_TEXT.replace("\tnode2 -- node3", "\tnode2 -> node3"), "line 5: is neither a node nor an edge"),
        (samples.GRAPH_TEXT.partition("node2")[0], "has no nodes with times"),
        (samples.DDP_JSON.replace("4000, 12000", "0, 0"), "names no buckets"),
        (samples.JSON_TEXT.replace('"size": 2097152', '"size": "big"'), r"results\[1\]: needs a size"),
        (samples.JSON_TEXT[:-20], "is not valid JSON"),
        (samples.DDP_JSON.replace("8000000", "-1"), "avg_backward_compute_time is -1"),
        (samples.OSU_TEXT + "9\n", "line 6: is not a size with a latency"),
        (samples.RCCL_SPACED.replace("88.905", "fast"), "line 4: is not a number: 'fast'"),
        (samples.RCCL_SPACED.replace("ReduceScatter", "Broadcast"), "line 2: is a test of broadcast; read are only"),
        (samples.RCCL_SPACED.replace(" 4, ", " 2, "), "line 2: busbw/algbw is 0.75, but reduce_scatter with 2 workers"),
        (samples.RCCL_LISTED.replace(":60.250000", ":[1]"), r"entry 2: is not a number: '\[1\]'"),
    ],
)
def test_a_bad_line_names_file_line_and_text(tmp_path, content, message):
    path = tmp_path / "file.txt"
    path.write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        import_file(path, Hints("mine", workers=4 if "OSU" in content else None))
    assert "file.txt" in str(caught.value)
    assert "\n" not in str(caught.value)


DAMAGE = ["", "x", "-", ",", "\n", "9" * 30, "\0", "é", "{"]


@settings(max_examples=examples(30))
@given(
    st.sampled_from([sample for group in samples.SAMPLES.values() for sample in group]),
    st.lists(
        st.tuples(st.integers(0, 3000), st.sampled_from(["", "x", "-", ",", "\n", "9" * 30, "\0", "é", "{"])),
        max_size=5,
    ),
    st.integers(0, 3000),
)
def test_damaged_files_are_errors_with_a_place_or_read(content, damage, cut):
    """Mutated and truncated: a noun, or an OsfError on one line, never anything else."""
    for place, piece in damage:
        content = content[: place % (len(content) + 1)] + piece + content[place % (len(content) + 1) + 1 :]
    text = Text("file.txt", content[: cut or None])
    try:
        result = IMPORT_FORMATS[recognise(text)].read(text, Hints("mine", workers=4))
    except OsfError as error:
        result = str(error).splitlines()
    assert len(result) >= 1
    assert not isinstance(result[0], str) or len(result) == 1


@settings(max_examples=examples(15))
@given(st.binary(max_size=400))
def test_binary_files_are_refused(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("binary") / "file"
    path.write_bytes(content)
    with pytest.raises(OsfError, match=f"{path}: "):
        import_file(path, HINTS)


def test_the_command(tmp_path):
    source = tmp_path / "run.log"
    source.write_text(samples.NEW_TEXT)
    shown = invoke(["import", str(source)])
    assert shown.stdout == "cluster run: all_reduce with 4 workers, 1.000 MiB to 4.000 MiB\n"
    target = tmp_path / "cluster.json"
    assert invoke(["import", str(source), "-o", str(target)]).exit_code == 0
    result = invoke(["predict", "resnet50-v100", "--cluster", str(target), "--workers", "4"])
    assert result.exit_code == 0
    several = tmp_path / "several.csv"
    several.write_text(samples.GROUPED_CSV)
    refused = invoke(["import", str(several), "-o", str(tmp_path / "one.json")])
    assert refused.exit_code == 2
    assert "holds 3 clusters" in refused.stderr
    folder = tmp_path / "clusters"
    folder.mkdir()
    assert invoke(["import", str(several), "-o", str(folder)]).exit_code == 0
    assert sorted(path.name for path in folder.iterdir()) == [
        "several-a-1.json",
        "several-a-4.json",
        "several-b-4.json",
    ]
    assert osf.load_cluster(folder / "several-b-4.json").name == "several-b-4"


def test_a_fit_instead_of_the_table(tmp_path):
    """The fit is told on stderr and in the source; the file prices; jumps are told with and without a fit."""
    source = tmp_path / "run.csv"
    rows = [(n, 2**k, 20 + n + 2**k * (3 if n == 8 and k == 18 else 1) / 1e4) for n in (2, 4, 8) for k in range(10, 24)]
    source.write_text("n_gpus,bytes,time_us\n" + "".join(f"{n},{size},{time}\n" for n, size, time in rows))
    jump = "256.0 KiB is slower than 512.0 KiB at 8 workers"
    plain = invoke(["import", str(source)])
    assert jump in plain.stderr
    assert "2 workers" in plain.stdout
    for model, counts in (
        ("piecewise", "pieces for 2, 4, 8 workers"),
        ("protocols", "protocols, for any worker count"),
    ):
        arguments = ["import", str(source), "--gpus-per-node", "8", "--fit", model]
        shown = invoke(arguments)
        assert counts in shown.stdout
        assert jump in shown.stderr
        assert f"{model} fitted: median residual" in shown.stderr
        assert "1.000 KiB to 8.000 MiB; 2, 4, 8 workers" in shown.stderr
        assert invoke([*arguments, "-o", str(tmp_path / f"{model}.json")]).exit_code == 0
        cluster = osf.load_cluster(tmp_path / f"{model}.json")
        assert f"{model} fitted: median residual" in cluster.source.conditions
        assert cluster.tables == ()
        assert osf.cost_of(cluster, 4)(2**20) == pytest.approx(128.9e-6, rel=0.05)
    assert cluster.nodes is None
    assert osf.cost_of(cluster, 6)(2**20) > 0


def test_data_that_cannot_be_fitted_is_refused(tmp_path):
    layers, table = tmp_path / "layers.csv", tmp_path / "table.csv"
    layers.write_text(samples.LAYERS_CSV)
    refused = invoke(["import", str(layers), "--fit", "hockney"])
    assert (refused.exit_code, "'layers' has no all-reduce table to fit" in refused.stderr) == (2, True)
    table.write_text("n_gpus,bytes,time_us\n8,1024,10\n8,2048,11\n")
    refused = invoke(["import", str(table), "--fit", "protocols"])
    assert (refused.exit_code, "needs all-reduce times at two worker counts" in refused.stderr) == (1, True)


def test_the_reference_names_every_column():
    text = (ROOT / "docs/reference/formats.md").read_text(encoding="utf-8")
    names = [*tables.SIZES, *tables.WORKERS, *tables.TIMES, *layers.NAMES, *layers.BYTES]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_a_folder_that_is_written_as_one_is_made(tmp_path):
    """It gets the nouns in the file, each under its name; a folder inside a missing one is not made."""
    (tmp_path / "run.log").write_text(samples.NEW_TEXT)
    asked = ["import", str(tmp_path / "run.log"), "-o"]
    assert invoke([*asked, f"{tmp_path}/job/"]).exit_code == 0
    assert [path.name for path in (tmp_path / "job").iterdir()] == ["run.json"]
    assert invoke([*asked, f"{tmp_path}/job/"]).exit_code == 0
    result = invoke([*asked, f"{tmp_path}/no/such/"])
    assert (result.exit_code, "give a folder such as job/" in result.stderr) == (2, True)
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--workers", "7"], "--workers 7 is not taken: by the trace the job has 2"),
        (["--gpus-per-node", "5"], "--gpus-per-node 5 is more than the job's 2 workers"),
        (["--workers", "2", "--gpus-per-node", "2"], ""),
    ],
)
def test_what_contradicts_a_trace_is_told(words, told):
    result = invoke(["import", *map(str, paths_of("slow-link")), *words])
    assert result.exit_code == 0
    said = [line for line in result.stderr.splitlines() if "warning: --" in line]
    assert said == ([f"osf: warning: {told}"] if told else [])


@pytest.mark.parametrize("command", ["import", "explain"])
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04\x14\0\0\0", "is a zip archive, which is not read: unpack it"),
        (gzip.compress(bytes(10240), mtime=0), "holds nothing but zeros"),
    ],
)
def test_binary_files_are_named(tmp_path, command, content, told):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    result = invoke([command, str(path)])
    assert (result.exit_code, f"{path}: {told}" in result.stderr) == (1, True)


@pytest.mark.parametrize("name", ["../evil", "../../evil", "/evil", "a/b", "a\\b", "..", "."])
def test_a_name_does_not_lead_out_of_the_folder(tmp_path, name):
    """Names from the command line and from files alike; where it makes no file's name it is kept."""
    (tmp_path / "run.log").write_text(samples.NEW_TEXT)
    asked = ["import", str(tmp_path / "run.log"), "--name", name, "-o"]
    own = tmp_path / "own.json"
    assert invoke([*asked, str(own)]).exit_code == 0
    assert osf.load_cluster(own).name == name
    for words in ([*asked, f"{tmp_path}/job/"], ["import", str(own), "-o", f"{tmp_path}/job/"]):
        result = invoke(words)
        assert (result.exit_code, f"--name {name!r}: it makes the name of a file there" in result.stderr) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own.json", "run.log"]


def layouts(*rows):
    """A CSV of (workers, GPUs per node) at three sizes, each measured twice."""
    lines = [f"{count},{each},{size},{count * size / 1000}" for count, each in rows for size in (1000, 2000, 4000)]
    return "\n".join(["n_gpus,gpus_per_node,bytes,time_us", *lines, *lines])


def test_repeats_do_not_make_clusters_of_one_machine():
    """With each row twice, a run on 2, 4 and 8 GPUs of a node became three clusters, none of which could be fitted."""
    told = []
    (cluster,) = IMPORT_FORMATS["csv-table"].read(Text("t.csv", layouts((2, 2), (4, 4), (8, 8))), Hints("one"))
    assert ([table.workers for table in cluster.tables], cluster.gpus_per_node) == ([2, 4, 8], 8)
    assert fitted(cluster, "protocols").protocols
    (wide,) = IMPORT_FORMATS["csv-table"].read(Text("t.csv", layouts((2, 2), (8, 8), (16, 8))), Hints("one"))
    assert (wide.gpus_per_node, wide.nodes) == (8, 2)
    assert told == []


@pytest.mark.parametrize("rows", [[(2, 1), (2, 2), (4, 2)], [(2, 2), (4, 2), (8, 8)], [(4, 2), (8, 4)]])
def test_layouts_that_no_one_cluster_has_are_told(rows):
    """4 workers on nodes of 2, and 8 on one of 8: each layout is a cluster, and that a fit is of each is said."""
    told = []
    clusters = IMPORT_FORMATS["csv-table"].read(Text("t.csv", layouts(*rows), tell=told.append), Hints("one"))
    assert [cluster.gpus_per_node for cluster in clusters] == list(dict.fromkeys(each for _, each in rows))
    (said,) = told
    assert "each number makes a cluster, and --fit fits each by itself" in said
