"""README and docs: every console example is run and its output compared, every Python example is executed."""

from __future__ import annotations

import builtins
import doctest
import os
import re
import shlex
import sys
import textwrap
import types
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from osfmodel.cli.app import COMMANDS
from tests import stand_ins
from tests.commands import invoke
from tests.conftest import ROOT
from tests.generated_pages import command_called, command_pages
from tests.sums import refused

MADE = command_pages()
"""Pages that are made when the site is built, with their text."""
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").rglob("*.md"), *MADE})]
pytestmark = pytest.mark.usefixtures("kept_tuning")
BLOCK = re.compile(r"^( *)```(\w+)(?: title=\"[^\"]+\")?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^```\w+ title=\"([^\"]+)\"\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A block with a title is a file of that name, which the commands of its page find where they run."""
EXPLAINED, SHARDED = ROOT / "tests/formats/data/explained", ROOT / "tests/formats/data/fsdp"
STALE = "if what it prints now is right: python -m tests.refresh_docs, with the path of"
NOT_RUN = ("python -m pip", "python benchmarks/", "OSFMODEL_DATA=", "pip install", "eval ", "mkdir ", "bash ")
"""Beginnings of example commands that install, measure for minutes, or need what is not here."""


SLOW = {
    "commands/check.md", "commands/list.md", "commands/predict.md", "commands/report.md", "commands/scale.md",
    "commands/tune.md",
    "how-to/audit-a-job.md", "how-to/check-horovod.md", "how-to/fit-into-memory.md", "how-to/launch-a-plan.md",
    "how-to/measure-a-cluster.md", "how-to/run-a-plan.md", "how-to/scale-from-a-name.md", "how-to/show-it.md",
    "how-to/train-under-a-plan.md", "ledger.md",
}  # fmt: skip
"""Pages with commands that take seconds: long tests. Options of those on files of the reader are looked up daily."""


def shown(pages: Sequence[Path]) -> pytest.MarkDecorator:
    """The pages as a parameter: long ones where they are slow."""
    slow = {ROOT / "docs" / name for name in SLOW}
    marked = [pytest.param(page, marks=[pytest.mark.long] if page in slow else []) for page in pages]
    return pytest.mark.parametrize("page", marked, ids=lambda page: str(page.relative_to(ROOT)))


def text_of(page: Path) -> str:
    """The text of a page."""
    return MADE[page] if page in MADE else page.read_text(encoding="utf-8")


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language."""
    found = BLOCK.findall(text_of(page))
    return [textwrap.dedent(text) for _, kind, text in found if kind == language]


def place_files(page: Path, folder: Path) -> None:
    """Write the files that a page shows, and link the recorded traces that examples explain."""
    for traces in (EXPLAINED, SHARDED):
        for link in (folder / traces.name, folder / traces.relative_to(ROOT)):
            if not link.exists():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(traces)
    for name, text in FILE.findall(text_of(page)):
        (folder / name).write_text(text, encoding="utf-8")
    os.environ["OSFMODEL_NO_CONFIG"] = str(int('title="osf.toml"' not in text_of(page)))


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch):
    """Set back what :func:`place_files` sets: only on a page that shows an osf.toml it is read."""
    monkeypatch.setenv("OSFMODEL_NO_CONFIG", "1")


def commands(block: str) -> list[tuple[str, str]]:
    """(command, expected output) pairs of a console block; a line of three dots stands for any lines."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    pairs = []
    for part in parts:
        joined = part.replace("\\\n", " ")
        command, _, output = joined.partition("\n")
        pairs.append((command, output))
    return pairs


def matches(expected: str, found: str) -> bool:
    """Whether the output is as shown, where a line ``...`` matches any number of lines."""
    pieces = [re.escape(piece) for piece in re.split(r"^\.\.\.\n", expected, flags=re.MULTILINE)]
    return re.fullmatch("(?:.*\n)*".join(pieces), found) is not None


@shown(PAGES)
def test_console_examples(page, tmp_path, monkeypatch):
    """Warnings (stderr) are shown in the examples after the output, as a terminal would."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(builtins, "sum", refused)
    place_files(page, tmp_path)
    for block in blocks(page, "console"):
        for command, expected in commands(block):
            if command.startswith(NOT_RUN):
                continue
            words = shlex.split(command, comments=True)
            assert words[0] == "osf", f"{page.name}: cannot run {command!r}"
            result = invoke(words[1:])
            assert matches(expected, result.output), f"{page.name}: $ {command}\n{result.output}\n{STALE} {page.name}"
            assert result.exit_code == 0 or "osf: " in expected, (
                f"{page.name}: $ {command}: a failure that is not shown"
            )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_examples(page, tmp_path, monkeypatch):
    """``pycon`` blocks are doctests, one session a page; ``python`` blocks are executed in order, in one module."""
    monkeypatch.chdir(tmp_path)
    place_files(page, tmp_path)
    session = "\n".join(blocks(page, "pycon"))
    test = doctest.DocTestParser().get_doctest(session, {}, page.name, str(page), 0)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)
    example = types.ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", example)
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), example.__dict__)


LISTED = ("sh", "shell", "bash", "text")
"""Languages of blocks whose output is not compared. Commands on files of the reader's run on stand-ins; those that need
several processes or a GPU are parsed, and most of them run by tests/live."""
CALL = re.compile(r"(?:^|\s)(?:osf|-m osfmodel) ([a-z]+)\b(.*)")


def wrong_options(line: str) -> str | None:
    """The error in the options of the first command of ours in ``line``; None if there is none."""
    found = CALL.search(line)
    if found is None or found[1] not in COMMANDS:
        return None
    command, context = command_called(found[1])
    words = shlex.split(re.split(r"[<>&|#;]| \.\.\.", found[2])[0])
    try:
        command.make_parser(context).parse_args(words)
    except click.UsageError as error:
        return (
            None if isinstance(error, click.BadOptionUsage) and "requires an argument" in error.message else str(error)
        )
    return None


def mentioned(page: Path) -> list[str]:
    """The lines of blocks that are not run, continued ones joined, and what stands in backquotes."""
    text = text_of(page)
    lines = [
        line for kind in LISTED for block in blocks(page, kind) for line in block.replace("\\\n", " ").splitlines()
    ]
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return lines + [" ".join(quoted.split()) for quoted in re.findall(r"`([^`]+)`", prose)]


def lines_of(page: Path) -> list[str]:
    """The commands of ours in blocks without output to compare, that need no launcher; continued lines joined."""
    shown = [block for kind in LISTED for block in blocks(page, kind)]
    lines = [line.removeprefix("$ ") for block in shown for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if re.match(r"osf [a-z]+ ?", line) and "[OPTIONS]" not in line]


OTHERS = {
    "osf predict my-model.json --cluster my-wires.json --workers 8": "the timeline that stands in has 2",
    "osf mcp": "it serves until its input ends",
    "osf sweep grid.yaml --into sweep.parquet --dask tcp://scheduler:8786": "no scheduler is there",
}
"""Lines for which no stand-in serves, and why."""


def left_out(words: Sequence[str]) -> bool:
    """Whether it trains a model of the reader's, measures the machine, or draws where nothing can."""
    draws = any(word.endswith(".png") for word in words) and find_spec("matplotlib") is None
    return words[1] in ("profile", "bench") or draws


@shown([page for page in PAGES if lines_of(page)])
def test_commands_on_files_of_the_reader_run_on_stand_ins(page, tmp_path, monkeypatch):
    """All of a page in turn, so that what one writes the next reads."""
    monkeypatch.chdir(tmp_path)
    stand_ins.place(tmp_path)
    place_files(page, tmp_path)
    for line in lines_of(page):
        words = shlex.split(line, comments=True)
        if left_out(words) or line in OTHERS:
            continue
        result = invoke(words[1:])
        assert result.exit_code == 0, f"{page.name}: $ {line}\n{result.output}"
        assert "Traceback" not in result.output


def test_most_of_these_commands_do_run():
    lines = [shlex.split(line, comments=True) for page in PAGES for line in lines_of(page)]
    assert len(lines) > 50
    assert all(any(line in lines_of(page) for page in PAGES) for line in OTHERS)
    assert sum(left_out(words) for words in lines) < len(lines) / 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_that_are_not_run_have_options_that_exist(page):
    wrong = {line: fault for line in mentioned(page) if (fault := wrong_options(line)) is not None}
    assert wrong == {}


def test_the_search_for_wrong_options_can_fail():
    assert wrong_options("torchrun --nproc-per-node 4 -m osfmodel bench --size 1 -o x.json") is not None
    assert wrong_options("osf tune model.json --unheard-of") is not None
    assert wrong_options("osf tune --memory") is None
    assert wrong_options("HOROVOD_X=1 torchrun -m osfmodel bench --for resnet50-v100 -o x.json > log") is None


def test_the_comparison_can_fail():
    assert matches("a\n...\nd\n", "a\nb\nc\nd\n")
    assert not matches("a\nc\n", "a\nb\nc\n")
    assert commands("$ osf list \\\n  plans\nout\n$ osf x\n") == [("osf list    plans", "out\n"), ("osf x", "")]


def test_the_readme_has_the_two_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    install = "python -m pip install . && osf tune resnet50-v100 --cluster v100-56gib --workers 16 --for ddp"
    test = "python -m pip install -e '.[test]' && python -m pytest -n logical\n"
    checks = (ROOT / ".ci/run").read_text(encoding="utf-8")
    for command in (install, test):
        assert command in text
        assert command in checks.replace("--quiet ", "")


def test_what_needs_pytorch_runs_again_with_it():
    """Tests that are skipped without PyTorch: .ci/run names their file or folder where it is installed."""
    checks = (ROOT / ".ci/run").read_text(encoding="utf-8")
    (again,) = [line for line in checks.splitlines() if line.startswith("python -m pytest -q tests/live")]
    paths = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    skipping = re.compile(r'importorskip\("torch|reason="torch is not')
    needing = [
        path.relative_to(ROOT).as_posix()
        for path, text in paths.items()
        if skipping.search(text) and path != Path(__file__)
    ]
    assert len(needing) > 20
    named = again.split()[4:]
    assert [path for path in needing if not any(path == one or path.startswith(f"{one}/") for one in named)] == []


def test_links_lead_somewhere():
    for page in PAGES:
        prose = BLOCK.sub("", text_of(page))
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose):
            if "://" not in link:
                there = (page.parent / link).exists() or (page in MADE and page.parent / link in MADE)
                assert there, f"{page.name}: {link}"


def test_every_public_name_is_in_the_glossary_or_the_reference():
    """The glossary is the naming authority for the nouns."""
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    nouns = ("Workload", "Layer", "Cluster", "Plan", "Bucket", "Block", "Timeline", "Span", "Solution", "Target")
    assert [noun for noun in nouns if f"`{noun}`" not in text] == []
