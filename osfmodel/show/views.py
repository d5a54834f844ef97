"""The views of nouns and results: their document, the rows of their table, a DataFrame, and HTML for notebooks.

Methods of :data:`osfmodel.entities.display.VIEWED` lead here, so that a noun, the command line and a page say the same.
The HTML is a few tables, styled in place, in the colours of the page around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from osfmodel.diagnosis.comparing import RunComparison
from osfmodel.diagnosis.explanation import Explanation
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import UsageError
from osfmodel.entities.plan import Plan
from osfmodel.entities.workload import Workload
from osfmodel.planning.results import Comparison, Prediction, Tuning
from osfmodel.planning.scaling.curve import ScaleCurve
from osfmodel.planning.sweep import FIELDS
from osfmodel.planning.sweep.results import Sweep
from osfmodel.show.compared import Compared
from osfmodel.show.explained import Explained
from osfmodel.show.page import Markup, element
from osfmodel.show.predicted import Predicted
from osfmodel.show.profiles import FileContent
from osfmodel.show.scale import Scaled
from osfmodel.show.sweep import Swept
from osfmodel.show.table import PAGE, ListedRows, Sheet, filled, texts
from osfmodel.show.tuned import Lines, Tuned

SHOWN = 20
"""Maximum number of rows of a table."""
SAID = 12
"""Maximum number of notes."""
FIGURES = frozenset("0123456789+-")
LINE = "1px solid rgba(128,128,128,.4)"
"""A border that shows on light and on dark."""
BOX = "overflow-x:auto;max-width:100%;margin:.3em 0 .6em"
TABLE = "border-collapse:collapse;color:inherit;background:none;font-size:90%;margin:0"
CELL = "padding:.2em .7em .2em 0;vertical-align:top;border:none;background:none;"
CODE = (
    f"overflow-x:auto;max-height:24em;padding:.5em;border:{LINE};color:inherit;background:none;font-size:90%;"
    "margin:.3em 0"
)
WORDS = "margin:.2em 0"
WRAPPED = 32
"""Characters from which a cell may be wrapped."""


def _parts(sheet: Sheet) -> Iterator[Markup]:
    yield element("div", element("b", sheet.title), style=WORDS)
    if sheet.verdict:
        yield element("div", sheet.verdict, style=WORDS)
    for table in sheet.tables:
        if table.rows:
            yield from _table(table)
    yield from (element("div", f"Note: {note}.", style=WORDS) for note in sheet.notes[:SAID])
    if len(sheet.notes) > SAID:
        yield _left_out(len(sheet.notes) - SAID, "note")
    if sheet.code:
        yield element("pre", element("code", sheet.code), style=CODE)


def _table(table: ListedRows) -> Iterator[Markup]:
    """The first rows of a table, without the columns that are empty in all of them."""
    rows = table.rows[:SHOWN]
    columns = filled(table.columns, rows)
    cells = [texts(columns, row) for row in rows]
    figures = [all(cell[0] in FIGURES for cell in column if cell) for column in zip(*cells, strict=True)]
    sides = ["right" if place and found else "left" for place, found in enumerate(figures)]
    head = [_cell("th", one.heading(PAGE), side) for one, side in zip(columns, sides, strict=True)]
    body = ([_cell("td", text, side) for text, side in zip(row, sides, strict=True)] for row in cells)
    if table.title:
        yield element("div", element("b", table.title), style=WORDS)
    inner = element("thead", _row(head)) + element("tbody", *map(_row, body))
    yield element("div", element("table", inner, class_="osfmodel", style=TABLE), style=BOX)
    if left := table.left_out + len(table.rows) - len(rows):
        yield _left_out(left, "row")


def _row(cells: Iterable[Markup]) -> Markup:
    return element("tr", *cells, style=f"background:none;border-bottom:{LINE}")


def _cell(tag: str, text: str, side: str) -> Markup:
    width = "min-width:14em" if len(text) > WRAPPED else "white-space:nowrap" if tag == "td" else "font-weight:bold"
    return element(tag, text, style=f"{CELL}text-align:{side};{width}")


def _left_out(number: int, what: str) -> Markup:
    words = f"{number:,} more {what}{'s' * (number != 1)}: to_dict() has all."
    return element("div", element("i", words), style=WORDS)


class View(NamedTuple):
    """The forms of a type of noun.

    result: (noun) -> the result of the command, which has its document, its rows and its sheet
    keys:   of its rows, if there may be none
    """

    result: Callable[[Any], Any]
    keys: Sequence[str] | None = None


def document(noun: Any) -> dict[str, Any]:
    """The JSON document of the noun, as the command line writes it."""
    found: dict[str, Any] = VIEWS[type(noun)].result(noun).document()
    return found


def records(noun: Any) -> list[dict[str, Any]]:
    """The rows of the noun's table, as the command line writes them to CSV."""
    found: list[dict[str, Any]] = VIEWS[type(noun)].result(noun).rows()
    return found


def frame(noun: Any) -> Any:
    """The rows as a pandas DataFrame. Raises UsageError without pandas."""
    try:
        import pandas
    except ImportError:
        raise UsageError("to_frame() needs pandas: pip install 'osfmodel[frames]'") from None
    return pandas.DataFrame(records(noun), columns=VIEWS[type(noun)].keys)


def html(noun: Any) -> str:
    """The noun as HTML."""
    return element("div", *_parts(VIEWS[type(noun)].result(noun).sheet())).text


VIEWS: Mapping[type, View] = {
    Workload: View(FileContent),
    Cluster: View(FileContent),
    Plan: View(FileContent),
    Prediction: View(lambda one: Predicted([one.subject.of([one])])),
    Comparison: View(lambda one: Predicted([one])),
    Tuning: View(lambda one: Tuned(one, Lines((), lambda ending: one.rendered), None if one.what_if.words else {})),
    ScaleCurve: View(Scaled),
    Explanation: View(Explained),
    RunComparison: View(Compared),
    Sweep: View(lambda one: Swept(one, {}, lambda: one), tuple(FIELDS)),
}
"""The views of each type."""
