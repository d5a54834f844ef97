"""``osf explain`` on recorded traces of real runs with a planted fault each, in every format."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from functools import cache
from pathlib import Path

import pytest
from rich.console import Console

import osfmodel as osf
from osfmodel.entities.files.documents import document_of, encode
from osfmodel.formats import load_trace
from osfmodel.formats.source_text import Text
from osfmodel.planning.explaining import explain
from osfmodel.show.explained import Explained
from tests.commands import invoke
from tests.formats import traces
from tests.kept import kept
from tests.live.explained import EXPECTED, STORED, paths_of


@cache
def explained(*words):
    return invoke(["explain", *map(str, words)])


@cache
def seen(name):
    return kept(explain, load_trace(paths_of(name)))


def document(*words):
    result = explained(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_planted_cause_is_named(name):
    found = seen(name)
    assert found.cause == EXPECTED[name]
    assert found.straggler == (1 if name.endswith("slow-rank") else None)


SAID = ["slow-link", "slow-rank", "fsdp2-slow-rank"]


@pytest.mark.parametrize(
    "name", [*SAID, *(pytest.param(name, marks=pytest.mark.long) for name in EXPECTED if name not in SAID)]
)
def test_the_command_says_what_is_found(name):
    found = document(*paths_of(name))
    library = seen(name)
    assert (found["cause"], found["straggler_rank"]) == (library.cause, library.straggler)
    first = explained(*paths_of(name)).stdout.partition(".")[0]
    assert " ".join(first.split()) in found["verdict"] == library.verdict


@pytest.mark.parametrize("name", EXPECTED)
def test_the_replay_is_the_step(name):
    """Causes, computation and what the replay misses add up to the step, and it misses little of real steps."""
    found = seen(name)
    assert sum(found.gains.values()) + found.left + found.missed == pytest.approx(found.step_time)
    # Collectives that share a slow link end at other times on each rank; the replay has one time for all.
    assert found.replayed == pytest.approx(found.step_time, rel=0.04 if name == "fsdp2-slow-link" else 0.02)
    assert min(found.gains.values()) >= 0


MENDED_BY = {
    "slow-link": {"network-10", "powersgd"},
    "slow-rank": {"balance"},
    "tiny-buckets": {"plan"},
    "giant-bucket": {"network-10", "powersgd", "plan"},
    "input-stall": {"input"},
    "find-unused": {"static-graph"},
}


@pytest.mark.parametrize("name", MENDED_BY)
def test_what_mends_it_brings_most(name):
    """Best first; what would mend the planted fault saves at least half of what that costs."""
    found = seen(name)
    priced = [remedy for remedy in found.remedies if remedy.throughput is not None]
    factors = [remedy.throughput for remedy in priced]
    assert factors == sorted(factors, reverse=True)
    cost = found.gains[found.cause]
    saving = {remedy.name for remedy in priced if found.step_time - remedy.step_time > cost / 2}
    assert MENDED_BY[name] <= saving


@pytest.mark.parametrize(
    ("width", "missing"), [(80, ("hidden", "start")), (60, ("hidden", "start", "ready")), (120, ())]
)
@pytest.mark.parametrize("name", ["slow-link", "tiny-buckets"])
def test_each_message_has_a_line_on_a_narrow_terminal(name, width, missing):
    """The widest columns are as in print: times of five digits, with their units."""
    console = Console(width=width, record=True, file=io.StringIO(), force_terminal=True)
    Explained(seen(name)).show(console)
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    (place,) = [place for place, line in enumerate(lines) if line.startswith("message")]
    head, below = lines[place], lines[place:]
    columns = re.split(r" {2,}", head)
    assert [name for name in ("hidden", "start", "ready", "exposed") if name not in columns] == list(missing)
    rows = [line for line in lines if re.match(r"\d+ all-reduce", line)]
    assert len(rows) == min(24, 8 if name == "slow-link" else 60)
    assert all(len(re.split(r" {2,}", row)) == len(columns) for row in rows)
    assert any(line.startswith("No room for") for line in below) == bool(missing)


def test_there_is_nothing_to_gain_in_a_healthy_job():
    found = document(*paths_of("healthy"))
    same_samples = [one for one in found["remedies"] if one["throughput_factor"] and "accumulate" not in one["remedy"]]
    assert max(one["throughput_factor"] for one in same_samples) < 1.05
    assert "nothing to gain" in found["verdict"]


def test_two_workers_on_a_slow_link_are_slower_than_one():
    """The question that is asked most."""
    remedies = {one["remedy"]: one for one in document(*paths_of("slow-link"))["remedies"]}
    assert remedies["workers-1"]["throughput_factor"] > 1.2


def test_the_json_adds_up():
    found = document(*paths_of("giant-bucket"))
    assert found["schema_version"] == 1
    parts = {name: value for name, value in found["parts"].items() if value is not None}
    assert sum(parts.values()) == pytest.approx(found["step_time_s"])
    assert sum(row["costs_s"] for row in found["causes"]) == pytest.approx(found["replayed_step_time_s"])
    assert [row["bytes"] for row in found["buckets"] if row["gradients"]] == [8 * 2**20]
    assert {step["step"] for step in found["steps"]} == {3, 4, 5}


def test_csv_has_a_row_for_each_bucket_and_yaml_the_whole():
    rows = list(csv.DictReader(io.StringIO(explained(*paths_of("healthy"), "--format", "csv").stdout)))
    assert [row["bytes"] for row in rows] == ["131072"] * 8
    assert "cause: compute" in explained(*paths_of("healthy"), "--format", "yaml").stdout


def test_one_rank_alone_says_how_to_record_the_others():
    found = document(paths_of("slow-rank")[0])
    assert found["parts"]["waiting_s"] is None
    assert found["straggler_rank"] is None
    assert any("traces of all ranks" in note for note in found["notes"])


def test_a_cluster_says_what_the_network_could_do():
    found = document(*paths_of("slow-link"), "--cluster", "ring:100us,1Gbps")
    possible = found["buckets"][0]["possible_bus_bandwidth_bytes_per_s"]
    assert possible == pytest.approx(262144 / (2 * 100e-6 + 262144 / 125e6), rel=1e-6)
    assert found["cluster"] == "ring:100us,1Gbps"


def test_one_step_can_be_asked_for():
    assert [step["step"] for step in document(*paths_of("healthy"), "--steps", 4)["steps"]] == [4]
    assert [step["step"] for step in document(*paths_of("healthy"), "--steps", "4..9")["steps"]] == [4, 5]
    result = explained(*paths_of("healthy"), "--steps", 99)
    assert result.exit_code == 1
    assert "it has 3..5" in result.output


REPORT = ["report", "alexnet-pipedream", "--cluster", "ring:50us,10Gbps", "--workers", 2]
READERS = [["import"], ["explain"], [*REPORT, "-o", "out.json", "--trace"]]


@pytest.mark.parametrize("reader", READERS, ids=["import", "explain", "report"])
def test_all_commands_are_told_the_same_of_traces(reader, tmp_path, monkeypatch):
    """The log packed with gzip, steps as a range, the model by name, and what is wrong with them."""
    monkeypatch.chdir(tmp_path)
    Path("rank0.json").write_text(traces.text(traces.Job(sizes="nowhere", shapes=False, late=(0, 0), clocks=(0, 0))))
    Path("ddp.json.gz").write_bytes(gzip.compress(b'{"rebuilt_bucket_sizes": "1200, 1200, 720", "dtypes": "float"}'))

    def told(*words):
        result = invoke(list(map(str, [*reader, "rank0.json", *words])))
        return result.exit_code, result.output

    code, output = told("--ddp-logging", "ddp.json.gz", "--steps", "5..6")
    assert code == 0, output
    for words, said in (
        (["--steps", "last"], "--steps last: give the first and the last, such as 5..7"),
        (["--steps", "7..5"], "--steps 7..5: give the first and the last, such as 5..7"),
        (["--steps", "90..91"], "rank 0 has no steps 90..91: it has 5..7"),
        (["--steps", "90..9999999999"], "rank 0 has no steps 90..9999999999: it has 5..7"),
        (["--ddp-logging", "missing.json"], "missing.json cannot be read"),
        (
            ["--model", "resnet50-v100"],
            "the model 'resnet50-v100' has 161 gradients, a step of the trace 'rank",
        ),
    ):
        code, output = told(*words)
        assert code in (1, 2)
        assert said in output


def test_a_trace_says_whether_its_host_computes():
    """Recorded over gloo on CPUs; a job on GPUs is none, whatever its library is called."""
    assert [rank.host_computes for rank in load_trace(paths_of("healthy")).ranks] == [True, True]
    made = traces.trace(traces.Job(late=(0, 0), clocks=(0, 0)))
    made["distributedInfo"] = {**made.get("distributedInfo", {}), "backend": "gloo"}
    (rank,) = load_trace([Text("a.json", json.dumps(made))]).ranks
    assert (rank.backend, rank.host_computes) == ("gloo", False)


def test_what_a_report_is_told_of_a_trace_needs_one():
    result = invoke([*map(str, REPORT), "--steps", "5"])
    assert result.exit_code == 2
    assert "give --trace FILE" in result.output


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "TRACE"),
        (["nowhere.json"], 1, "nowhere.json"),
        ([str(STORED / "healthy-0.json.gz")] * 2, 1, "same trace twice"),
        ([str(STORED / "healthy-0.json.gz"), "--ddp-logging", "nowhere.json"], 1, "nowhere.json"),
        ([str(STORED / "healthy-0.json.gz"), "--cluster", "nowhere"], 2, "no cluster named"),
        ([str(STORED / "healthy-0.json.gz"), "--format", "code"], 2, "'code' is not one of"),
    ],
)
def test_wrong_usage_is_one_clear_line(words, code, said):
    result = explained(*words)
    assert result.exit_code == code
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_library_takes_paths_or_a_trace():
    found = seen("slow-rank")
    assert (found.cause, found.straggler) == ("imbalance", 1)
    assert found.remedies[0].name == "balance"
    alone = osf.explain(str(paths_of("slow-rank")[0]))
    assert alone.straggler is None


def test_no_trace_is_written_over(tmp_path):
    """A trace is refused as the output file of an explanation or a report, named as a file or lying in a folder."""
    trace = tmp_path / "rank0.json.gz"
    trace.write_bytes((STORED / "slow-link-0.json.gz").read_bytes())
    before = trace.read_bytes()
    report = ["report", "resnet50-v100", "--cluster", "v100-10gbe", "--workers", "2"]
    for given in (trace, tmp_path):
        for words in (["explain", given, "-o", trace], [*report, "--trace", given, "-o", trace]):
            result = invoke(words)
            assert result.exit_code == 2
            assert "is the file that is read: give another name" in result.output
            assert trace.read_bytes() == before


def test_traces_of_two_jobs_are_refused():
    """A healthy rank beside one of a job on a slow link: on no one clock were they in the same collectives."""
    words = ["explain", *(str(STORED / f"{name}.json.gz") for name in ("healthy-0", "slow-link-1"))]
    result = invoke(words)
    assert result.exit_code == 1
    assert "slow-link-1.json.gz do not fit together: " in result.output


def test_one_rank_of_several_does_not_blame_the_network_alone():
    """The other rank is slow; with both traces the verdict says so."""
    one = osf.explain([STORED / "slow-rank-0.json.gz"])
    assert one.verdict.startswith(
        "The network or a slower rank: the trace of one rank does not tell which: give those of all."
    )
    assert "does not tell" not in seen("slow-rank").verdict


@pytest.mark.parametrize("case", ["slow-link", "giant-bucket", "healthy"])
def test_no_remedy_of_communication_is_faster_than_computation(case):
    """The computation of one worker remains, however fast the network."""
    found = seen(case)
    least = 0.98 * (found.parts.compute + found.parts.idle)
    priced = [remedy for remedy in found.remedies if remedy.name.startswith(("network", "half", "powersgd", "workers"))]
    assert priced
    assert all(remedy.step_time >= least for remedy in priced if remedy.step_time is not None)


def test_a_report_beside_the_trace_of_another_job_says_so(tmp_path):
    words = [*REPORT[:-1], "4", "-o", str(tmp_path / "x.json")]
    result = invoke([*words, *(f"--trace={path}" for path in paths_of("slow-link"))])
    assert result.exit_code == 0
    assert "is of 2 workers, the prediction of 4" in result.output
    assert "has gradients of 2.000 MiB, the workload of 233.1 MiB: check that both are of one job" in result.output


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("w.json", osf.load_workload("resnet50-v100"), "is a file of osfmodel, not a profiler trace: osf predict,"),
        ("l.csv", "name,bytes,forward_ms,backward_ms\na,4,1,1\n", "is csv-layers (CSV of layers: "),
        ("t.csv", "n_gpus,bytes,time_us\n2,8,10\n2,16,11\n", "not a profiler trace: convert it with osf import"),
        ("t.txt", "hello world", "is not a profiler trace that osfmodel reads (kineto, nsight-systems)"),
        ("e.json", "", "is empty"),
    ],
)
def test_files_that_are_no_traces_are_named_for_what_they_are(tmp_path, name, content, said):
    file = tmp_path / name
    file.write_bytes(content.encode() if isinstance(content, str) else encode(document_of(content)).encode())
    result = explained(file)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"osf: {file}: ")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["slow-rank", pytest.param("tiny-buckets", marks=pytest.mark.long)])
def test_what_a_prompt_host_would_bring_is_called_a_bound(name):
    """In JSON and on the screen, on one line: the profiler's own time is on the host as well."""
    found = {one["remedy"]: one for one in document(*paths_of(name))["remedies"]}
    assert found["host"]["note"] == "upper limit: the profiler slows the host"
    assert found["accumulate-4"]["note"] == "a larger global batch"
    others = [name for name, one in found.items() if one["by"] == "replay" and name != "host"]
    assert not any("profiler" in found[name]["note"] for name in others)
    text = explained(*paths_of(name)).stdout
    (line,) = [line for line in text.splitlines() if line.startswith("a host that never")]
    assert line.endswith(found["host"]["note"])
