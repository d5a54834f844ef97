"""Plans side by side: a bar for each, and a table."""

from __future__ import annotations

from collections.abc import Iterable

from osfmodel.engine.bands import Band
from osfmodel.entities.display import show_predicted_time
from osfmodel.planning.report import Report
from osfmodel.show.html.axes import key
from osfmodel.show.html.markup import Markup, element, figure_words, folded, percent, table
from osfmodel.show.tables import PAGE, for_people, texts
from osfmodel.show.tables.plans import PLANS, band_text, plan_rows

NONE = "none"
"""Text on a page for a cell that a terminal leaves empty."""
LONGEST = 13
"""Maximum characters of a plan's name beside its bar; the table has the whole name."""
PLANS_LANE = 26
"""Height of a plan's bar in the comparison of plans, in pixels."""


def plans(report: Report) -> Iterable[Markup]:
    """The plot of the plans, its legend and its table."""
    yield element(
        "figure",
        plans_plot(report),
        figure_words(
            f"Single-worker time: {show_predicted_time(report.default.alone)}; communication, and computation that is "
            "slower among others, add the rest."
        ),
    )
    rules = f"the rules of {report.default.name}"
    words = f"no schedule by {rules} is faster at these prices: {show_predicted_time(report.bound)}"
    yield key([("bound", None, words)])
    columns = for_people(PLANS, PAGE)
    rows = [[text or NONE for text in texts(columns, row)] for row in plan_rows(report.comparison)]
    yield folded("Plans as a table", table("Every plan", [one.heading(PAGE) for one in columns], rows, "ending"))


def plans_plot(report: Report) -> Markup:
    """A bar for each plan: computation and exposed communication, with a line at the bound."""
    predictions = report.comparison.predictions
    longest = max(one.iteration_time for one in predictions)
    rows, names = [], []
    for place, one in enumerate(predictions):
        y, first = 2 + place * PLANS_LANE, min(one.timeline.compute_time, one.iteration_time)
        exposed = show_predicted_time(one.iteration_time - first)
        say = f"{one.name}: {show_predicted_time(one.iteration_time)}, {exposed} of it exposed"
        bars = [element("rect", x="0", y=y, width=percent(first / longest), height=18, class_="bar backward")]
        rest = {"x": percent(first / longest), "y": y, "width": percent((one.iteration_time - first) / longest)}
        bars += [element("rect", **rest, height=18, class_=style) for style in ("fill", "exposed")]
        rows.append(element("g", *bars, role="img", aria_label=say, tabindex="0", data_say=say, class_="point"))
        names.append(element("text", _short(one.name), x="0", y=y + 14))
        names.append(element("text", show_predicted_time(one.iteration_time), x="100%", y=y + 14, class_="right"))
    tall = 4 + len(predictions) * PLANS_LANE
    at = percent(report.bound / longest)
    rows.append(element("line", x1=at, x2=at, y1=0, y2=tall - 4, class_="line bound"))
    label = "Iteration time of each plan: computation, and what communication adds"
    chart = element("svg", element("title", label), *rows, width="100%", height=tall, role="group", aria_label=label)
    margin = element("svg", *names, width="100%", height=tall, class_="plannames", aria_hidden="true")
    return element("div", margin, chart, class_="plans")


def _short(name: str) -> str:
    """The end of a long name: a file's own name says more than its folder."""
    return name if len(name) <= LONGEST else "…" + name[1 - LONGEST :]


def band_width(band: Band | None) -> str:
    """Both ends of an error band, in words."""
    return band_text(band) or NONE
