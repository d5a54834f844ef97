"""Pages: markup with every text escaped, the frame of all pages, and plots.

``element`` escapes texts and leaves Markup as it is; so only markup that is made here is ever taken for markup. Pages
are self-contained, readable without a script and on paper. The content security policy allows only the page's own style
and script, by their hashes, so that even a name that was not escaped could not run. Widths of plots are in percent, so
that they fit any page, heights and text in pixels.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files

from osfmodel.entities.records import dataclass
from osfmodel.show.picture import decade_ticks, even_ticks

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
    body = (
        element("tr", element("th", row[0], scope="row"), *(element("td", text) for text in row[1:])) for row in rows
    )
    return rows_table(caption, heads, body, style)


def rows_table(caption: str, heads: Sequence[str | Markup], rows: Iterable[Markup], style: str | None = None) -> Markup:
    """A table of rows of :func:`cells`; texts become headings. Without a caption if that is empty."""
    head = (one if isinstance(one, Markup) else element("th", one, scope="col") for one in heads)
    above = [element("caption", caption)] if caption else []
    return element("table", *above, element("thead", element("tr", *head)), element("tbody", *rows), class_=style)


def cells(texts: Iterable[str], **attributes: object) -> Markup:
    """A row of a table."""
    return element("tr", *(element("td", text) for text in texts), **attributes)


def figure_words(words: str) -> Markup:
    """A caption that shows ``words``, and then the details of the mark under the pointer."""
    return element("figcaption", words, class_="say", aria_live="polite")


def _text(value: object) -> str:
    return f"{round(value, 2):g}" if isinstance(value, float) else str(value)


ICON = "data:,"
"""An empty icon, so that no browser asks a server for one."""


def document(title: str, verb: str, version: str, content: Iterable[Markup], script_file: str | None = None) -> str:
    """A page of ``osf VERB`` as text: its style, ``content``, and its script if it has one."""
    style, scripts = _asset("report.css"), [_asset(script_file)] if script_file else []
    allowed = f"'{_hash(scripts[0])}'" if scripts else "'none'"
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src {allowed}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="generator", content=f"osfmodel {version}"),
        element("title", title),
        element("link", rel="icon", href=ICON),
        element("style", Markup(style)),
    )
    running = [element("script", Markup(script)) for script in scripts]
    footer = element("footer", f"Written by osf {verb}, osfmodel {version}.")
    body = element("body", _patterns(), element("main", *content, footer), *running)
    return f"<!doctype html>\n{element('html', head, body, lang='en').text}\n"


def header(name: str, where: str, verdict: str, *more: Markup) -> Markup:
    """The head of a page; ``where`` may be empty."""
    place = [element("p", where, class_="where")] if where else []
    return element("header", element("h1", name), *place, element("p", verdict, class_="verdict"), *more)


def section(key: str, title: str, content: Iterable[Markup]) -> Markup:
    """A part of a page under its heading."""
    heading = element("h2", title, id=f"{key}-title")
    return element("section", heading, *content, id=key, aria_labelledby=f"{key}-title")


def _asset(name: str) -> str:
    return files("osfmodel.show").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()


def _patterns() -> Markup:
    """Hatching and dots, defined once for all drawings of the page."""
    stripe = element("path", d="M0 0V6", stroke_width=3.0, class_="stripe")
    pattern = element(
        "pattern", stripe, id="hatch", width=6, height=6, patternUnits="userSpaceOnUse", patternTransform="rotate(45)"
    )
    dot = element("circle", cx=2, cy=2, r=1.2, class_="dot")
    dots = element("pattern", dot, id="dots", width=5, height=5, patternUnits="userSpaceOnUse")
    return element("svg", element("defs", pattern, dots), width=0, height=0, class_="patterns", aria_hidden="true")


HEIGHT, TOP, BOTTOM = 240, 12, 44
"""Pixels: of a plot's height, above it, and below it for its axis."""
ACROSS, UP = 6, 5
"""Maximum number of ticks on the horizontal and on the vertical axis."""
SHAPES = ("circle", "square", "diamond", "triangle")
"""Shapes of markers, so that lines differ by more than colour."""


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis: ``place`` maps a value to a fraction between 0 and 1."""

    low: float
    high: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """0 for the low end, 1 for the high end; values beyond the ends are extrapolated."""
        if not self.high > self.low:
            return 0.5
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int) -> list[float]:
        """Round numbers on the scale, at most ``most``."""
        return decade_ticks(self.low, self.high, most) if self.logarithmic else even_ticks(self.low, self.high, most)


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale, the positions and texts of its numbers, and its title."""

    scale: Scale
    ticks: Sequence[float]
    write: Callable[[float], str]
    title: str


