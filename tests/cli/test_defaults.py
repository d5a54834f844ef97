"""The user's own file, osf.toml or pyproject.toml: found, checked, applied, and named on stderr."""

from __future__ import annotations

import json
import os

import pytest

from osfmodel import load_cluster, save
from tests.commands import invoke

PREDICT = ["predict", "googlenet-k80"]
CLUSTER = "k80-10gbe-ring"
BOTH = f'cluster = "{CLUSTER}"\nworkers = 8\n'


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder inside another one, as the current folder; files of the user's are seen."""
    monkeypatch.delenv("OSFMODEL_NO_CONFIG")
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    return tmp_path


def osf(*words):
    return invoke(words)


def told(*words):
    """The line of stderr on defaults, for a command that succeeds."""
    done = osf(*words)
    assert done.exit_code == 0, done.output
    return [line for line in done.stderr.splitlines() if "defaults from" in line]


@pytest.mark.parametrize(
    ("file", "text", "name"),
    [
        ("osf.toml", BOTH, "../osf.toml"),
        ("inner/osf.toml", BOTH, "osf.toml"),
        ("pyproject.toml", f"[project]\nname = 'x'\n[tool.osfmodel]\n{BOTH}", "../pyproject.toml"),
    ],
)
def test_a_file_here_or_above_gives_what_the_command_line_does_not(folder, file, text, name):
    """The numbers are those of the same command with all options; stdout has nothing of the file."""
    (folder / file).write_text(text)
    done = osf(*PREDICT, "--json")
    whole = osf("--no-config", *PREDICT, "--cluster", CLUSTER, "--workers", "8", "--json")
    assert (done.exit_code, done.stdout) == (0, whole.stdout)
    assert f"osf: defaults from {name}: cluster {CLUSTER}, workers 8\n" in done.stderr
    assert "defaults" not in whole.stderr


def test_the_command_line_wins_option_by_option(folder):
    (folder / "osf.toml").write_text(BOTH)
    assert told(*PREDICT, "--workers", "4") == [f"osf: defaults from ../osf.toml: cluster {CLUSTER}"]
    assert told(*PREDICT, "--workers", "4", "--cluster", "v100-10gbe") == []


def test_the_nearest_file_is_taken_and_no_other(folder):
    """osf.toml before pyproject.toml in one folder; a pyproject.toml without our table is passed by."""
    (folder / "osf.toml").write_text(BOTH)
    (folder / "inner/pyproject.toml").write_text("[project]\nname = 'x'\ndependencies = ['osfmodel']\n")
    assert told(*PREDICT) == [f"osf: defaults from ../osf.toml: cluster {CLUSTER}, workers 8"]
    (folder / "pyproject.toml").write_text("[tool.osfmodel]\nworkers = 2\n")
    assert told(*PREDICT) == [f"osf: defaults from ../osf.toml: cluster {CLUSTER}, workers 8"]
    (folder / "inner/pyproject.toml").write_text("[tool.osfmodel]\nworkers = 2\n")
    assert told(*PREDICT, "--cluster", CLUSTER) == ["osf: defaults from pyproject.toml: workers 2"]
    (folder / "inner/osf.toml").write_text("")
    assert told(*PREDICT, "--cluster", CLUSTER, "--workers", "2") == []
    assert osf(*PREDICT).exit_code == 2


@pytest.mark.parametrize("command", ["predict", "tune", "scale", "report", "memory"])
def test_every_command_with_a_cluster_takes_it(folder, command):
    (folder / "osf.toml").write_text('cluster = "v100-10gbe"\nworkers = "4"\neffects = ["none"]\n')
    model = "resnet50-memory" if command == "memory" else "resnet50-v100"
    assert told(command, model) == ["osf: defaults from ../osf.toml: cluster v100-10gbe, workers 4, effects none"]


def test_memory_of_a_single_worker_stays_one_where_the_file_has_no_workers(folder):
    (folder / "osf.toml").write_text('cluster = "v100-10gbe"\n')
    assert told("memory", "resnet50-memory") == []
    assert told("memory", "resnet50-memory", "--workers", "4") == ["osf: defaults from ../osf.toml: cluster v100-10gbe"]


