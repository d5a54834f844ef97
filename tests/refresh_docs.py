"""Put the real outputs into the console examples of README and docs: ``python -m tests.refresh_docs``.

Then read the difference: a changed output is a changed claim. Lines of three dots stay, with what stands before them.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from pathlib import Path

from click.testing import CliRunner

from osfmodel.cli import main
from tests.test_docs import BLOCK, NOT_RUN, PAGES, commands, matches, place_traces


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


if __name__ == "__main__":
    os.chdir(tempfile.mkdtemp())
    place_traces(Path.cwd())
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = refreshed(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(f"refreshed {page}")
