"""Entries of other packages: found by their entry points, used by the commands, and refused in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from typing import NamedTuple

import pytest

from osfmodel.entities.lookup import LateTable, all_names, usable_others
from tests.conftest import ROOT

EXAMPLE = ROOT / "tests/example_package"
LOG = "example-bench v1\n1024 0.05\n1048576 1.2\n"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder where pip has installed the example package."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    subprocess.run([*pip, "--target", str(folder), str(EXAMPLE)], check=True, capture_output=True)
    return folder


class Ran(NamedTuple):
    """Exit code and output of a command."""

    returncode: int
    stdout: str
    stderr: str


IN_TURN = """
import json, os, sys
from tests.commands import invoke
for line in sys.stdin:
    folder, words = json.loads(line)
    os.chdir(folder)
    done = invoke(words)
    print(json.dumps([done.exit_code, done.stdout, done.stderr]), flush=True)
"""


def begun(*packages):
    """A process that runs commands where these packages are installed."""
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*packages, ROOT]))}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", IN_TURN], env=given, **pipes)


@pytest.fixture(scope="module")
def usual(installed):
    """One process for all commands where no other package is installed."""
    with begun(installed) as process:
        yield process


@pytest.fixture
def each(installed, usual, tmp_path):
    """Run commands, in turn in one process, where the example package and perhaps others are installed."""

    def run(*commands, others=()):
        found = []
        with begun(installed, *others) if others else nullcontext(usual) as process:
            for words in commands:
                print(json.dumps([str(tmp_path), [str(word) for word in words]]), file=process.stdin, flush=True)
                found.append(Ran(*json.loads(process.stdout.readline())))
        return found

    return run


@pytest.fixture
def package(tmp_path):
    """Make a package with one entry point: metadata, and a module with this code."""

    def make(group, name, code="", distribution="osf-other"):
        module = distribution.replace("-", "_")
        folder = tmp_path / distribution
        info = folder / f"{module}-2.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 2.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}:entry\n")
        (folder / f"{module}.py").write_text(code)
        return folder

    return make


def test_a_format_of_another_package(each, tmp_path):
    """Recognised, read, fitted with the package's cost model, and advised on; an error in it has file and line."""
    (tmp_path / "run.txt").write_text(LOG)
    (tmp_path / "bad.txt").write_text(LOG.replace("1.2", "fast"))
    fitting = ["--as", "example-bench", "--workers", 4, "--fit", "example-switch", "-o", "c.json"]
    read, fitted, used, given, refused = each(
        ["import", "run.txt", "--workers", 4],
        ["import", "run.txt", *fitting],
        ["predict", "googlenet-k80", "--cluster", "c.json", "--workers", 8],
        ["predict", "googlenet-k80", "--cluster", "run.txt", "--workers", 4],
        ["import", "bad.txt", "--workers", 4],
    )
    assert read.stdout.startswith("cluster run: all_reduce with 4 workers")
    assert fitted.returncode == 0, fitted.stderr
    assert json.loads((tmp_path / "c.json").read_text())["cost_model"] == "example-switch"
    assert used.returncode == 0
    assert "run.txt: looks like example-bench output: run `osf import" in given.stderr
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "bad.txt: line 3:" in refused.stderr


def test_a_target_and_a_cost_model_of_another_package(each):
    """Tuned for, its default predicted by name; the prices are those of the model."""
    subject = ["googlenet-k80", "--cluster", "example-switch:1ms,1Gbps", "--workers", 16, "--effect", "none", "--json"]
    plans = ["--plan", "example-ddp", "--plan", "single"]
    done = each(["tune", *subject, "--for", "example-ddp"], ["predict", *subject, *plans])
    tuned, predicted = (json.loads(one.stdout) for one in done)
    assert tuned["target"] == "example-ddp"
    assert tuned["rendered"] == f"bucket_elements: {tuned['config']['bucket_elements']}  # for googlenet-k80\n"
    assert tuned["lower_bound_s"] <= tuned["tuned_iteration_time_s"] <= tuned["default_iteration_time_s"]
    by_name = {row["plan"]: row for row in predicted["predictions"]}
    assert by_name["example-ddp"]["iteration_time_s"] == pytest.approx(tuned["default_iteration_time_s"])
    workload = json.loads((ROOT / "profiles/workloads/googlenet-k80.json").read_text())
    size = sum(layer["gradient_bytes"] for layer in workload["layers"])
    assert by_name["single"]["exposed_communication_s"] == pytest.approx(1e-3 + size * 8 / 1e9, rel=1e-6)


def test_what_other_packages_provide_is_listed_with_their_names(each):
    kinds = {"formats": {"example-bench", "example-profiler"}, "targets": {"example-ddp"},
             "cost-models": {"example-switch"}}  # fmt: skip
    tuning = ["tune", "x", "--cluster", "y", "--workers", 2, "--for", "exampl-ddp"]
    *listed, refused = each(*(["list", kind, *more] for kind in kinds for more in (["--json"], [])), tuning)
    for (kind, names), document, text in zip(kinds.items(), listed[::2], listed[1::2], strict=True):
        rows = json.loads(document.stdout)[kind]
        assert {row["name"] for row in rows if row["package"] == "osf-example 1.0"} == names
        assert "osf-example 1.0" in text.stdout
    assert "did you mean example-ddp?" in refused.stderr


