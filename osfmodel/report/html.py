"""The report as one HTML page: everything in it, nothing fetched, readable without its script and on paper.

Its content security policy allows this style and this script by their hashes and nothing else, so that a name that were
not escaped could still not run.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from importlib.resources import files

from osfmodel.picture import Pictures
from osfmodel.picture.gantt import Gantt
from osfmodel.predict import Prediction
from osfmodel.report import iteration
from osfmodel.report.curves import CURVES
from osfmodel.report.markup import Markup, element, folded, joined
from osfmodel.report.plans import band_width, plans
from osfmodel.source import Source
from osfmodel.units import show_bytes, show_time

ICON = "data:,"
"""An empty icon, so that no browser asks a server for one."""


def page(pictures: Pictures, version: str) -> str:
    """The page as text; the same for the same pictures."""
    style, script = _asset("report.css"), _asset("report.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="generator", content=f"osfmodel {version}"),
        element("title", pictures.title),
        element("link", rel="icon", href=ICON),
        element("style", Markup(style)),
    )
    body = element("body", iteration.patterns(), element("main", *_sections(pictures, version)), _script(script))
    return f"<!doctype html>\n{element('html', head, body, lang='en').text}\n"


def _script(text: str) -> Markup:
    return element("script", Markup(text))


def _asset(name: str) -> str:
    return files("osfmodel.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()


def _sections(pictures: Pictures, version: str) -> Iterable[Markup]:
    yield _header(pictures)
    yield _section("iteration", "One iteration", _iteration(pictures))
    yield _section("plans", "Plan by plan", plans(pictures))
    for curve in pictures.curves:
        shown = CURVES[type(curve)]
        yield _section(shown.key, shown.title, shown.content(curve))
    yield _section("assumed", "What this takes for granted", _assumed(pictures))
    yield element("footer", f"Written by osf report, osfmodel {version}.")


def _section(key: str, title: str, content: Iterable[Markup]) -> Markup:
    heading = element("h2", title, id=f"{key}-title")
    return element("section", heading, *content, id=key, aria_labelledby=f"{key}-title")


def _header(pictures: Pictures) -> Markup:
    request = pictures.request
    return element(
        "header",
        element("h1", request.workload.name),
        element("p", pictures.where, class_="where"),
        element("p", pictures.tuning.verdict, class_="verdict"),
        element("dl", *(_tile(*tile) for tile in _tiles(pictures)), class_="tiles"),
    )


def _tiles(pictures: Pictures) -> list[tuple[str, str, str]]:
    """Name, figure and a few more words of each headline figure."""
    default, tuned, workers = pictures.default, pictures.tuned, pictures.request.workers
    change = tuned.iteration_time / default.iteration_time - 1
    tiles = [
        (f"Default ({default.name})", show_time(default.iteration_time), _buckets(default)),
        (f"Tuned for {pictures.request.target}", show_time(tuned.iteration_time), f"{change:+.1%}, {_buckets(tuned)}"),
        ("Lower bound", show_time(pictures.bound), f"by the rules of {default.name}"),
        ("One worker alone", show_time(default.alone), "computation only"),
        ("Speed-up, tuned", f"{tuned.scaling_factor * workers:.4g}x", f"scaling factor {tuned.scaling_factor:.3f}"),
        ("Error band", band_width(tuned.band), "nine in ten runs measured" if tuned.band else "nothing measured alike"),
    ]
    tiles += [("Measured", show_time(gantt.end), gantt.name) for gantt in pictures.measured]
    return tiles


def _tile(name: str, figure: str, words: str) -> Markup:
    return element("div", element("dt", name), element("dd", element("strong", figure), element("small", words)))


def _buckets(prediction: Prediction) -> str:
    count = len(prediction.plan.buckets)
    return f"{count} bucket{'' if count == 1 else 's'}"


def _iteration(pictures: Pictures) -> Iterable[Markup]:
    predicted = [gantt.coarse() for gantt in pictures.predicted]
    measured = [gantt.coarse() for gantt in pictures.measured]
    longest = max((gantt.end for gantt in measured), default=0.0)
    yield _switch(predicted)
    yield _tools()
    names, drawn = [], []
    for place, gantt in enumerate(predicted):
        end = max(gantt.end, longest)
        parts = {"data_plan": place, "hidden": place > 0, "class_": "block"}
        names.append(element("div", _caption(gantt), iteration.names(gantt), **parts))
        chart = iteration.lanes(gantt, f"p{place}", gantt.end / end)
        drawn.append(element("div", _space(gantt), chart, data_end=repr(end), **parts))
    for place, gantt in enumerate(measured):
        names.append(element("div", _caption(gantt), iteration.names(gantt), class_="block"))
        chart = iteration.lanes(gantt, f"m{place}", gantt.end / max(predicted[0].end, longest))
        drawn.append(element("div", _space(gantt), chart, class_="block measured", data_length=repr(gantt.end)))
    drawn.append(iteration.axis(max(predicted[0].end, longest)))
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
    yield element(
        "div", element("p", "Point at a bar, tap it, or reach it with Tab and the arrow keys: what it is stands here."),
        class_="details", id="details", aria_live="polite",
    )  # fmt: skip
    for place, gantt in enumerate(predicted):
        table = iteration.table(gantt, f"p{place}")
        summary = f"Collectives of {gantt.name} as a table ({len(gantt.collectives)})"
        yield folded(summary, table, data_plan=place, hidden=place > 0)
    for place, gantt in enumerate(measured):
        yield folded(f"Collectives measured: {gantt.name}", iteration.table(gantt, f"m{place}"))


def _caption(gantt: Gantt) -> Markup:
    return element("p", "measured" if gantt.measured else "predicted", class_="caption")


def _space(gantt: Gantt) -> Markup:
    """What stands above the drawing, as high as the caption beside it."""
    return element(
        "p", f"{gantt.name}: {show_time(gantt.end)}, {show_time(gantt.exposed_time)} exposed", class_="caption"
    )


def _switch(gantts: Sequence[Gantt]) -> Markup:
    """One of the plans is shown; radio buttons, so that the keyboard works as everywhere."""
    choices = []
    for place, gantt in enumerate(gantts):
        button = element("input", type="radio", name="plan", value=place, checked=place == 0, autocomplete="off")
        words = element("span", gantt.name, element("small", show_time(gantt.end)))
        choices.append(element("label", button, words))
    return element("fieldset", element("legend", "Plan"), *choices, class_="switch")


def _tools() -> Markup:
    buttons = (("Zoom in", "in", "+"), ("Zoom out", "out", "\N{MINUS SIGN}"), ("Show all", "all", "Show all"))
    hint = "Ctrl + wheel zooms; drag or scroll to move; arrow keys go from bar to bar."
    return element("div", *(_button(*one) for one in buttons), element("span", hint, class_="hint"), class_="tools")


def _button(label: str, action: str, text: str) -> Markup:
    return element("button", text, type="button", data_zoom=action, aria_label=label, title=label)


def _source(source: Source) -> list[tuple[str, str]]:
    """What is stated of where figures come from."""
    stated = (("source", source.origin), ("conditions", source.conditions), ("licence", source.licence))
    return [(name, text) for name, text in stated if text != Source().origin]


def _assumed(pictures: Pictures) -> Iterable[Markup]:
    request = pictures.request
    workload, cluster = pictures.comparison.workload, request.cluster
    band = pictures.tuned.band
    facts = [
        *((name, value) for name, value in request.inputs),
        ("gradients", f"{show_bytes(workload.gradient_bytes)} in {len(workload.gradients)} tensors"),
        ("batch per worker", "not stated" if workload.batch_size is None else str(workload.batch_size)),
        ("cost model", cluster.cost_model),
        *((f"workload: {name}", text) for name, text in _source(workload.source)),
        *((f"cluster: {name}", text) for name, text in _source(cluster.source)),
    ]
    if band is not None:
        nearest = ", of the nearest regime that was measured" if band.nearest else ""
        within = f"nine tenths of {band.runs} measured runs that communicate alike{nearest} were within it"
        facts.append(("error band", f"{band_width(band)}: {within}; from {', '.join(band.sources)}"))
    yield element(
        "dl", *(element("div", element("dt", name), element("dd", value)) for name, value in facts), class_="facts"
    )
    notes = [element("li", f"{note} ", element("small", f"({', '.join(names)})")) for note, names in pictures.notes]
    yield element("ul", *notes, class_="notes") if notes else joined()
