"""The report as one HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from osfmodel.engine.bands import NEAREST, Band
from osfmodel.entities.display import show_bytes, show_predicted_time, show_share, show_time
from osfmodel.entities.measurement import Source
from osfmodel.planning.report import Report
from osfmodel.planning.results import Prediction
from osfmodel.show.page import Markup, document, element, figure_words, folded, header, key, percent, section, table
from osfmodel.show.plans import PLANS, band_text, plan_rows, times
from osfmodel.show.report import KERNELS, Pictures, coarse, iteration
from osfmodel.show.report.curves import CURVES
from osfmodel.show.report.gantt import Gantt
from osfmodel.show.table import PAGE, for_people, texts

LARGEST = 1_000_000
"""Bytes that a page stays below, so that it can be mailed: on a larger page short bars are merged."""
CELLS = (None, 3200, 1600, 800, 400, 200, 100)
"""Parts of an iteration for merging bars (:func:`osfmodel.show.report.coarse`), the finest first."""
IDLE = 0.1
"""Fraction of a step without computation or communication from which the page points it out."""
FEW = 100
"""Number of collectives in a plan up to which each is drawn by itself, however large the page."""


def page(pictures: Pictures, version: str) -> str:
    """The page as text, with as many bars as :data:`LARGEST` allows; the same text for the same pictures."""
    texts = (_page(pictures, version, cells) for cells in CELLS)
    return next((text for text in texts if len(text.encode()) < LARGEST), None) or _page(pictures, version, CELLS[-1])


def _page(pictures: Pictures, version: str, cells: int | None) -> str:
    return document(pictures.report.title, "report", version, _sections(pictures, cells), "report.js")


def _sections(pictures: Pictures, cells: int | None) -> Iterable[Markup]:
    yield _header(pictures)
    yield section("iteration", "One iteration", _iteration(pictures, cells))
    yield section("plans", "Plan by plan", plans(pictures.report))
    for curve in pictures.curves:
        shown = CURVES[type(curve)]
        yield section(shown.key, shown.title, shown.section(curve))
    yield section("assumed", "Assumptions and sources", _assumed(pictures.report))


def _header(pictures: Pictures) -> Markup:
    report = pictures.report
    return header(
        report.workload.name,
        report.where,
        report.verdict,
        element("dl", *(_tile(*tile) for tile in _tiles(report)), class_="tiles"),
        *(element("dl", *(_strip(report, gantt) for gantt in pictures.measured), class_="strips")
          for _ in pictures.measured[:1]),
        *(element("p", element("strong", "What limits the traced job: "), why, class_="why") for why in report.why),
        *(element("p", doubt, class_="doubt") for doubt in report.doubts),
    )  # fmt: skip


def _tiles(report: Report) -> list[tuple[str, str, str]]:
    """Name, figure and explanation of each headline figure."""
    default, tuned, workers = report.default, report.tuned, report.comparison.workers
    change = round(tuned.iteration_time / default.iteration_time - 1, 3) + 0.0
    return [
        (f"Default ({default.name})", show_predicted_time(default.iteration_time), _buckets(default)),
        (
            f"Tuned for {report.tuning.target}",
            show_predicted_time(tuned.iteration_time),
            f"{show_share(change, '+')}, {_buckets(tuned)}",
        ),
        ("Bound", show_predicted_time(report.bound), f"by the rules of {default.name}"),
        ("Single-worker time", show_predicted_time(default.alone), "without communication"),
        ("Speed-up, tuned", times(tuned.scaling_factor * workers), f"scaling factor {tuned.scaling_factor:.3f}"),
        (
            "Error band",
            band_width(tuned.band),
            "covers 90 % of comparable runs"
            if tuned.band and not tuned.band.kind.endswith(NEAREST)
            else "nothing comparable measured",
        ),
    ]


def _strip(report: Report, gantt: Gantt) -> Markup:
    """A measured step, and the predictions to compare it with."""
    against = report.comparison.predictions[report.shown]
    idle = 1 - gantt.computing - gantt.exposed_time / gantt.end
    pauses = f"; for {idle:.0%} it does not, nor communicates, which a workload made of the trace has as computation"
    words = (
        f"{gantt.name}. The device computes for {gantt.computing:.0%} of it{pauses if idle > IDLE else ''}. "
        f"Predicted, {against.name}: {_beside(against, gantt)}. Tuned: {_beside(report.tuned, gantt)}."
    )
    return element("div", element("dt", "Measured"), element("dd", element("strong", show_time(gantt.end))),
                   element("dd", words), class_="strip")  # fmt: skip


def _beside(prediction: Prediction, gantt: Gantt) -> str:
    """A predicted time, and how much it differs from the measured step."""
    apart = show_share(prediction.iteration_time / gantt.end - 1, "+")
    return f"{show_predicted_time(prediction.iteration_time)} ({apart})"


def _tile(name: str, figure: str, words: str) -> Markup:
    return element("div", element("dt", name), element("dd", element("strong", figure), element("small", words)))


def _buckets(prediction: Prediction) -> str:
    count = len(prediction.plan.buckets)
    return f"{count} bucket{'' if count == 1 else 's'}"


def _iteration(pictures: Pictures, cells: int | None) -> Iterable[Markup]:
    predicted = [_coarse(gantt, cells) for gantt in pictures.predicted]
    measured = [_coarse(gantt, cells) for gantt in pictures.measured]
    longest, shown = max((gantt.end for gantt in measured), default=0.0), pictures.report.shown
    yield _switch(predicted, shown)
    yield _tools()
    names, drawn = [], []
    for place, gantt in enumerate(predicted):
        end = max(gantt.end, longest)
        parts = {"data_plan": place, "hidden": place != shown, "class_": "block"}
        names.append(element("div", _caption(gantt), iteration.names(gantt), **parts))
        chart = iteration.lanes(gantt, f"p{place}", gantt.end / end)
        drawn.append(element("div", _space(gantt), chart, data_end=repr(end), **parts))
    for place, gantt in enumerate(measured):
        names.append(element("div", _caption(gantt), iteration.names(gantt), class_="block"))
        chart = iteration.lanes(gantt, f"m{place}", gantt.end / max(predicted[shown].end, longest))
        drawn.append(element("div", _space(gantt), chart, class_="block measured", data_length=repr(gantt.end)))
    drawn.append(iteration.axis(max(predicted[shown].end, longest)))
    inner = element("div", *drawn, class_="inner")
    scroll = element(
        "div",
        inner,
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label="The iteration over time; plus and minus zoom",
    )
    yield element("div", element("div", *names, class_="names"), scroll, class_="gantt")
    yield iteration.legend([*predicted, *measured])
    yield from _joined([*predicted, *measured], cells)
    yield element(
        "div", element("p", "Hover, tap or focus a bar for details."),
        class_="details", id="details", aria_live="polite",
    )  # fmt: skip
    for place, gantt in enumerate(predicted):
        table = iteration.table(gantt, f"p{place}")
        summary = f"Collectives of {gantt.name} as a table ({iteration.number_of(gantt)})"
        yield folded(summary, table, data_plan=place, hidden=place != shown)
    for place, gantt in enumerate(measured):
        yield folded(f"Collectives measured: {gantt.name}", iteration.table(gantt, f"m{place}"))


def _coarse(gantt: Gantt, cells: int | None) -> Gantt:
    return coarse(gantt, cells if len(gantt.collectives) > FEW else None)


def _joined(gantts: Sequence[Gantt], cells: int | None) -> Iterable[Markup]:
    """Notes on bars that represent several operations."""
    bars = [(gantt, bar) for gantt in gantts for lane in gantt.lanes for bar in lane.bars]
    if any(gantt.measured and not bar.sends and bar.busy is not None for gantt, bar in bars):
        words = (
            f"Neighbouring operations of one kind shorter than 1/{KERNELS} of a measured step are merged into one bar; "
            "its height is the fraction of its time in which the device is busy."
        )
        yield element("p", words, class_="note")
    if any(bar.sends and bar.parts > 1 for _, bar in bars):
        words = (
            f"Too many collectives for a page: neighbours shorter than 1/{cells} of the iteration are merged into one "
            "row and one bar; its height is the fraction of its time in which a collective runs. "
            "To see each of them in Perfetto: -o iteration.json.gz."
        )
        yield element("p", words, class_="note")


def _caption(gantt: Gantt) -> Markup:
    return element("p", "measured" if gantt.measured else "predicted", class_="caption")


def _space(gantt: Gantt) -> Markup:
    """A caption above the drawing, as high as the one beside it."""
    times = f"{gantt.shown(gantt.end)}, {gantt.shown(gantt.exposed_time)} exposed"
    words = f"{times}: {gantt.name}" if gantt.measured else f"{gantt.name}: {times}"  # what a phone cuts off comes last
    return element("p", words, class_="caption")


def _switch(gantts: Sequence[Gantt], shown: int) -> Markup:
    """Radio buttons that choose the plan to show, so that the keyboard works as everywhere."""
    choices = []
    for place, gantt in enumerate(gantts):
        button = element("input", type="radio", name="plan", value=place, checked=place == shown, autocomplete="off")
        words = element("span", gantt.name, element("small", gantt.shown(gantt.end)))
        choices.append(element("label", button, words))
    return element("fieldset", element("legend", "Plan"), *choices, class_="switch")


def _tools() -> Markup:
    buttons = (("Zoom in", "in", "+"), ("Zoom out", "out", "\N{MINUS SIGN}"), ("Show all", "all", "Show all"))
    hint = "Ctrl + wheel zooms; drag or scroll to move; arrow keys go from bar to bar."
    return element("div", *(_button(*one) for one in buttons), element("span", hint, class_="hint"), class_="tools")


def _button(label: str, action: str, text: str) -> Markup:
    return element("button", text, type="button", data_zoom=action, aria_label=label, title=label)


def _source(source: Source) -> list[tuple[str, str]]:
    """The parts of a source that are known, by name."""
    stated = (
        ("source", source.origin),
        ("conditions", source.conditions),
        ("licence", source.licence),
        ("GPU", source.gpu),
    )
    return [(name, text) for name, text in stated if text != Source().origin]


def _assumed(report: Report) -> Iterable[Markup]:
    workload, cluster = report.comparison.workload, report.comparison.cluster
    band = report.tuned.band
    facts = [
        *((name, value) for name, value in report.inputs),
        ("gradients", f"{show_bytes(workload.gradient_bytes)} in {len(workload.gradients)} tensors"),
        ("batch per worker", "not stated" if workload.batch_size is None else str(workload.batch_size)),
        ("cost model", cluster.cost_model),
        *((f"workload: {name}", text) for name, text in _source(workload.source)),
        *((f"cluster: {name}", text) for name, text in _source(cluster.source)),
    ]
    if band is not None:
        within = f"nine tenths of runs, as {band.runs} measured ones ({band.kind}) were"
        facts.append(("error band", f"{band_width(band)}: {within}. Sources: {', '.join(band.sources)}"))
    yield element(
        "dl", *(element("div", element("dt", name), element("dd", value)) for name, value in facts), class_="facts"
    )
    if report.notes:
        notes = (element("li", f"{note} ", element("small", f"({', '.join(names)})")) for note, names in report.notes)
        yield element("ul", *notes, class_="notes")


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
