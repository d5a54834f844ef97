"""Make the pages that are made from the code, and put the real outputs into examples and notebooks of README and docs.

``python -m tests.refresh_docs``, or with the names of pages, ``docs/faq.md`` or ``docs/notebooks/x.ipynb``, for these
only. Then read the difference: a changed output is a changed claim. Lines of three dots stay.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from difflib import SequenceMatcher
from pathlib import Path

from osfmodel.ledger.check import check
from tests.commands import invoke
from tests.generated_pages import ACCURACY, accuracy_page, index_page, schema_pages
from tests.notebooks import NOTEBOOKS, executed, text_of
from tests.repository.test_docs import BLOCK, NOT_RUN, PAGES, commands, matches, place_files

DOTS = "...\n"


def excerpt(expected: str, output: str) -> str:
    """The output with the lines left out that ``expected`` leaves out: of each part that it shows the most alike."""
    lines, made, at = output.splitlines(keepends=True), [], 0
    for number, part in enumerate(expected.split(DOTS)):
        shown = part.splitlines(keepends=True)
        starts = range(at, len(lines) - len(shown) + 1) if number else [0]
        at = max(starts, key=lambda start: alike(shown, lines[start:]), default=at)
        made.append("".join(lines[at : at + len(shown)]))
        at += len(shown)
    return DOTS.join(made)


def alike(shown: list[str], lines: list[str]) -> float:
    """The likeness of lines one by one, in all."""
    return sum(SequenceMatcher(None, one, other).ratio() for one, other in zip(shown, lines, strict=False))


def refreshed(text: str) -> str:
    """The page with every output that no longer matches replaced."""
    for _, kind, block in BLOCK.findall(text):
        if kind != "console":
            continue
        new = block
        for command, expected in commands(block):
            if command.startswith(NOT_RUN):
                continue
            output = invoke(shlex.split(command, comments=True)[1:]).output
            if expected and not matches(expected, output):
                new = new.replace(expected, excerpt(expected, output) if DOTS in expected else output)
        text = text.replace(block, new)
    return text


def refresh(page: Path, text: str) -> None:
    """Write a page where it differs."""
    if not page.exists() or page.read_text(encoding="utf-8") != text:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
        print(f"refreshed {page}")


if __name__ == "__main__":
    if unknown := [name for name in sys.argv[1:] if not Path(name).is_file()]:
        sys.exit(f"refresh_docs: {unknown[0]} is no page: give files of docs/ or README.md, or nothing for all")
    chosen = [Path(name).resolve() for name in sys.argv[1:]] or [*filter(Path.exists, PAGES), ACCURACY, *NOTEBOOKS]
    os.chdir(tempfile.mkdtemp())
    for page, text in {
        **index_page(),
        **schema_pages(),
        **(accuracy_page(check()) if ACCURACY in chosen else {}),
    }.items():
        refresh(page, text)
    for page in chosen:
        if page.suffix == ".ipynb":
            refresh(page, text_of(executed(page)))
            continue
        place_files(page, Path.cwd())
        refresh(page, refreshed(page.read_text(encoding="utf-8")))