def plot(across: Axis, up: Axis, drawn: Sequence[Markup], title: str, description: str) -> Markup:
    """A plot with ``drawn`` on it; its parts are placed by :meth:`Scale.place` and :func:`down`."""
    grid = []
    for tick in up.ticks:
        y = down(up.scale.place(tick))
        grid.append(element("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"))
    for tick in across.ticks:
        x = percent(across.scale.place(tick))
        grid.append(element("line", x1=x, x2=x, y1=TOP + HEIGHT, y2=TOP + HEIGHT + 4, class_="tick"))
        grid.append(element("text", across.write(tick), x=x, y=TOP + HEIGHT + 18, class_="across"))
    grid.append(element("text", across.title, x="50%", y=TOP + HEIGHT + 38, class_="across title"))
    numbers = [element("text", up.write(tick), x="100%", y=down(up.scale.place(tick)) + 4) for tick in up.ticks]
    chart = element(
        "svg", element("title", title), element("desc", description), *grid, *drawn, width="100%",
        height=TOP + HEIGHT + BOTTOM, role="group", aria_label=f"{title}. {description}", class_="plot",
    )  # fmt: skip
    margin = element("svg", *numbers, width="100%", height=TOP + HEIGHT + BOTTOM, class_="up", aria_hidden="true")
    head = element("div", up.title, class_="uptitle", aria_hidden="true")
    return head + element("div", margin, chart, class_="axes")


def curve(points: Sequence[tuple[float, float]], across: Axis, up: Axis, style: str) -> Markup:
    """A line through the points (x, y); it stretches with the plot, but its stroke does not."""
    places = " ".join(
        f"{1000 * across.scale.place(x):.5g},{HEIGHT - HEIGHT * up.scale.place(y):.5g}" for x, y in points
    )
    line = element("polyline", points=places, class_=f"line {style}", vector_effect="non-scaling-stroke")
    return element(
        "svg", line, x="0", y=TOP, width="100%", height=HEIGHT, viewBox=f"0 0 1000 {HEIGHT}",
        preserveAspectRatio="none", class_="stretch",
    )  # fmt: skip


def mark(x: float, y: float, shape: str, style: str, say: str | None) -> Markup:
    """A marker at (x, y), parts of the plot; with ``say`` a pointer or the keyboard can reach it."""
    drawn = element("path", d=_SHAPES[shape], class_=f"mark {style}")
    box = element("svg", drawn, x=percent(x), y=down(y), width=1, height=1, class_="stretch")
    if say is None:
        return box
    return element("g", box, class_="point", tabindex="0", role="img", aria_label=say, data_say=say)


_SHAPES = {
    "circle": "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0Z",
    "square": "M-4-4H4V4H-4Z",
    "diamond": "M0-5.5L5.5 0L0 5.5L-5.5 0Z",
    "triangle": "M0-5L5 4H-5Z",
    "dot": "M-2 0a2 2 0 1 0 4 0a2 2 0 1 0-4 0Z",
}


def key(entries: Sequence[tuple[str, str | None, str]]) -> Markup:
    """A legend of lines: (style, marker or None, words)."""
    items = []
    for style, shape, words in entries:
        line = element("line", x1=0, x2=28, y1=8, y2=8, class_=f"line {style}")
        marker = (
            [element("path", d=_SHAPES[shape], transform="translate(14 8)", class_=f"mark {style}")] if shape else []
        )
        parts = [*marker] if style.startswith("cloud") else [line, *marker]
        items.append(element("li", element("svg", *parts, width=28, height=16, aria_hidden="true"), words))
    return element("ul", *items, class_="legend")


def level(value: float, up: Axis, style: str) -> Markup:
    """A horizontal line across the plot."""
    y = down(up.scale.place(value))
    return element("line", x1="0", x2="100%", y1=y, y2=y, class_=f"line {style}")


def down(part: float) -> float:
    """The pixel at a fraction of the height, counted from the bottom."""
    return TOP + HEIGHT * (1 - part)
