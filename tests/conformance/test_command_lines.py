"""Every command: no input is overwritten, and no option that takes one value is given two."""

from __future__ import annotations

import os
import re
from itertools import permutations, product
from pathlib import Path

import click
import pytest

from osfmodel.cli.app import COMMANDS
from osfmodel.cli.groups import OUTPUT, WRITTEN, FileType, group_of
from tests.commands import invoke
from tests.conftest import ROOT
from tests.draws import DRAWS
from tests.formats.samples import log
from tests.generated_pages import command_called

FILES = re.compile("FILE|FOLDER|TABLE|TRACE|LOG|PATH|DIR")
WRITES = re.compile(r"\b(writes?|written|appends?|draws?|records?|output file|overwritten|files to|file for)\b", re.I)
"""Words in the help of an option that names a file to write."""
GRID = "workloads: [{workload}]\nclusters: [{cluster}]\nworkers: [4, 8]\nplans: [{plan}]\n"
RESNET, V100 = (ROOT / "profiles" / name for name in ("workloads/resnet50-v100.json", "clusters/v100-10gbe.json"))


def named(param):
    """The name of a parameter for a message, and for the command line."""
    return max(param.opts, key=len)


def params_of(command):
    """The parameters of a command."""
    return command_called(command)[0].params


def written_by(command):
    """The options that name what a command writes."""
    return [param for param in params_of(command) if param.type is WRITTEN]


def texts_of(command):
    """The parameters that may name a file to read: those that take any text, and do not describe what is written."""
    found = [param for param in params_of(command) if isinstance(param.type, (FileType, click.types.StringParamType))]
    return [param for param in found if param.type is not WRITTEN and group_of(param) is not OUTPUT]


def words(command, given):
    """A command line with a value for each of ``given``, by parameter, and for all that is required."""
    line = [command]
    for param in params_of(command):
        if param in given:
            value = given[param]
        elif param.required:
            value = param.type.choices[0] if isinstance(param.type, click.Choice) else "8"
        else:
            continue
        line += [named(param), value] if isinstance(param, click.Option) else []
    arguments = [param for param in params_of(command) if isinstance(param, click.Argument)]
    values = [given.get(param, "list" if param.required else "clusters") for param in arguments]
    last = max((place for place, param in enumerate(arguments) if param.required or param in given), default=-1)
    return [*line, "--", *values[: last + 1]] if last >= 0 else line


def refused(line, said):
    """Run a command line that must be refused in one line."""
    result = invoke(list(map(str, line)))
    assert (result.exit_code, result.stdout) == (2, ""), (line, result.output)
    assert said in result.stderr, (line, result.stderr)
    assert result.stderr.count("\n") == 1, (line, result.stderr)


