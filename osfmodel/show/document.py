"""A result as text in the format that was asked for."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from osfmodel.entities.errors import UsageError
from osfmodel.entities.files import documents

if TYPE_CHECKING:
    from osfmodel.show.terminal import Console

FORMATS = ("table", "json", "yaml", "csv")
CODE = "code"
"""The format of lines to paste, of commands whose result may have a method ``code``."""
MARKDOWN = "markdown"
"""Format of results that have ``markdown()``, as text for a pull request."""
SUFFIXES = {
    ".json": "json",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".csv": "csv",
    ".py": CODE,
    ".env": CODE,
    ".args": CODE,
    ".hjson": CODE,
    ".sh": CODE,
}
"""Format of an output file, by the ending of its name."""
PLAIN = ("", ".txt")
"""Endings of tables."""
PICTURES = (".html", ".htm", ".pdf", ".png", ".svg", ".jpg", ".xlsx", ".docx")
"""Endings that are refused: a table under such a name would not open in any program."""


class Result(Protocol):
    """The result of a command. One that has lines to paste also has ``endings`` and ``code(ending)``.

    One that can be written for a pull request has ``markdown()``, and its command lists the format.

    One that a command draws as well says the endings of such files in ``drawn``, one for notebooks has ``sheet()``.
    """

    def document(self) -> dict[str, Any]:
        """The result for JSON and YAML; its keys are a public contract."""
        return {"schema_version": documents.SCHEMA_VERSION, **self.content()}

    def content(self) -> dict[str, Any]:
        """The document without the version of its schema."""

    def rows(self) -> list[dict[str, Any]]:
        """Rows for CSV: flat, all with the same columns."""

    def show(self, console: Console) -> None:
        """Print the result on a rich console."""

    def warnings(self) -> list[str]:
        """Warnings for stderr."""
        return []


def choose_format(asked: str | None, output: str | None, result: Result) -> str:
    """The format asked for; else that of the output file's ending; else a table.

    The result's own ``endings`` come first. Raises UsageError for the ending of a picture, for that of settings that
    the result does not have, and for an unknown one.
    """
    if asked is not None:
        return asked
    ending, own = ending_of(output), getattr(result, "endings", None)
    if ending in PICTURES:
        drawn = getattr(result, "drawn", ())
        others = (
            f"or as {' or '.join(drawn)}"
            if drawn
            else "pictures: osf report; pages (.html): osf report, explain, scale"
        )
        raise UsageError(f"-o {output}: this is written as text, .json, .yaml or .csv; {others}")
    if own is not None and ending in own:
        return CODE
    if ending == ".md" and hasattr(result, MARKDOWN):
        return MARKDOWN
    chosen = SUFFIXES.get(ending, "table")
    if own is not None and chosen == CODE:
        raise UsageError(f"-o {output}: these settings make no {ending}: name it {' or '.join(own or ('.json',))}")
    if chosen == CODE and not hasattr(result, "code"):
        raise UsageError(
            f"-o {output}: only osf tune and osf scale --for have lines to paste: name it .json, .yaml, .csv or .txt"
        )
    if ending not in SUFFIXES and ending not in PLAIN:
        known = ", ".join(dict.fromkeys([*(own or ()), ".json", ".yaml", ".csv"]))
        raise UsageError(f"-o {output}: nothing is written as {ending}: name it {known} or .txt, or give --format too")
    return chosen


def ending_of(output: str | None) -> str:
    """The ending of a file name, such as ``.json`` of ``plan.json``; "" without a name."""
    return Path(output or "").suffix.lower()


def render(style: str, result: Result, for_terminal: bool, ending: str = "", few_notes: bool = False) -> str:
    """``result`` in one of FORMATS, or in MARKDOWN or CODE if it has that.

    ``for_terminal`` allows colour and the terminal's own width in tables.

    ``ending``: of the output file's name; a result with several kinds of settings files writes the one that ends so.

    ``few_notes``: whether a table has only the first notes.
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
    if style == MARKDOWN and hasattr(result, MARKDOWN):
        return str(getattr(result, MARKDOWN)())
    if style == CODE:
        if not hasattr(result, "code"):
            raise UsageError("--format code: there are no lines to paste here: write --format table")
        return str(result.code(ending))
    return _table(result, for_terminal, few_notes)


def _table(result: Result, for_terminal: bool, few_notes: bool) -> str:
    from rich.console import Console

    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=for_terminal, width=None if for_terminal else 120, highlight=False)
    console.few_notes = few_notes  # type: ignore[attr-defined]
    result.show(console)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
