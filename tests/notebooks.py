"""The notebooks of the docs, run in a fresh kernel beside the files that lie beside them.

``python -m tests.refresh_docs docs/notebooks/NAME.ipynb`` stores their outputs.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

FOLDER = ROOT / "docs/notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LONGEST = 300
"""Seconds that a cell may take, many times what any does."""


def executed(path: Path) -> Any:
    """The notebook with the outputs of a fresh kernel, in a folder of its own. Raises CellExecutionError."""
    import nbclient
    import nbformat
    from traitlets.config import Config

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(path.parent, folder, dirs_exist_ok=True)
        sockets = {"transport": "ipc", "connection_file": f"{folder}/kernel.json"}  # no port of the machine
        client = nbclient.NotebookClient(
            notebook,
            timeout=LONGEST,
            coalesce_streams=True,
            config=Config({"ConnectionFileMixin": sockets}),
            resources={"metadata": {"path": folder}},
        )
        own = {name: value for name, value in os.environ.items() if not name.startswith(("OSFMODEL", "IPYTHON"))}
        client.execute(env={**own, "PYTHONPATH": str(ROOT), "IPYTHONDIR": f"{folder}/ipython"})
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times
    notebook.metadata = json.loads(path.read_text(encoding="utf-8"))["metadata"]  # without the version of Python
    return notebook


def text_of(notebook: Any) -> str:
    """The notebook as the text of its file."""
    import nbformat

    return str(nbformat.writes(notebook)) + "\n"


def outputs(notebook: Any) -> Iterator[tuple[int, str, str]]:
    """(cell, type, text) of each output that is text."""
    for number, cell in enumerate(notebook["cells"]):
        for output in cell.get("outputs", ()):
            texts = {"stream": output["text"]} if "text" in output else output.get("data", {})
            for kind, text in sorted(texts.items()):
                if kind == "stream" or kind.startswith("text/"):
                    yield number, kind, "".join(text)