def contents(folder):
    """The bytes of each file in a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with an input and other names of it, in which commands are run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "in.json").write_bytes(RESNET.read_bytes())
    (tmp_path / "c.json").write_bytes(V100.read_bytes())
    Path("link.json").symlink_to("in.json")
    os.link("in.json", "hard.json")
    Path("again").symlink_to("folder")
    os.link("in.json", "folder/inside.json")
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_each_option_that_names_a_file_says_whether_it_is_written(command):
    """A new option that names a file, or speaks of writing one, fails here until its type is READ or WRITTEN."""
    for param in params_of(command):
        assert isinstance(param.type, FileType) or not FILES.search(param.metavar or ""), named(param)
        if isinstance(param, click.Option) and isinstance(param.type, (FileType, click.types.StringParamType)):
            assert (param.type is WRITTEN) == bool(WRITES.search(param.help)), named(param)


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("command", COMMANDS)
def test_no_output_is_an_input(here, command, draw):
    """For each output and each parameter that may name a file, by every kind of path; nothing is written."""
    before = contents(here)
    others = ["in.json", "./in.json", "folder/../in.json", "link.json", "hard.json", str(here / "in.json"),
              "folder/inside.json", "again/inside.json"]  # fmt: skip
    for output in written_by(command):
        for param in texts_of(command):
            for given, other in draw(product(("in.json", "8=in.json"), others), command):
                refused(words(command, {param: given, output: other}), "is the file that is read")
            if param.type.name in ("file", "log"):
                for folder in ("folder", "again", here / "folder"):
                    line = words(command, {param: str(folder), output: "hard.json"})
                    refused(line, "is the file that is read")
    assert written_by(command) or command == "mcp"
    assert contents(here) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_no_output_is_another_output(here, command):
    before = contents(here)
    for one, other in permutations(written_by(command), 2):
        for first, second in (("in.json", "link.json"), ("new.json", "folder/../new.json")):
            refused(words(command, {one: first, other: second}), "give another name")
    assert contents(here) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_an_option_of_one_value_is_refused_twice(command):
    for param in params_of(command):
        if not isinstance(param, click.Option) or param.multiple or param.is_flag:
            continue
        for first in param.opts:
            result = invoke([command, first, "1", named(param), "1"])
            assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
            assert f"osf: {named(param)} takes one value" in result.stderr


def test_a_default_of_a_file_is_no_second_value(here, monkeypatch):
    monkeypatch.delenv("OSFMODEL_NO_CONFIG", raising=False)
    Path("osf.toml").write_text('cluster = "c.json"\nworkers = 4\n')
    assert invoke(["predict", "in.json", "--workers", "8"]).exit_code == 0
    for output in ("osf.toml", "c.json"):
        result = invoke(["predict", "in.json", "--workers", "8", "-o", output])
        assert (result.exit_code, "is the file that is read" in result.stderr) == (2, True)
    assert Path("osf.toml").read_text().startswith("cluster")


def test_files_that_an_input_names_are_inputs(here):
    """Of a grid, and of measured runs; and a profile by its name, and a configuration by its folder."""
    before = contents(here)
    grid = here / "grid.yaml"
    grid.write_text(GRID.format(workload="in.json", cluster="c.json", plan="ddp"))
    runs = here / "runs.json"
    result = invoke(["sweep", "grid.yaml", "--into", "t.csv"])
    assert result.exit_code == 0, result.output
    for output in ("in.json", "c.json", "hard.json"):
        refused(["sweep", "grid.yaml", "-o", output], "is the file that is read")
        refused(["sweep", "grid.yaml", "--into", "t.csv", "-o", output], "is the file that is read")
    refused(["sweep", "grid.yaml", "--into", "t.csv", "-o", "t.csv"], "is also written by --into t.csv")
    runs.write_text(
        '{"schema_version": 1, "kind": "measurements", "name": "runs", "runs": [{"workload": "in.json", '
        '"cluster": "c.json", "plan": "ddp", "workers": 8, "iteration_time_s": [0.1, 0.1, 0.1]}]}'
    )
    assert invoke(["check", "runs.json", "-o", "checked.json"]).exit_code in (0, 1)
    for output in ("in.json", "c.json"):
        refused(["check", "runs.json", "-o", output], "is the file that is read")
        refused(["check", "runs.json", "--plot", output], "is the file that is read")
    assert {path: path.read_bytes() for path in before} == before


def test_profiles_and_configurations_are_inputs_by_their_names(here, monkeypatch):
    (here / "own/workloads").mkdir(parents=True)
    own = here / "own/workloads/mine.json"
    own.write_bytes(RESNET.read_bytes())
    monkeypatch.setenv("OSFMODEL_PROFILES", str(here / "own"))
    refused(["predict", "mine", "--cluster", "c.json", "--workers", "4", "-o", own], "is the file that is read")
    (here / "model").mkdir()
    config = here / "model/config.json"
    config.write_text("{}")
    for model in ("model", "model/config.json"):
        line = ["predict", f"{model}:h100,bf16", "--cluster", "c.json", "--workers", "4", "-o", config]
        refused(line, "is the file that is read")
    assert (own.read_bytes(), config.read_text()) == (RESNET.read_bytes(), "{}")


def test_words_that_only_look_like_inputs_are_none(here, monkeypatch):
    """A result may be written again: under its own title, into a folder with the name of a plan or a count."""
    monkeypatch.setenv("OSFMODEL_PROFILES", str(here / "own"))
    line = ["predict", "in.json", "--cluster", "c.json", "--workers", "8", "--plan", "ddp", "-o"]
    (here / "own/clusters").mkdir(parents=True)
    for folder in ("8", "ddp"):
        (here / folder).mkdir()
        for _ in range(2):
            assert invoke([*line, f"{folder}/made.json"]).exit_code == 0
    (here / "nccl.log").write_text(log())
    for _ in range(2):
        line = ["import", "nccl.log", "--name", "mine", "-o", "own/clusters/mine.json"]
        result = invoke(line)
        assert result.exit_code == 0, result.output


def test_files_beside_an_output_are_outputs(here):
    """An interrupted measurement is kept beside its file, and removed later."""
    kept = here / "measured.partial.json"
    kept.write_bytes(RESNET.read_bytes())
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1", "LOCAL_RANK": "0"}
    result = invoke(["bench", "--for", kept.name, "-o", "measured.json"], env=place)
    assert (result.exit_code, "measured.partial.json: is the file that is read" in result.stderr) == (2, True)
    assert kept.read_bytes() == RESNET.read_bytes()


def test_the_files_of_an_output_folder_are_outputs(here, monkeypatch):
    monkeypatch.setattr("osfmodel.cli.profile._maker", lambda *given: (None, "model"))
    config = here / "folder/config.json"
    config.write_text("{}")
    line = ["profile", "--transformers", "folder", "-o", "folder", "--name"]
    refused([*line, "config"], "is the file that is read")
    config.rename(here / "folder/config-b8.json")
    refused(
        [*line[:2], "folder/config-b8.json", *line[3:], "config", "--batch-size", "8,16"], "is the file that is read"
    )
    assert (here / "folder/config-b8.json").read_text() == "{}"


def test_a_page_may_be_written_again_beside_the_traces_that_it_shows(here):
    (here / "folder/inside.json").unlink()
    trace = here / "folder/rank0.json.gz"
    trace.write_bytes((ROOT / "tests/formats/data/explained/slow-link-0.json.gz").read_bytes())
    for _ in range(2):
        result = invoke(["explain", "folder", "-o", "folder/why.html"])
        assert result.exit_code == 0, result.output
    refused(["explain", "folder", "-o", str(trace)], "is the file that is read")


def test_a_table_that_is_added_to_stays_one(here):
    """A sweep goes on in its table, again and again, and asks it."""
    Path("grid.yaml").write_text(GRID.format(workload="in.json", cluster="c.json", plan="ddp"))
    for _ in range(2):
        result = invoke(["sweep", "grid.yaml", "--into", "t.csv", "-o", "best.json"])
        assert result.exit_code == 0, result.output
    assert len(Path("t.csv").read_text().splitlines()) == 3
    refused(["sweep", "t.csv", "-o", "t.csv"], "is the file that is read")
