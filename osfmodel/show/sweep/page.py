"""A sweep as one page: the question, the best points, a scatter plot, influences, and a table to sort and filter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from osfmodel.entities.display import how_many, listed
from osfmodel.planning.sweep import DEFAULTS
from osfmodel.show.page import (
    ACROSS,
    UP,
    Axis,
    Markup,
    Scale,
    cells,
    curve,
    document,
    down,
    element,
    figure_words,
    header,
    key,
    mark,
    percent,
    plot,
    rows_table,
    section,
)
from osfmodel.show.sweep import SHARES, Record, common_words, shown_columns
from osfmodel.show.sweep.points import (
    TITLES,
    PlotAxis,
    Spot,
    SweptPoints,
    axes_of,
    best_spots,
    counts_shown,
    tick_texts,
)
from osfmodel.show.table import Column, texts

PRINTED = 500
"""Largest number of rows on paper; sweep.js has the same."""
MARGIN = 0.04
"""Part of an axis that is free at each of its ends."""
CHOSEN = {*DEFAULTS, "fits", "error"}
"""Columns that sweep.js makes a filter for, if they have few values."""
DIGITS = "{:.9g}".format


def sweep_page(shown: SweptPoints, command: str, version: str) -> str:
    """The page as text; ``command``: the command line that writes it."""
    return document(f"{shown.swept.sweep.name}: sweep", "sweep", version, _sections(shown, command), "sweep.js")


def _sections(shown: SweptPoints, command: str) -> Iterable[Markup]:
    yield _header(shown)
    if shown.best:
        yield section("best", f"Best in {listed([TITLES[goal] for goal in shown.goals])}", _best(shown))
    across, up, spots = axes_of(shown)
    if spots:
        title = f"{TITLES[up.key]} over {TITLES[across.key]}"
        yield section("plot", f"{title[:1].upper()}{title[1:]}", _scatter(shown, across, up, spots))
    if shown.swept.influences is not None:
        yield section("influence", f"Influence on {TITLES[str(shown.swept.goal)]}", _influences(shown))
    if shown.points:
        yield section("points", "Points", _points(shown))
    yield section("command", "Command", [element("p", "This page comes from"), element("pre", command)])


def _header(shown: SweptPoints) -> Markup:
    found = f"{shown.whole:,} point{'s' * (shown.whole != 1)}, {shown.failed:,} without a prediction."
    answered = f" {shown.asked:,} under the condition." if "where" in shown.swept.asked else ""
    none = " No point is like that." if shown.whole and not shown.asked else ""
    unknown = f"No point has a value for {listed(shown.goals)}." if shown.goals and not shown.best else ""
    return header(
        shown.swept.sweep.name,
        f"Asked: {shown.question}" if shown.question else "",
        found + (none or answered),
        *(element("p", one, class_="doubt") for one in (*shown.swept.sweep.remarks, shown.left_out, unknown) if one),
    )


def _best(shown: SweptPoints) -> Iterable[Markup]:
    columns = shown_columns(shown.best)
    yield from _common(shown.best, columns)
    heads, rows = _heads(columns, shown.best), [_row(columns, record) for record in shown.best]
    yield element("div", rows_table("Best points", heads, rows), class_="tablebox swept")
    yield element("p", "No other point is better in one of these and as good in the others.", class_="note")


def _common(points: Sequence[Record], columns: Sequence[Column[Record]]) -> Iterable[Markup]:
    if common := common_words(points, columns):
        yield element("p", f"The same in all: {common}.", class_="note")


def _heads(columns: Sequence[Column[Record]], points: Sequence[Record]) -> list[Markup]:
    """The headings, those of texts to the left; and a mark on those that sweep.js makes a filter for."""
    worded = {one.key for one in columns if any(isinstance(record[str(one.key)], str) for record in points)}
    return [
        element(
            "th",
            str(one.head),
            scope="col",
            class_="word" if one.key in worded else None,
            data_choose=one.key in CHOSEN,
        )
        for one in columns
    ]


def _row(columns: Sequence[Column[Record]], record: Record, **attributes: object) -> Markup:
    return element("tr", *(_cell(one, record) for one in columns), **attributes)


def _cell(column: Column[Record], record: Record) -> Markup:
    """A cell, with its number where the text is rounded or has a unit: rows are sorted by it."""
    text, value = column.shown(record), record[str(column.key)]
    if isinstance(value, str):
        return element("td", text, class_="word")
    if value is None or isinstance(value, bool):
        return element("td", text)
    if column.key == "low_s":  # the width of the error band
        value = (record["high_s"] - record["low_s"]) / record["step_time_s"]
    exact = DIGITS(value)
    return element("td", text, data_v=None if exact == text else exact)


def _scatter(shown: SweptPoints, across: PlotAxis, up: PlotAxis, spots: Sequence[Spot]) -> Iterable[Markup]:
    right, upward = _axis(across, [one.x for one in spots], ACROSS), _axis(up, [one.y for one in spots], UP)
    best = best_spots(shown, spots)
    marked = {one.number for one in best}
    drawn = [_dot(one, right, upward) for one in spots if one.number not in marked]
    if len(shown.goals) == 2:
        drawn.append(curve([(one.x, one.y) for one in best], right, upward, "front"))
    columns = shown_columns(shown.points)
    for one in best:
        said = texts(columns, shown.points[one.number])
        words = ", ".join(f"{column.head} {text}" for column, text in zip(columns, said, strict=True) if text)
        place = right.scale.place(one.x), upward.scale.place(one.y)
        diamond = mark(*place, "diamond", "best", None)
        drawn.append(
            element("g", diamond, class_="point", tabindex="0", role="img", aria_label=words, data_row=f"p{one.number}")
        )
    title = f"{up.title} over {across.title}"
    chart = plot(right, upward, drawn, title, "The table of points has every value.")
    words = "Hover, tap or focus a point for its values." if best else "Hover or tap a point for its values."
    yield element("figure", chart, figure_words(words))
    if best:
        yield key([("cloud c5", "circle", "other points"), ("best", "diamond", "best points")])
    missing = len(shown.points) - len(spots)
    if missing:
        yield element("p", f"Not drawn: {how_many(missing, 'point')} without both values.", class_="note")


def _axis(measure: PlotAxis, values: Sequence[float], most: int) -> Axis:
    """An axis with a margin at both ends."""
    low, high = min(values), max(values)
    if measure.logarithmic:
        factor = (high / low) ** MARGIN
        scale = Scale(low / factor, high * factor, True)
    else:
        margin = (high - low) * MARGIN
        scale = Scale(max(low - margin, min(low, 0.0)), high + margin)
    ticks = counts_shown(values, most) if measure.key == "workers" else scale.ticks(most)
    written = dict(zip(ticks, tick_texts(ticks), strict=True))
    return Axis(scale, ticks, written.__getitem__, measure.title)


def _dot(spot: Spot, across: Axis, up: Axis) -> Markup:
    x, y = percent(across.scale.place(spot.x)), down(up.scale.place(spot.y))
    return element("circle", cx=x, cy=y, r=4, class_="cloud c5 dot", data_row=f"p{spot.number}")


def _influences(shown: SweptPoints) -> Iterable[Markup]:
    rows = (cells(texts(SHARES, one)) for one in shown.swept.influences or ())
    yield element("div", rows_table("Influences", [str(one.head) for one in SHARES], rows), class_="tablebox")
    words = (
        f"Parts of the variance of ln({shown.swept.goal}) that a list of the grid explains alone, and together with "
        "others; and the largest mean over the smallest among its values."
    )
    yield element("p", words, class_="note")
    yield from (element("p", f"{remark[:1].upper()}{remark[1:]}.", class_="note") for remark in shown.swept.remarks)


def _points(shown: SweptPoints) -> Iterable[Markup]:
    columns = shown_columns(shown.points)
    yield from _common(shown.points, columns)
    yield element("div", class_="tools filters")
    yield element("p", how_many(len(shown.points), "point"), class_="note found", role="status")
    rows = [
        _row(columns, record, id=f"p{number}", class_="beyond" if number >= PRINTED else None)
        for number, record in enumerate(shown.points)
    ]
    table = rows_table("Points", _heads(columns, shown.points), rows)
    yield element("div", table, class_="tablebox swept all", tabindex="0", role="region", aria_label="Table of points")
    if len(shown.points) > PRINTED:
        yield element("p", f"On paper: the first {PRINTED} rows.", class_="note paper")
    found = sorted({record["cost_of"] for record in shown.points if record["cost_of"]})
    costs = [f"{'the' if one == 'training' else 'a'} {one}" for one in found]
    if costs:
        yield element("p", f"Cost: of {' or '.join(costs)}.", class_="note")
