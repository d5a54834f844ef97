"""Sweeps: records against predictions, tables that resume, executors, the frontier and influences."""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from random import Random

import pytest

import osfmodel as osf
from osfmodel.entities.errors import DataError, UsageError
from osfmodel.planning.sweep import GIVEN, KEYS, running
from osfmodel.planning.sweep.grid import load_grid
from osfmodel.planning.sweep.influences import influences
from osfmodel.planning.sweep.results import condition, frontier
from osfmodel.planning.sweep.running import records
from osfmodel.planning.sweep.stores import STORES, open_store
from tests.commands import invoke
from tests.draws import many

GRID = {
    "workloads": ["resnet50-v100", "vgg16-pipedream"],
    "clusters": ["v100-10gbe", "azure-a100-hdr"],
    "workers": [32, 17],
    "plans": ["ddp", "wfbp", "fsdp2"],
    "accumulate": [1, 2],
    "prices": 2.0,
}
SEARCHED = {**GRID, "workloads": "vgg16-pipedream", "clusters": "v100-10gbe", "workers": 16, "plans": "optimal"}


@pytest.fixture(scope="module")
def serial():
    return list(osf.sweep(GRID))


def test_a_record_is_what_predict_says(serial):
    assert [tuple(one) for one in serial] == [KEYS] * len(serial)
    for record in [*serial, *osf.sweep(SEARCHED)]:
        if record["error"]:
            assert (record["cluster"], record["workers"]) == ("azure-a100-hdr", 17)
            assert record["step_time_s"] is None
            continue
        workload, cluster = osf.load_workload(record["workload"]), osf.load_cluster(record["cluster"])
        changed = osf.WhatIf(accumulate=record["accumulate"]).of_workload(workload, record["workers"])
        (found,) = osf.compare(changed, cluster, record["workers"], [record["plan"]]).predictions
        assert record["step_time_s"] == found.iteration_time
        assert (record["low_s"], record["high_s"]) == (
            (None, None) if found.band is None else (found.band.low, found.band.high)
        )
        samples = workload.batch_size * record["accumulate"] * record["workers"]
        assert record["samples_per_s"] == pytest.approx(samples / found.iteration_time)
        assert record["cost_per_hour"] == 2.0 * record["workers"]
        assert record["cost"] == pytest.approx(1e6 * 2.0 * record["workers"] / 3600 / record["samples_per_s"])
    assert sum(record["error"] is not None for record in serial) == 12


def test_the_command_of_a_record_predicts_the_same(serial):
    for record in serial[::5]:
        done = invoke([*record["command"].split()[1:], "--json"])
        if record["error"]:
            assert done.exit_code == 1
            continue
        (point,) = json.loads(done.stdout)["points"]
        assert point["step_time_s"] == record["step_time_s"]
        assert point["workers"] == record["workers"]


def test_memory_and_tokens_of_counted_words():
    (record,) = osf.sweep(
        {
            "workloads": "llama3-8b:h100,seq4096,batch1,bf16",
            "clusters": "nccl:h100x8,400Gbps",
            "workers": 64,
            "plans": "fsdp2",
            "tokens": "1B",
            "prices": 3,
            "tp": 2,
        }
    )
    assert record["fits"] == "yes"
    assert record["peak_memory_bytes"] < 80e9
    assert record["tokens_per_s"] == pytest.approx(4096 * record["samples_per_s"])
    assert record["samples_per_s"] == pytest.approx(32 / record["step_time_s"])
    assert record["training_hours"] == pytest.approx(1e9 / record["tokens_per_s"] / 3600)
    assert record["cost"] == pytest.approx(record["training_hours"] * 3 * 64)
    assert record["cost_of"] == "training"


def test_the_command_of_a_point_has_its_memory_and_its_training():
    grid = {
        "workloads": "llama3-8b:h100,seq4096,batch1,bf16",
        "clusters": "nccl:h100x8,400Gbps",
        "workers": 16,
        "plans": "fsdp2",
        "memory": "70GB",
        "optimizer": "sgd",
        "tokens": "1B",
        "prices": 3,
    }
    (record,) = osf.sweep(grid)
    done = invoke([*shlex.split(record["command"])[1:], "--json"])
    (point,) = json.loads(done.stdout)["points"]
    for key in ("step_time_s", "peak_memory_bytes", "fits"):
        assert point[key] == record[key]
    (other,) = osf.sweep({**grid, "optimizer": "adamw"})
    assert other["peak_memory_bytes"] > record["peak_memory_bytes"]
    assert f"{point['training_hours']:.6g}" == f"{record['training_hours']:.6g}"


