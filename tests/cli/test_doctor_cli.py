"""``osf doctor`` in every format, its exit codes, and its errors."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace

import pytest

import osfmodel as osf
from tests.commands import invoke
from tests.formats import samples


def doctor(*words):
    return invoke(["doctor", *map(str, words)])


SLOW = ("emulated-4x1gbit", "--against", "ring:50us,5Gbps")


def test_all_formats_say_the_same():
    document = json.loads(doctor(*SLOW, "--json").stdout)
    assert document["cause"] == "bandwidth"
    assert doctor(*SLOW).stdout.startswith(document["verdict"])
    rows = list(csv.DictReader(io.StringIO(doctor(*SLOW, "--format", "csv").stdout)))
    assert [int(row["bytes"]) for row in rows] == [row["bytes"] for row in document["sizes"]]
    assert sum(one["probability"] for one in document["hypotheses"]) == pytest.approx(1)
    assert "cause: bandwidth" in doctor(*SLOW, "--format", "yaml").stdout
    (experiment,) = document["experiments"]
    assert experiment["fault"] == "bandwidth"
    assert experiment["experiment"].split(";")[0] in " ".join(doctor(*SLOW).stdout.split())


def test_a_size_has_price_bus_bandwidth_and_percentile():
    row = json.loads(doctor("dgx-a100-hdr-2nodes", "--json").stdout)["sizes"][-1]
    assert row["ratio"] == pytest.approx(row["time_s"] / row["expected_s"])
    assert row["bus_bandwidth_bytes_per_s"] == pytest.approx(2 * 15 / 16 * row["bytes"] / row["time_s"])
    assert 0 <= row["percentile_low"] < row["percentile_high"] <= 100
    assert row["peers"] > 2


def test_the_algorithm_behind_each_expected_time_is_said():
    """By hand: a message of a few KiB goes down a tree as LL, and from 512 MiB on a ring is faster."""
    document = json.loads(doctor("azure-a100-hdr", "--json").stdout)
    ways = {row["bytes"]: row["assumed"] for row in document["sizes"] if row["workers"] == 64}
    assert (ways[2**11], ways[2**29]) == ("tree/LL", "ring/Simple")
    shown = " ".join(doctor("azure-a100-hdr").stdout.split())
    assert "Expected of NCCL: tree/LL from 2.000 KiB, tree/LL128 from 256.0 KiB, ring/LL128 from 128.0 MiB" in shown
    assert "Expected of NCCL" not in doctor(*SLOW).stdout


def test_bus_bandwidth_is_in_gigabytes_as_nccl_tests_writes_it(tmp_path):
    """The column of its own table, within what both round."""
    (tmp_path / "run.log").write_text(samples.log(hosts=1, gpus=8))
    rows = [line.split() for line in samples.log(hosts=1, gpus=8).splitlines() if " float " in line]
    shown = doctor(tmp_path / "run.log", "--against", "nccl:h100x8").stdout
    stated = [float(one) for one in re.findall(r"(\S+) GB/s", shown)]
    assert stated == pytest.approx([float(row[7]) for row in rows], abs=0.02)
    assert "bps" not in shown.partition("bus bandwidth")[2]


def test_fail_gates_on_a_named_fault_alone():
    assert doctor(*SLOW).exit_code == 0
    assert doctor(*SLOW, "--fail").exit_code == 1
    assert doctor("dgx-a100-hdr-2nodes", "--fail").exit_code == 0
    assert doctor("dgx1-v100-roce", "--fail").exit_code == 0, "cannot tell is no fault"


def test_logs_of_nccl_tests_are_read(tmp_path):
    for hosts in (1, 2):
        (tmp_path / f"n{hosts}.log").write_text(samples.log(hosts=hosts, gpus=8))
    result = doctor(tmp_path / "n1.log", tmp_path / "n2.log", "--against", "nccl:a100x8,200Gbps,ib", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert {(row["file"], row["workers"], row["nodes"]) for row in document["sizes"]} == {("n1", 8, 1), ("n2", 16, 2)}


@pytest.mark.parametrize("file", ["rccl-tests-lines.json", "rccl-tests.csv", "nccl-rank-tags.log"])
def test_files_as_they_come_are_read(file):
    result = doctor(samples.DATA / file, "--against", "nccl:mi300xx4" if "rccl" in file else "nccl:a100x8", "--json")
    assert result.exit_code == 0, result.output
    sizes = json.loads(result.stdout)["sizes"]
    assert {row["workers"] for row in sizes} == {4 if "rccl" in file else 8}
    assert [row["bytes"] for row in sizes] == [2**power for power in range(10, 29 if "rccl" in file else 31)]


def test_wrong_input_is_one_line_with_a_remedy(tmp_path):
    osf.save(replace(osf.load_cluster("azure-a100-hdr"), name="mine"), tmp_path / "mine.json")
    (tmp_path / "broken.log").write_text("# nThread 1\n")
    for words, status, said in (
        (["nothing.log"], 1, "nothing.log: there is no such file"),
        (["nothing"], 2, "no cluster named 'nothing'"),
        (["azure-a100-hdr", "azure-a100-hdr"], 2, "azure-a100-hdr is given twice"),
        ([tmp_path / "broken.log", "--against", "nccl:h100x8"], 1, "broken.log"),
        ([tmp_path / "mine.json"], 2, "give --against, such as nccl:h100x8,400Gbps,ib"),
        ([tmp_path / "mine.json", "--against", "nccl:a100x8"], 1, "workers do not fit"),
        (["v100-10gbe"], 1, "holds no measured times of a collective"),
        ([tmp_path / "mine.json", "--against", "nccl:x100x8"], 2, "unknown GPU"),
        ([tmp_path / "mine.json", "--against", "ring:1us,1Gbps", "-o", tmp_path / "mine.json"], 2, "the file that is"),
    ):
        result = doctor(*words)
        assert (result.exit_code, result.stdout) == (status, ""), result.output
        assert re.fullmatch(r"osf: [^\n]+\n", result.stderr)
        assert said in result.stderr


def test_what_was_not_measured_and_what_may_be_the_same_hosts_are_said(tmp_path):
    found = osf.load_cluster("emulated-4x1gbit")
    (table,) = (one for one in found.tables if one.collective == "all_reduce")
    small = replace(table, sizes=table.sizes[:5], times=table.times[:5], startups=(), trains=())
    osf.save(replace(found, name="small", tables=(small,)), tmp_path / "small.json")
    slow = replace(table, times=tuple(4 * time for time in table.times), startups=(), trains=())
    for name, one in (("a", table), ("b", slow)):
        osf.save(replace(found, name=name, tables=(one,)), tmp_path / f"{name}.json")
    alone = doctor(tmp_path / "small.json", "--against", "ring:50us,1Gbps")
    assert "no size shows middle and bandwidth: give a log of more sizes" in alone.stdout
    twice = doctor(tmp_path / "a.json", tmp_path / "b.json", "--against", "ring:50us,1Gbps")
    assert ("if the files are of the same hosts" in twice.stdout) == ("slow-host" in twice.stdout)
    assert "slow-host" in twice.stdout


def test_a_log_with_wrong_results_or_cut_rows_is_not_called_healthy_as_a_whole(tmp_path):
    """Rows that are left out are a finding, in the verdict and in the notes."""
    words = ("--against", "nccl:h100x4", "--json")
    rows = samples.log().splitlines()
    times = {"1048576": "32.47", "2097152": "43.5", "4194304": "65.2"}
    fast = [
        f"{size} {int(size) // 4} float sum -1 {times[size]} 0 0 0 {times[size]} 0 0 0"
        if (size := row.split()[0]) in times
        else row
        for row in rows
    ]
    place = next(i for i, row in enumerate(fast) if row.startswith("2097152"))
    wrong_in_place = [*fast[:place], fast[place][:-1] + "7", *fast[place + 1 :]]
    wrong_outside = [*fast[:place], fast[place].replace("0 0 0", "0 0 7", 1), *fast[place + 1 :]]
    cut = [*fast[:place], " ".join(fast[place].split()[:6]), *fast[place + 1 :]]
    for name, lines in (("whole", fast), ("in", wrong_in_place), ("outside", wrong_outside), ("cut", cut)):
        log = tmp_path / f"{name}.log"
        log.write_text("\n".join(lines))
        found = json.loads(doctor(log, *words).stdout)
        assert found["cause"] == "healthy", found
        assert ("not all of the files is in order" in found["verdict"]) == (name != "whole"), (name, found["verdict"])
        assert any("left out" in remark for remark in found["notes"]) == (name != "whole")
