"""An explained trace as one HTML page, in the order of the screen: the verdict first, the remedies last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from osfmodel.diagnosis.explanation import BucketRow, Explanation
from osfmodel.diagnosis.waits import Parts
from osfmodel.entities.display import show_time
from osfmodel.entities.rounding import plain_sum
from osfmodel.show.explained.table import (
    COSTS,
    PARTS,
    RANKS,
    REMEDIES,
    WORDS,
    costs,
    group_columns,
    helping,
    messages,
    most_exposed,
    others,
    parts,
    rank_rows,
    title,
    whose_messages,
)
from osfmodel.show.page import Markup, document, element, header, joined, percent, section, table
from osfmodel.show.table import PAGE, Column, Record, for_people, texts

FILLS = {
    "compute": ("backward",),
    "transfer": ("fill", "exposed"),
    "waiting": ("fill odd", "dots"),
    "held": ("update",),
    "copies": ("copy",),
    "input": ("input",),
    "idle": ("idle",),
}
"""CSS classes of each part of a step, drawn one on top of the other."""
ROWED = 64
"""Maximum number of ranks that are drawn; the table lists all."""
MOST = 500
"""Maximum number of messages that are listed, so that a page stays below 1 MB."""
LANE, BAR = 26, 18
"""Pixels: from one bar to the next, and of a bar."""


def explanation_page(one: Explanation, version: str) -> str:
    """The page as text; the same text for the same explanation."""
    return document(f"{one.name}: why a step takes {show_time(one.step_time)}", "explain", version, _sections(one))


def _sections(one: Explanation) -> Iterable[Markup]:
    against = "" if one.cluster is None else f", compared with {one.cluster}"
    yield header(one.name, f"{title(one)}{against}", one.verdict)
    yield section("parts", "Where the time of a step went", _parts(one))
    yield section("causes", "Causes", _causes(one))
    if len(one.ranks) > 1:
        yield section("ranks", "Rank by rank", [_boxed("Ranks", RANKS, rank_rows(one))])
    if one.collectives:
        rows = _boxed("Collectives of a step", group_columns(one), one.collectives)
        yield section("collectives", "Collectives by process group", [rows])
    if one.buckets:
        yield section("messages", "Messages of a step", _messages(one))
    if one.remedies:
        yield section("remedies", "What would help", _remedies(one))
    if one.remarks:
        notes = element("ul", *(element("li", f"{remark}.") for remark in one.remarks), class_="notes")
        yield section("notes", "Caveats", [notes])


def _parts(one: Explanation) -> Iterable[Markup]:
    """A stacked bar of the mean, one bar for each rank, and the figures of the mean."""
    bars = [("a step", one.parts)]
    if 1 < len(one.ranks) <= ROWED:
        bars += [(f"rank {rank.rank}", rank.parts) for rank in one.ranks]
    longest = max(plain_sum(getattr(figures, field.name) or 0.0 for field in fields(Parts)) for _, figures in bars)
    names, drawn = [], []
    for place, (name, figures) in enumerate(bars):
        y = 2 + place * LANE
        names.append(element("text", name, x="0", y=y + 14))
        drawn.append(_stacked(name, figures, longest, y))
    tall = 4 + len(bars) * LANE
    margin = element("svg", *names, width="100%", height=tall, class_="plannames", aria_hidden="true")
    label = "Where the time of a step went, each part as long as it took"
    chart = element("svg", element("title", label), *drawn, width="100%", height=tall, role="group", aria_label=label)
    yield element("figure", element("div", margin, chart, class_="plans stacked"))
    yield _boxed("Parts of a step", PARTS, parts(one), swatch=lambda part: _swatch(part.name))


def _stacked(name: str, figures: Parts, longest: float, y: int) -> Markup:
    at, drawn, said = 0.0, [], []
    for part, styles in FILLS.items():
        seconds = getattr(figures, part) or 0.0
        if seconds:
            place = {"x": percent(at / longest), "y": y, "width": percent(seconds / longest), "height": BAR}
            drawn += [element("rect", **place, class_=style) for style in styles]
            said.append(f"{WORDS[part]} {show_time(seconds)}")
        at += seconds
    words = f"{name}: {', '.join(said)}"
    return element("g", element("title", words), *drawn, role="img", aria_label=words)


def _swatch(part: str) -> Markup:
    drawn = [element("rect", x=0, y=1, width=16, height=12, class_=style) for style in FILLS[part]]
    return element("svg", *drawn, width=16, height=14, class_="swatch", aria_hidden="true")


def _bar(share: float, style: str) -> Markup:
    """A bar in a cell of a table, beside its figure."""
    drawn = element("rect", x=0, y=0, width=percent(min(1.0, share)), height=12, class_=style)
    return element("svg", drawn, width="100%", height=12, class_="cellbar", aria_hidden="true")


def _causes(one: Explanation) -> Iterable[Markup]:
    drawn = Drawn("", lambda cost: _bar(cost.seconds / cost.step_time, "backward"), 3)
    yield _boxed("What each cause costs", COSTS, costs(one), "worded", drawn)


def _messages(one: Explanation) -> Iterable[Markup]:
    shown = most_exposed(one.buckets, MOST)
    drawn = Drawn("in the step", lambda row: _when(row, one.step_time))
    yield _boxed("Collectives of a step", messages(one), shown, drawn=drawn)
    stroke = "A stroke is where the gradients of a message were ready, the bar where it was under way."
    words = f"{whose_messages(one)} {stroke}".lstrip()
    if len(one.buckets) > len(shown):
        words += f" These are the {len(shown)} of {len(one.buckets)} messages with the most exposed time; "
        words += "for all: --format csv."
    yield element("p", words, class_="note")


def _when(row: BucketRow, step_time: float) -> Markup:
    """A message drawn along the step; its exposed part is hatched."""
    left, right = (percent(min(1.0, max(0.0, time / step_time))) for time in (row.ready, row.start))
    long = min(max(0.0, row.end - row.start), step_time)
    place = {"x": right, "y": 0, "width": percent(long / step_time), "height": 12}
    drawn = [element("rect", **place, class_="fill")]
    if long and row.exposed:
        share = min(1.0, row.exposed / long)
        drawn.append(element("rect", **place | {"y": 12 - 12 * share, "height": 12 * share}, class_="exposed"))
    drawn.append(element("line", x1=left, x2=left, y1=0, y2=12, class_="ready"))
    lane = element("rect", x=0, y=0, width="100%", height=12, class_="lane")
    return element("svg", lane, *drawn, width="100%", height=12, class_="cellbar", aria_hidden="true")


def _remedies(one: Explanation) -> Iterable[Markup]:
    useful = helping(one.remedies)
    most = max(((remedy.throughput or 1.0) - 1 for remedy in useful), default=0.0)
    if useful:
        drawn = Drawn("", lambda remedy: _bar(((remedy.throughput or 1.0) - 1) / most, "update"), 3)
        yield _boxed("Remedies, the most first", REMEDIES, useful, "worded named", drawn)
    yield from (element("p", line, class_="note") for line in others(one.remedies))


class Drawn(NamedTuple):
    """A column that is drawn instead of written; ``place``: its index, last if None."""

    head: str
    draw: Callable[[Any], Markup]
    place: int | None = None


def _boxed(
    caption: str,
    columns: Sequence[Column[Record]],
    records: Iterable[Record],
    style: str = "",
    drawn: Drawn | None = None,
    swatch: Callable[[Record], Markup] | None = None,
) -> Markup:
    """A table that scrolls by itself, also by the keyboard, if the page is too narrow.

    ``swatch``: a mark that is drawn before the name of a row.
    """
    shown = for_people(columns, PAGE)
    heads = [one.heading(PAGE) for one in shown]
    rows: list[list[str | Markup]] = []
    for record in records:
        first, *others = texts(shown, record)
        rows.append([first if swatch is None else joined(swatch(record), first), *others])
        if drawn is not None:
            rows[-1].insert(len(heads) if drawn.place is None else drawn.place, drawn.draw(record))
    if drawn is not None:
        heads.insert(len(heads) if drawn.place is None else drawn.place, drawn.head)
    region = {"tabindex": "0", "role": "region", "aria_label": caption}
    return element("div", table(caption, heads, rows), class_=f"tablebox {style}".strip(), **region)
