"""A result as text in the format that was asked for."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any, Protocol

from osfmodel.entities.errors import UsageError
from osfmodel.entities.files import documents

FORMATS = ("table", "json", "yaml", "csv", "code")
SUFFIXES = {
    ".json": "json",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".csv": "csv",
    ".py": "code",
    ".env": "code",
    ".args": "code",
    ".hjson": "code",
    ".sh": "code",
}
"""What the name of an output file says about its format."""
PICTURES = (".html", ".htm", ".pdf", ".png", ".svg", ".jpg", ".xlsx", ".docx")
"""What no result is written as: a table under such a name would open nowhere."""


class Result(Protocol):
    """What a command hands over to be shown. One that has lines to paste also has ``endings`` and ``code(ending)``."""

    def document(self) -> dict[str, Any]:
        """For JSON and YAML: the contract."""

    def rows(self) -> list[dict[str, Any]]:
        """For CSV: flat, all rows with the same columns."""

    def show(self, console: Any) -> None:
        """For a person, on a rich console."""

    def warnings(self) -> list[str]:
        """What to be careful about, for stderr."""


def choose_format(asked: str | None, output: str | None, result: Result) -> str:
    """The format asked for, or the one that the output file's name says, or a table.

    The endings of the files that a result has of its own (``endings``) come first. Raises UsageError for the name of a
    picture, and of lines that the result has not.
    """
    if asked is not None:
        return asked
    ending, own = ending_of(output), getattr(result, "endings", None)
    if ending in PICTURES:
        others = "pictures: osf report; pages (.html): osf report and osf explain"
        raise UsageError(f"-o {output}: this is written as text, .json, .yaml or .csv; {others}")
    if own is not None and ending in own:
        return "code"
    chosen = SUFFIXES.get(ending, "table")
    if own is not None and chosen == "code":
        raise UsageError(f"-o {output}: these settings make no {ending}: name it {' or '.join(own or ('.json',))}")
    if chosen == "code" and not hasattr(result, "code"):
        raise UsageError(f"-o {output}: only osf tune has lines to paste: name it .json, .yaml, .csv or .txt")
    return chosen


def ending_of(output: str | None) -> str:
    """``.json`` of ``plan.json``; "" of none."""
    return Path(output or "").suffix.lower()


def render(style: str, result: Result, for_terminal: bool, ending: str = "") -> str:
    """``result`` in one of FORMATS; ``for_terminal`` allows colour and the terminal's own width in tables.

    ``ending``: of the name of the file, which says in which of its own forms a result writes its code.
    """
    if style == "json":
        return documents.encode(result.document())
    if style == "yaml":
        import yaml

        return str(yaml.safe_dump(result.document(), sort_keys=False, allow_unicode=True))
    if style == "csv":
        rows = result.rows()
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return buffer.getvalue()
    if style == "code":
        if not hasattr(result, "code"):
            raise UsageError("--format code: only osf tune has lines to paste")
        return str(result.code(ending))
    return _table(result, for_terminal)


def _table(result: Result, for_terminal: bool) -> str:
    from rich.console import Console

    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=for_terminal, width=None if for_terminal else 120, highlight=False)
    result.show(console)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
