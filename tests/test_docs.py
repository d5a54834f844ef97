"""README and docs: every console example is run and its output compared, every Python example is executed."""

from __future__ import annotations

import doctest
import re
import shlex
import sys
import textwrap
import types
from pathlib import Path

import pytest
from click.testing import CliRunner

from osfmodel.cli import main
from tests.conftest import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
NOT_RUN = ("python -m pip", "python benchmarks/", "OSFMODEL_DATA=", "pip install", "eval ", "mkdir ", "bash ")
"""Beginnings of example commands that install, measure for minutes, or need what is not here."""


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language."""
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [textwrap.dedent(text) for _, kind, text in found if kind == language]


def commands(block: str) -> list[tuple[str, str]]:
    """(command, expected output) pairs of a console block; a line of three dots stands for any lines."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    pairs = []
    for part in parts:
        joined = part.replace("\\\n", " ")
        command, _, output = joined.partition("\n")
        pairs.append((command, output))
    return pairs


def place_traces(folder: Path) -> None:
    """The recorded traces that examples explain."""
    (folder / "explained").symlink_to(ROOT / "tests/formats/data/explained")


def matches(expected: str, found: str) -> bool:
    """Whether the output is as shown, where a line ``...`` matches any number of lines."""
    pieces = [re.escape(piece) for piece in re.split(r"^\.\.\.\n", expected, flags=re.MULTILINE)]
    return re.fullmatch("(?:.*\n)*".join(pieces), found) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_console_examples(page, tmp_path, monkeypatch):
    """Warnings (stderr) are shown in the examples after the output, as a terminal would."""
    monkeypatch.chdir(tmp_path)
    place_traces(tmp_path)
    for block in blocks(page, "console"):
        for command, expected in commands(block):
            if command.startswith(NOT_RUN):
                continue
            words = shlex.split(command, comments=True)
            assert words[0] == "osf", f"{page.name}: cannot run {command!r}"
            result = CliRunner().invoke(main, words[1:])
            assert matches(expected, result.output), f"{page.name}: $ {command}\n{result.output}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_examples(page, tmp_path, monkeypatch):
    """``pycon`` blocks are doctests, one session a page; ``python`` blocks are executed in order, in one module."""
    monkeypatch.chdir(tmp_path)
    place_traces(tmp_path)
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


def test_the_comparison_can_fail():
    assert matches("a\n...\nd\n", "a\nb\nc\nd\n")
    assert not matches("a\nc\n", "a\nb\nc\n")
    assert commands("$ osf list \\\n  plans\nout\n$ osf x\n") == [("osf list    plans", "out\n"), ("osf x", "")]


def test_the_readme_has_the_two_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    install = "python -m pip install . && osf tune resnet50-v100 --cluster v100-56gib --workers 16 --for ddp"
    assert install in text
    assert "python -m pip install -e '.[test]' && python -m pytest" in text


def test_links_lead_somewhere():
    for page in PAGES:
        prose = BLOCK.sub("", page.read_text(encoding="utf-8"))
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_every_public_name_is_in_the_glossary_or_the_reference():
    """The glossary is the naming authority for the nouns."""
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    nouns = ("Workload", "Layer", "Cluster", "Plan", "Bucket", "Block", "Timeline", "Span", "Solution", "Target")
    assert [noun for noun in nouns if f"`{noun}`" not in text] == []