def test_a_file_that_was_changed_is_read_again(tmp_path):
    path, table = tmp_path / "mine.json", tmp_path / "table.csv"
    workload = osf.load_workload("resnet50-v100")
    grid = {"workloads": str(path), "clusters": "v100-10gbe", "workers": 8}
    osf.save(workload, path)
    (first,) = osf.sweep(grid, table)
    osf.save(osf.WhatIf(compute=0.5).of_workload(workload, 8), path)
    again = list(osf.sweep(grid, table))
    assert again[0] == first
    assert again[1]["step_time_s"] > 1.5 * first["step_time_s"]


def test_points_are_counted_as_they_are_computed():
    words = ["llama3-8b:h100,batch1,bf16", "llama3-8b:a100,batch1,bf16"]
    grid = load_grid({"workloads": words, "clusters": ["nccl:h100x8,400Gbps", "nccl-a100-hdr"], "workers": [16, 32]})
    assert len(grid) == sum(len(batch.points) for batch in grid.batches()) == 6


@pytest.mark.parametrize(
    ("ending", "damage", "message"),
    [
        (".csv", lambda text: text.replace(b",ddp,", b",ddp,x", 1), "row 2 has a cell of another type"),
        (".csv", lambda text: text.replace(b",ddp,", b",ddp", 1), "row 2 does not have"),
        (".csv", lambda text: text.replace(b"ddp", b"\xff\xfe", 1), "not UTF-8"),
        (".jsonl", lambda text: text + b"[1, 2]\n", "line 49 is no record"),
        (
            ".jsonl",
            lambda text: text + text.splitlines()[0].replace(b'"point": ', b'"point": "x')[:-1] + b"\n",
            "line 49",
        ),
        (".jsonl", lambda text: text.replace(b'"workers": 32', b'"workers": "a"', 2), "line 1 is no record"),
    ],
)
def test_a_damaged_table_is_one_line(tmp_path, serial, ending, damage, message):
    path = tmp_path / f"table{ending}"
    store = open_store(path)
    store.append(serial)
    store.close()
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=message) as caught:
        list(osf.load_sweep(path))
    assert "\n" not in str(caught.value)


