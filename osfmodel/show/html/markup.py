"""Markup with every text escaped: a small writer for HTML and SVG.

``element`` escapes texts and leaves Markup as it is; so only markup that is made here is ever taken for markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

VOID = {"meta", "link", "br", "input", "col"}
"""HTML elements without an end."""
CLOSED = {"rect", "line", "path", "circle", "polyline"}
"""Elements of SVG that have no content, such as ``<rect/>``."""


@dataclass(frozen=True, slots=True)
class Markup:
    """Text that is markup already."""

    text: str

    def __add__(self, other: Markup) -> Markup:
        return Markup(self.text + other.text)


def element(tag: str, *children: str | Markup, **attributes: object) -> Markup:
    """``<tag name="value">children</tag>``, all texts escaped.

    Attributes with None are left out, those with True have no value; ``_`` at the end of a name is cut off and other
    ``_`` become ``-``. Numbers are written with as many digits as a picture needs.
    """
    parts = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        key = name.rstrip("_").replace("_", "-")
        parts.append(key if value is True else f'{key}="{escape(_text(value))}"')
    head = " ".join(parts)
    if tag in VOID:
        return Markup(f"<{head}>")
    if tag in CLOSED:
        return Markup(f"<{head}/>")
    return Markup(f"<{head}>{joined(*children).text}</{tag}>")


def joined(*children: str | Markup) -> Markup:
    """The children, one after the other."""
    return Markup("".join(child.text if isinstance(child, Markup) else escape(child) for child in children))


def percent(part: float) -> str:
    """A percentage of the width, precise enough that neighbours stay apart when zoomed."""
    return f"{round(100 * part, 3):.7g}%"


def folded(summary: str, content: Markup, **attributes: object) -> Markup:
    """A table that opens at a click on its ``summary``."""
    return element("details", element("summary", summary), element("div", content, class_="tablebox"), **attributes)


def table(
    caption: str, heads: Sequence[str], rows: Iterable[Sequence[str | Markup]], style: str | None = None
) -> Markup:
    """A table; the first cell of each row is its name."""
    head = element("tr", *(element("th", text, scope="col") for text in heads))
    body = [
        element("tr", element("th", row[0], scope="row"), *(element("td", text) for text in row[1:])) for row in rows
    ]
    return element("table", element("caption", caption), element("thead", head), element("tbody", *body), class_=style)


def figure_words(words: str) -> Markup:
    """A caption that shows ``words``, and then the details of the mark under the pointer."""
    return element("figcaption", words, class_="say", aria_live="polite")


def _text(value: object) -> str:
    return f"{round(value, 2):g}" if isinstance(value, float) else str(value)