def test_effects_and_prices(folder):
    """A price is used where the length of the training is known; effects replace the usual ones, as --effect does."""
    (folder / "osf.toml").write_text(f'{BOTH}price = 2.5\neffects = ["none", "launch_latency=1ms"]\n')
    told_of_both = f"cluster {CLUSTER}, workers 8, effects none launch_latency=1ms"
    assert told(*PREDICT) == [f"osf: defaults from ../osf.toml: {told_of_both}"]
    assert told(*PREDICT, "--samples", "1e6") == [f"osf: defaults from ../osf.toml: {told_of_both}, price 2.5"]
    costs = json.loads(osf(*PREDICT, "--samples", "1e6", "--json").stdout)["predictions"][0]
    assert costs["cost"] == pytest.approx(costs["gpu_hours"] * 2.5)
    said = ["--cluster", CLUSTER, "--workers", "8", "--effect", "none", "--effect", "launch_latency=1ms", "--json"]
    assert osf(*PREDICT, "--json").stdout == osf("--no-config", *PREDICT, *said).stdout


def test_a_format_is_for_what_is_printed(folder):
    """Neither --json nor the name of a file contradicts it."""
    (folder / "osf.toml").write_text('format = "csv"\n')
    assert osf("list", "engines").stdout.startswith("kind,name,")
    assert json.loads(osf("list", "engines", "--json").stdout)["schema_version"] == 1
    assert osf("list", "engines", "-o", "e.yaml").exit_code == 0
    assert (folder / "inner/e.yaml").read_text().startswith("schema_version: 1")
    assert osf("list", "engines", "--format", "json").stdout.startswith("{")


def test_a_cluster_file_is_looked_for_beside_the_file_that_names_it(folder):
    save(load_cluster(CLUSTER), folder / "mine.json")
    (folder / "osf.toml").write_text('cluster = "mine.json"\nworkers = 8\n')
    assert told(*PREDICT) == ["osf: defaults from ../osf.toml: cluster ../mine.json, workers 8"]


def test_live_tuning_measures_its_cluster_whatever_the_file_says(folder):
    (folder / "osf.toml").write_text(f'{BOTH}effects = ["none"]\n')
    done = osf("tune", "no-such-workload", "--live", "tuned")
    assert done.exit_code != 0
    assert "defaults from" not in done.stderr


def listed():
    rows = json.loads(osf("list", "config", "--json").stdout)["config"]
    return {row["name"]: (row["value"], row["origin"]) for row in rows}


def test_the_list_shows_each_value_and_where_it_is_from(folder):
    assert {origin for _, origin in listed().values()} == {"built in"}
    (folder / "pyproject.toml").write_text("[tool.osfmodel]\nworkers = '4..64'\n")
    assert listed()["workers"] == ("4..64", "../pyproject.toml: tool.osfmodel.workers")
    assert listed()["format"] == ("table", "built in")
    (folder / "osf.toml").write_text("price = 3\n")
    assert listed()["price"] == ("3", "../osf.toml: price")
    assert "config" not in json.loads(osf("list", "--json").stdout)


WRONG = {
    "clusters = 'x'": "unknown key 'clusters': did you mean cluster?",
    "zzz = 1": "unknown key 'zzz': known are cluster, workers, effects, price, format",
    "cluster = 3": "key 'cluster' is 3: give a name, a file or words",
    "workers = true": "key 'workers' is True: give a count such as 16",
    "workers = 2.5": "key 'workers' is 2.5: give a count such as 16",
    "price = '2'": "key 'price' is '2': give a number",
    "effects = 'none'": "key 'effects' is 'none': give a list of effects",
    "effects = [1]": "key 'effects' is [1]: give a list of effects",
    "format = 'xml'": "key 'format' is 'xml': give one of",
    "cluster =": "is not TOML: Invalid value (at end of document): correct it, or leave it out by osf --no-config",
    "cluster = '\udcff'": "is not TOML: 'utf-8' codec can't decode",
}


@pytest.mark.parametrize("text", WRONG, ids=ascii)
@pytest.mark.parametrize("file", ["osf.toml", "pyproject.toml"])
def test_a_bad_file_is_refused_in_one_line(folder, file, text):
    head = "" if file == "osf.toml" else "[tool.osfmodel]\n"
    (folder / file).write_bytes((head + text).encode("utf-8", "surrogateescape"))
    for words in (PREDICT, ["list", "config"]):
        done = osf(*words)
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
        assert f"{folder / file}: {WRONG[text]}" in done.stderr
    assert osf("--no-config", "list", "config").exit_code == 0
    assert osf(*PREDICT, "--help").exit_code == 0


def test_an_environment_variable_leaves_the_file_out_as_well(folder, monkeypatch):
    (folder / "osf.toml").write_text("clusters = 1\n")
    monkeypatch.setenv("OSFMODEL_NO_CONFIG", "1")
    assert osf("list", "engines").exit_code == 0


def test_a_current_folder_that_was_deleted_has_no_file(folder):
    (folder / "inner").rmdir()
    try:
        assert osf("list", "engines").exit_code == 0
    finally:
        os.chdir(folder)
