"""Make the pages that are made from the code, and put the real outputs into examples and notebooks of README and docs.

``python -m tests.refresh_docs``, or with the names of pages, ``docs/faq.md`` or ``docs/notebooks/x.ipynb``, for these
only. Then read the difference: a changed output is a changed claim. Lines of three dots stay, with what stands before
them.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from pathlib import Path

from click.testing import CliRunner

from osfmodel.cli import main
from osfmodel.ledger.check import check
from tests.generated_pages import ACCURACY, accuracy_page, command_pages, schema_pages
from tests.notebooks import NOTEBOOKS, executed, text_of
from tests.repository.test_docs import BLOCK, NOT_RUN, PAGES, commands, matches, place_files


def refreshed(text: str) -> str:
    """The page with every output that no longer matches replaced."""
    for _, kind, block in BLOCK.findall(text):
        if kind != "console":
            continue
        new = block
        for command, expected in commands(block):
            if command.startswith(NOT_RUN):
                continue
            output = CliRunner().invoke(main, shlex.split(command, comments=True)[1:]).output
            if expected and not matches(expected, output):
                head, dots, tail = expected.partition("...\n")
                real = "".join(output.splitlines(keepends=True)[: head.count("\n")]) + dots + tail if dots else output
                new = new.replace(expected, real)
        text = text.replace(block, new)
    return text


def refresh(page: Path, text: str) -> None:
    """Write a page where it differs."""
    if not page.exists() or page.read_text(encoding="utf-8") != text:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
        print(f"refreshed {page}")


if __name__ == "__main__":
    chosen = [Path(name).resolve() for name in sys.argv[1:]] or [*PAGES, ACCURACY, *NOTEBOOKS]
    os.chdir(tempfile.mkdtemp())
    for page, text in {
        **command_pages(),
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