BROKEN = {
    "fails": ("import no_such_module", "does not load: ModuleNotFoundError: No module named 'no_such_module'"),
    "lacks": ("", "does not load: AttributeError"),
    "exits": ("raise SystemExit(3)", "does not load: SystemExit: 3"),
    "of-another-type": ("entry = {}", "is of type dict, not osfmodel.targets.target.Target"),
}


def test_a_broken_entry_is_refused_in_one_line_where_it_is_used(each, package):
    """Elsewhere it does no harm: the list shows all others, with a warning."""
    others = [package("osfmodel.targets", name, code, f"osf-other-{name}") for name, (code, _) in BROKEN.items()]
    subject = ["googlenet-k80", "--cluster", "k80-10gbe-ring", "--workers", 8]
    fine = [["tune", *subject, "--for", "example-ddp"], ["predict", *subject], ["list", "formats"]]
    *used_ones, tuned, predicted, formats, listed = each(
        *(["tune", *subject, "--for", name] for name in BROKEN), *fine, ["list", "targets"], others=others
    )
    for (name, (_, reason)), used in zip(BROKEN.items(), used_ones, strict=True):
        assert used.returncode == 1
        assert used.stderr.count("\n") == 1
        module = f"osf-other-{name}".replace("-", "_")
        start = f"osf: osf-other-{name} 2.0: its entry point '{name}' in osfmodel.targets ({module}:entry)"
        assert used.stderr.startswith(f"{start} {reason}")
        assert used.stderr.endswith("update or uninstall that package\n")
    for done in (tuned, predicted, formats):
        assert (done.returncode, "osf-other" in done.stderr) == (0, False)
    assert listed.returncode == 0
    assert [name for name in BROKEN if f"osf-other-{name} 2.0" not in listed.stderr] == []
    assert "example-ddp" in listed.stdout


def test_a_name_that_is_taken(each, package):
    """One of osfmodel's own stays as it is; two packages with one name are refused."""
    others = [
        package("osfmodel.targets", "ddp", "import no_such_module"),
        package("osfmodel.targets", "example-ddp", distribution="osf-third"),
    ]
    subject = ["googlenet-k80", "--cluster", "k80-10gbe-ring", "--workers", 8]
    listed, refused = each(["list", "targets"], ["tune", *subject, "--for", "example-ddp"], others=others)
    assert "osf-other 2.0: its entry point 'ddp' in osfmodel.targets is not used" in listed.stderr
    assert "no_such_module" not in listed.stderr  # it is not even loaded
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "both provide 'example-ddp' in osfmodel.targets: uninstall one of them" in refused.stderr


def test_broken_formats_do_not_stop_the_import_of_others(each, package, tmp_path):
    """Nor does a sniff that fails; the error about a file that nobody recognises names the package that is broken."""
    others = [package("osfmodel.formats", "lost", "import no_such_module")]
    failing = "from osfmodel.formats import Format\nentry = Format(lambda head: 1 / 0, None, 'fails')"
    others.append(package("osfmodel.formats", "failing", failing, "osf-failing"))
    (tmp_path / "run.txt").write_text(LOG)
    (tmp_path / "odd.txt").write_text("something else\n")
    done, refused = each(["import", "run.txt", "--workers", 4], ["import", "odd.txt"], others=others)
    assert (done.returncode, done.stderr) == (0, "")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "example-bench" in refused.stderr
    assert "osf-other 2.0: its entry point 'lost'" in refused.stderr


def test_traces_of_another_package_are_found_in_a_folder(each, package, tmp_path):
    code = """
from osfmodel.formats import of_traces
from osfmodel.formats.streams import opened
from osfmodel.entities.trace import RankTrace, Step, Trace

def known(head):
    return head.startswith("other-profiler")

def trace_of(files, hints):
    names = [name for name, pieces in opened(files, known, (".other",)) if list(pieces)]
    return Trace("job", tuple(RankTrace(i, (Step(0, 0.0, 1.0, ((0.0, 1.0),)),), file=n) for i, n in enumerate(names)))

entry = of_traces(known, trace_of, "other-profiler's traces", (".other",))
"""
    others = [package("osfmodel.formats", "other-profiler", code)]
    (tmp_path / "job").mkdir()
    for rank in range(2):
        (tmp_path / f"job/{rank}.other").write_text("other-profiler\n")
    for done in each(["explain", "job"], ["explain", "job/0.other"], others=others):
        assert done.returncode == 0, done.stderr
    (alone,) = each(["explain", "job"])
    assert (alone.returncode, alone.stderr.count("\n")) == (1, 1)


def test_no_metadata_are_read_for_what_osfmodel_has_itself():
    """They take longer to read than all else in ``osf --version``. One process: what a command reads stays read."""
    code = (
        "import json, sys; from osfmodel.cli import main\nfor words in json.load(sys.stdin):\n"
        "    try:\n        main(words)\n    except SystemExit:\n        pass\n"
        "    print('importlib.metadata' in sys.modules, file=sys.stderr)"
    )
    subject = ["googlenet-k80", "--cluster", "k80-10gbe-ring", "--workers", "8"]
    asked = [["--version"], ["predict", *subject], ["tune", *subject, "--for", "ddp"], ["import", "--help"]]
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(asked), cwd=ROOT, capture_output=True, text=True
    )
    said = [line for line in done.stderr.splitlines() if line in ("True", "False")]
    assert said == ["False"] * len(asked), asked


def test_a_table_without_a_group_has_only_its_own_entries():
    table = LateTable({"a": 1})
    assert ("b" in table, all_names(table), usable_others(table)) == (False, ["a"], ({}, []))
    with pytest.raises(KeyError):
        table["b"]
