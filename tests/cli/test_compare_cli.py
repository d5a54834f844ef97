"""``osf compare`` on recorded traces and files, in every format, with its exit codes."""

from __future__ import annotations

import csv
import io
import json

import pytest
import yaml

import osfmodel as osf
from tests.commands import invoke
from tests.live.explained import paths_of

QUIET = [0.1 + 0.0001 * (place % 5) for place in range(30)]


def compared(*words):
    return invoke(["compare", *map(str, words)])


@pytest.fixture
def runs(tmp_path):
    """Files of step times: ``job``, ``again`` like it, ``slower`` by 10 %, ``little`` by 3 %, and a noisy one."""
    noisy = [time * (1 + 0.3 * (place % 3)) for place, time in enumerate(QUIET)]
    scaled = {"job": 1, "again": 1.001, "slower": 1.1, "little": 1.03}
    found = {name: [scale * time for time in QUIET] for name, scale in scaled.items()} | {"noisy": noisy}
    for name, times in found.items():
        (tmp_path / f"{name}.csv").write_text("step_time_s\n" + "".join(f"{time!r}\n" for time in times))
    return {name: tmp_path / f"{name}.csv" for name in found}


@pytest.mark.parametrize(
    ("baseline", "candidate", "more", "verdict", "code"),
    [
        ("job", "slower", [], "slower", 1),
        ("job", "slower", ["--tolerance", "15%"], "slower", 0),
        ("job", "slower", ["--tolerance", "0.15"], "slower", 0),
        ("slower", "job", [], "faster", 0),
        ("job", "again", [], "no-difference", 0),
        ("job", "noisy", [], "cannot-tell", 0),
        ("job", "little", ["--tolerance", "5%"], "slower", 0),
    ],
)
def test_the_exit_code_is_1_for_a_regression_beyond_the_tolerance(runs, baseline, candidate, more, verdict, code):
    found = compared(runs[baseline], runs[candidate], *more, "--json")
    assert found.exit_code == code
    document = json.loads(found.stdout)
    assert document["verdict"] == verdict
    assert document["regression"] == bool(code)
    assert document["change"]["low"] <= document["change"]["median"] <= document["change"]["high"]
    assert ("osf: slower by more than the tolerance" in found.stderr) == bool(code)


def test_further_runs_of_both_sides_are_pooled(runs, tmp_path):
    for name in ("job", "little"):
        (tmp_path / f"{name}.json").write_bytes(runs[name].read_bytes())
    words = [runs["job"], runs["little"], "--json", "--tolerance", "10%"]
    single, several = (
        json.loads(compared(*words, *more).stdout)
        for more in (
            [],
            ["--baseline", runs["again"], "--baseline", tmp_path / "job.json", "--candidate", tmp_path / "little.json"],
        )
    )
    assert several["subjects"][0]["runs"] == [3, 2]
    assert several["baselines"] == [str(one) for one in (runs["job"], runs["again"], tmp_path / "job.json")]
    assert several["candidates"] == [str(one) for one in (runs["little"], tmp_path / "little.json")]
    assert several["noise_floor"] < single["noise_floor"]


def test_traces_name_the_cause_that_changed():
    found = compared(paths_of("healthy")[0], paths_of("slow-link")[0], "--json")
    document = json.loads(found.stdout)
    assert found.exit_code == 1
    assert document["verdict"] == "slower"
    assert document["parts"][0]["name"] == "bandwidth"
    assert document["collectives"][0]["kind"] == "all_reduce"
    assert document["collectives"][0]["candidate_bytes_per_s"] < document["collectives"][0]["baseline_bytes_per_s"] / 4
    changes = sum(part["change_s"] for part in document["parts"])
    steps = [osf.explain([paths_of(name)[0]]).step_time for name in ("healthy", "slow-link")]
    assert changes == pytest.approx(steps[1] - steps[0])


def test_formats_tell_the_same(runs, tmp_path):
    words = runs["job"], runs["slower"]
    document = json.loads(compared(*words, "--json").stdout)
    assert yaml.safe_load(compared(*words, "--format", "yaml").stdout) == document
    (row,) = csv.DictReader(io.StringIO(compared(*words, "--format", "csv").stdout))
    assert float(row["change"]) == document["change"]["median"]
    assert row["verdict"] == "slower"
    text = compared(*words).stdout
    assert text.startswith("Slower: +10%")
    markdown = compared(*words, "--format", "markdown").stdout
    assert markdown.startswith("**Slower: +10%")
    assert "| compared | baseline | candidate | change |" in markdown
    written = compared(*words, "-o", tmp_path / "comment.md")
    assert written.exit_code == 1
    assert (tmp_path / "comment.md").read_text() == markdown


def test_a_table_in_markdown_is_not_broken_by_names(tmp_path):
    """A bar or an underline in a name is a character of it."""
    for name in ("a", "b"):
        run = osf.Measurement("w", "c", "cap|*_x`", 2, tuple(QUIET))
        osf.save_measurements(name, [run], tmp_path / f"{name}.json")
    text = compared(tmp_path / "a.json", tmp_path / "b.json", "--format", "markdown").stdout
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[2].startswith(r"| cap\|\*\_x\`, 2 workers |")


def test_other_commands_have_no_markdown():
    found = invoke(["list", "plans", "--format", "markdown"])
    assert found.exit_code == 2
    assert "markdown" in found.stderr


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (["job", "nowhere.csv"], "nowhere.csv cannot be read: no such file", 1),
        (["job", "resnet50-v100"], "compare files of one kind", 2),
        (["job", "again", "--tolerance", "two"], "--tolerance 'two': write a part, such as 2% or 0.02", 2),
        (["job", "again", "--tolerance", "-1%"], "give a fraction from 0 to below 1", 2),
        (["job", "again", "--tolerance", "nan"], "give a fraction from 0 to below 1", 2),
        (["job", "again", "-o", "job"], "is the file that is read", 2),
        (["job"], "Missing argument 'CANDIDATE'", 2),
        (["job", "again", "--format", "code"], "'code' is not one of 'table', 'json'", 2),
    ],
)
def test_mistakes_are_one_line(runs, words, said, code):
    found = compared(*(runs.get(word, word) for word in words))
    assert found.exit_code == code
    assert said in found.stderr
    assert found.stderr.count("\n") == 1
    assert found.stdout == ""


def test_damaged_files_are_one_line_with_the_place(tmp_path, runs):
    for name, content, said in (
        ("empty.csv", b"", "empty.csv: has no step times"),
        ("text.txt", b"hello\nworld\n", "text.txt: line 1: is not a step time"),
        ("binary.bin", bytes(range(256)), "binary.bin: "),
        ("cut.json", b'{"schema_version": 1, "kind": "measurements"', "cut.json: "),
        ("plan.json", b'{"schema_version": 1, "workload": "x", "buckets": []}', "of kind plan, without times"),
    ):
        (tmp_path / name).write_bytes(content)
        found = compared(runs["job"], tmp_path / name)
        assert found.exit_code == 1, name
        assert said in found.stderr
        assert found.stderr.count("\n") == 1


def test_a_run_that_is_given_twice_is_refused(tmp_path):
    path = tmp_path / "times.txt"
    path.write_text("0.1\n0.2\n")
    for files in ([path, path], [path, tmp_path / "times-2.txt", "--baseline", path]):
        (tmp_path / "times-2.txt").write_text("0.1\n0.2\n")
        done = invoke(["compare", *map(str, files)])
        assert done.exit_code == 2
        assert "is given twice: give another file" in done.stderr