def test_a_damaged_part_is_one_line_and_other_files_are_left_alone(tmp_path, serial):
    path = tmp_path / "table.parquet"
    osf.sweep(GRID, path)
    (path / "part-of-mine.parquet").write_bytes(b"other")
    assert list(osf.load_sweep(path)) == serial
    (path / "part-000001.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(DataError, match=r"part-000001\.parquet is damaged"):
        list(osf.load_sweep(path))


def test_costs_in_different_units_have_no_frontier():
    grid = {
        "workloads": ["resnet50-v100", "llama3-8b:h100,seq4096,batch1,bf16"],
        "clusters": "nccl:h100x8,400Gbps",
        "workers": 16,
        "prices": 2,
    }
    found = osf.sweep(grid)
    with pytest.raises(UsageError, match="million samples and million tokens") as caught:
        found.best(["cost"])
    said = str(caught.value).partition("--where '")[2].rstrip("'")
    assert len(found.best(["cost"], said)) == 1


@pytest.mark.parametrize("ending", STORES)
def test_tables_give_back_what_was_written_and_resume(tmp_path, serial, ending):
    path = tmp_path / f"table{ending}"
    grid = load_grid(GRID)
    store = open_store(path)
    first = next(grid.batches())
    store.append(records(first))
    store.close()
    computed = []
    found = osf.sweep(grid, path, progress=lambda *said: computed.append(said))
    assert list(found) == serial
    assert {said[1:] for said in computed} == {(len(first.points), len(serial))}
    assert computed[-1][0] == len(serial)
    again = []
    osf.sweep(grid, path, progress=lambda *said: again.append(said))
    assert again == [(len(serial),) * 3]
    assert list(osf.load_sweep(path)) == serial


def test_two_sweeps_do_not_write_one_table(tmp_path):
    """A second process tries each kind of table in turn."""
    stores = {str(tmp_path / f"table{ending}"): open_store(tmp_path / f"table{ending}") for ending in STORES}
    writer = (
        "import sys; from osfmodel import DataError; from osfmodel.planning.sweep.stores import open_store\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n        open_store(path)\n        print('open')\n"
        "    except DataError as error:\n        print(*str(error).splitlines())"
    )
    done = subprocess.run([sys.executable, "-c", writer, *stores], capture_output=True, text=True, check=True)
    for (path, store), said in zip(stores.items(), done.stdout.splitlines(), strict=True):
        database = path.endswith(".duckdb")
        assert ("Could not set lock" if database else "another sweep is writing there: wait") in said, path
        store.close()
        open_store(path).close()


def test_a_database_that_cannot_be_written_is_said_in_one_line(tmp_path, serial):
    store = open_store(tmp_path / "table.duckdb")
    store.close()
    with pytest.raises(DataError, match=r"table\.duckdb cannot be written: "):
        store.append(serial[:1])


def test_points_of_another_grid_do_not_count_as_there(tmp_path):
    path, said = tmp_path / "table.csv", []
    osf.sweep({"workloads": "resnet50-v100", "clusters": "v100-10gbe", "workers": [4, 8, 16]}, path)
    other = {"workloads": "vgg16-reconstructed", "clusters": "v100-10gbe", "workers": 8}
    osf.sweep(other, path, progress=lambda *told: said.append(told))
    assert said == [(1, 0, 1)]


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
@many(1, 10)
def test_a_line_without_an_end_is_computed_again(tmp_path, serial, ending, many):
    path = tmp_path / f"table{ending}"
    osf.sweep(GRID, path)
    whole = path.read_bytes()
    chance = Random(5)
    for place in [0, 10, *(chance.randrange(len(whole)) for _ in range(many))]:
        path.write_bytes(whole[:place])
        osf.sweep(GRID, path)
        assert path.read_bytes() == whole


def test_a_part_that_was_not_finished_is_removed(tmp_path, serial):
    path = tmp_path / "table.parquet"
    path.mkdir()
    (path / ".part-000001.parquet.tmp").write_bytes(b"half")
    assert list(osf.sweep(GRID, path)) == serial
    assert [one.name for one in path.iterdir()] == ["part-000001.parquet"]


@pytest.mark.parametrize("ending", STORES)
def test_another_file_is_not_touched(tmp_path, ending):
    path = tmp_path / f"other{ending}"
    path.write_bytes(b"x,y\n1,2\n")
    with pytest.raises(DataError, match="other"):
        osf.sweep(GRID, path)
    assert path.read_bytes() == b"x,y\n1,2\n"


def test_executors_give_the_same_records_in_the_same_order(tmp_path, serial):
    with ThreadPoolExecutor(3) as pool:
        assert list(osf.sweep(GRID, executor=pool)) == serial


def test_lost_processes_are_replaced(tmp_path, monkeypatch):
    """A process that kills itself on the first batch, once."""
    grid = {**SEARCHED, "accumulate": 1, "workers": [16, 32], "plans": ["ddp", "wfbp"]}
    serial = list(osf.sweep(grid))
    flag = tmp_path / "flag"
    monkeypatch.setenv("OSF_TEST_FLAG", str(flag))
    monkeypatch.setattr(running, "records", _killed_once)
    assert list(osf.sweep(grid, jobs=2)) == serial
    assert flag.exists()


def _killed_once(batch):
    try:
        os.close(os.open(os.environ["OSF_TEST_FLAG"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return records(batch)
    os.kill(os.getpid(), signal.SIGKILL)
    return []


def test_processes_that_are_lost_again_and_again_are_an_error(monkeypatch):
    monkeypatch.setattr(running, "records", _killed)
    monkeypatch.setattr(running, "LOSSES", 2)
    with pytest.raises(osf.JobError, match="lost 2 times: is there too little memory"):
        osf.sweep(SEARCHED, jobs=2)


def _killed(batch):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A large grid in a file, its records, and the seconds that they took."""
    path = tmp_path_factory.mktemp("large") / "grid.yaml"
    path.write_text(
        json.dumps(
            {
                **GRID,
                "workloads": "vgg16-pipedream",
                "workers": list(range(2, 7)),
                "clusters": ["v100-10gbe", "ring:50us,10Gbps"],
            }
        )
    )
    start = time.monotonic()
    found = list(osf.sweep(path))
    return path, found, time.monotonic() - start


@pytest.mark.parametrize(
    "ending", [pytest.param(one, marks=[pytest.mark.long] * (one in {".jsonl", ".parquet"})) for one in STORES]
)
@many(1, 5)
def test_a_sweep_that_is_killed_goes_on_and_the_table_is_that_of_an_undisturbed_one(tmp_path, large, ending, many):
    """kill -9 at random moments of each kind of table."""
    grid, whole, usual = large
    path, chance = tmp_path / f"killed{ending}", Random(ending)
    for _ in range(many):
        command = [sys.executable, "-m", "osfmodel", "sweep", str(grid), "--into", str(path), "--where", "workers < 0"]
        job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not path.exists() and job.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, usual / 2))
        job.kill()
        job.wait()
    assert list(osf.sweep(grid, path)) == whole
    assert list(osf.load_sweep(path)) == whole


def test_the_frontier_is_that_of_brute_force():
    chance = Random(3)
    rows = [
        {"tokens_per_s": chance.randrange(20) or None, "cost": float(chance.randrange(20)), "workers": place}
        for place in range(300)
    ]
    found = frontier(rows, ["tokens_per_s", "cost"], lambda row: row["workers"] % 2 == 0)
    some = [row for row in rows if row["workers"] % 2 == 0 and row["tokens_per_s"]]
    beaten = [
        row
        for row in some
        if any(
            other["tokens_per_s"] >= row["tokens_per_s"]
            and other["cost"] <= row["cost"]
            and (other["tokens_per_s"], other["cost"]) != (row["tokens_per_s"], row["cost"])
            for other in some
        )
    ]
    expected = {(row["tokens_per_s"], row["cost"]) for row in some if row not in beaten}
    assert {(row["tokens_per_s"], row["cost"]) for row in found} == expected
    assert len(found) == len(expected)


def test_a_point_that_does_not_fit_is_best_only_where_nothing_fits():
    grid = {
        "workloads": "llama3-8b:h100,seq8192,batch1,bf16,ac=full",
        "clusters": "nccl:h100x8,25Gbps",
        "workers": [16, 64],
        "plans": ["ddp", "fsdp2"],
    }
    swept = osf.sweep(grid)
    by_place = {(one["workers"], one["plan"]): one for one in swept}
    assert [one["fits"] for one in by_place.values()] == ["no", "yes", "no", "yes"]
    assert all(one["step_time_s"] and one["low_s"] and one["peak_memory_bytes"] for one in by_place.values())
    assert by_place[16, "ddp"]["step_time_s"] < by_place[16, "fsdp2"]["step_time_s"]
    assert [one["plan"] for one in swept.best(["step_time_s"])] == ["fsdp2"]
    (best,) = swept.best(["step_time_s"], "plan == 'ddp'")
    assert (best["plan"], best["fits"]) == ("ddp", "no")


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("", True),
        ("fits and workers <= 256", True),
        ("not fits or workers > 8", False),
        ("fits == 'yes'", True),
        ("2 <= workers < 8", False),
        ("plan in ('ddp', 'fsdp2')", True),
        ("plan not in ['ddp']", False),
        ("cost / workers < 1 and -workers == -8", True),
        ("mfu > 0", False),
        ("mfu + 1 > 0", False),
        ("plan > 3", False),
        ("workers / 0 > 1", False),
        ("error", False),
    ],
)
def test_conditions_are_as_python_has_them(text, holds):
    record = dict.fromkeys(KEYS) | {"fits": "yes", "workers": 8, "plan": "ddp", "cost": 2.0}
    assert condition(text)(record) is holds


@pytest.mark.parametrize(
    "text",
    ["workers <", "__import__('os')", "workers.real", "[x for x in (1,)]", "workers ** 9", "f'{workers}'", "None",
     "a" * 2000, "(" * 300 + "1" + ")" * 300, "lambda: 1", "workers is 8", "b'x'", "-(workers"],
)  # fmt: skip
def test_anything_else_is_refused(text):
    with pytest.raises(UsageError):
        condition(text)


def test_influences_are_the_parts_of_a_sum():
    """Of a sum of two independent columns, each explains its own variance and nothing together with the other."""
    rows = []
    for workers, accumulate in product((1, 2, 4), (1, 2)):
        whole = {"workers": workers, "accumulate": accumulate, "step_time_s": workers**2 * accumulate**0.5}
        rows.append(dict.fromkeys(GIVEN) | whole)
    found = {one.column: one for one in influences(rows, "step_time_s").columns}
    parts = {"workers": 4 * 2 / 3, "accumulate": 0.25 / 4}  # variances of 2 log2(w) and of log2(a) / 2
    for name, part in parts.items():
        assert found[name].alone == pytest.approx(part / sum(parts.values()))
        assert found[name].together == pytest.approx(found[name].alone)
    assert found["workers"].ratio == pytest.approx(16)


def test_what_columns_do_together_is_no_part_of_what_they_do_alone():
    """Of a product of signs, each column explains nothing alone, and all together with the other."""
    rows = [
        dict.fromkeys(GIVEN)
        | {"workers": one, "accumulate": other, "step_time_s": math.exp((one - 1.5) * (other - 1.5))}
        for one, other in product((1, 2), (1, 2))
    ]
    for one in influences(rows, "step_time_s").columns:
        assert one.alone == pytest.approx(0)
        assert one.together == pytest.approx(1)


def test_words_for_the_gpu_of_each_cluster_are_one_value():
    """One model on two clusters in words: all that differs is due to the cluster, and nothing is missing."""
    grid = {
        "workloads": ["gpt2:h100,seq512,batch1", "gpt2-medium:h100,seq512,batch1"],
        "clusters": ["nccl:h100x8,400Gbps", "nccl:a100x8,200Gbps"],
        "workers": [8, 16],
    }
    records = list(osf.sweep(grid))
    assert len({record["workload"] for record in records}) == 4
    found = influences(records, "step_time_s")
    assert {one.column for one in found.columns} == {"workload", "cluster", "workers"}
    assert not found.remarks
    assert all(0 < one.alone <= one.together for one in found.columns)


def test_missing_combinations_and_different_units_of_cost_are_said():
    whole = [
        dict.fromkeys(GIVEN) | {"workers": one, "accumulate": other, "cost": 1.0 * one * other, "cost_of": "training"}
        for one, other in product((1, 2), (1, 2))
    ]
    assert not influences(whole, "cost").remarks
    (remark,) = influences(whole[1:], "cost").remarks
    assert remark.startswith("1 combination of the grid's values has no cost")
    with pytest.raises(UsageError, match=r"cost has different units \(million tokens and training\): add --where"):
        influences([whole[0] | {"cost_of": "million tokens"}, *whole[1:]], "cost")


def test_the_command_line(tmp_path):
    path, grid = tmp_path / "table.csv", tmp_path / "grid.yaml"
    grid.write_text(json.dumps(GRID))
    done = invoke(["sweep", str(grid), "--into", str(path), "--best", "samples_per_s,cost"])
    assert done.exit_code == 0
    assert "no prices at 1 worker count (17)" in done.stderr
    assert "48 points, 12 without a prediction" in done.stdout
    asked = invoke(["sweep", str(path), "--where", "workers == 17 and plan == 'ddp'", "--json"])
    found = json.loads(asked.stdout)["points"]
    assert {(one["workers"], one["plan"]) for one in found} == {(17, "ddp")}
    influence = invoke(["sweep", str(path), "--influence", "cost", "--format", "csv"])
    assert influence.stdout.startswith("column,sobol_first,sobol_total,largest_over_smallest\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--best", "speed"], "unknown goal 'speed'"),
        (["--where", "gpus > 1"], "unknown column 'gpus'"),
        (["--into", "x.xlsx"], "a sweep writes .csv, .jsonl, .parquet, .duckdb"),
        (["-o", "x.parquet"], "--into x.parquet"),
        (["--jobs", "2", "--dask", "local"], "exclude one another"),
        (["--dask", "tcp://127.0.0.1:1"], "no scheduler answers there"),
        (["--dask", "scheduler"], "no address of a scheduler: give tcp://HOST:PORT"),
    ],
)
def test_wrong_words_are_one_line(tmp_path, arguments, message, monkeypatch):
    monkeypatch.setattr(running, "CONNECT", "1s")
    grid = tmp_path / "grid.yaml"
    grid.write_text(json.dumps(GRID))
    done = invoke(["sweep", str(grid), *arguments])
    assert done.exit_code == 2
    assert message in done.stderr.splitlines()[-1]


def test_words_are_checked_on_the_gpus_of_clusters():
    grid = {"workloads": "llama3-8b:h100,seq2048,mxfp8", "clusters": "nccl:b200x8", "workers": 8, "plans": "fsdp2"}
    (found,) = osf.sweep(grid)
    assert found["workload"] == "llama3-8b:b200,seq2048,mxfp8"
    assert found["step_time_s"] > 0
    with pytest.raises(UsageError, match="no matrix products in mxfp8"):
        load_grid({**grid, "clusters": "nccl:h100x8"})
    both = list(osf.sweep({**grid, "clusters": ["nccl:h100x8", "nccl:b200x8"]}))
    assert [bool(one["error"]) for one in both] == [True, False]
