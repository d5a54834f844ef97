"""The iteration as SVG: lanes of bars for each plan, which stretch with the page, and the table of its collectives."""

from __future__ import annotations

from collections.abc import Sequence

from osfmodel.entities.display import show_bytes, show_time
from osfmodel.entities.rounding import plain_sum
from osfmodel.show.page import Markup, cells, element, percent, rows_table
from osfmodel.show.picture import even_ticks, time_unit
from osfmodel.show.report.gantt import KINDS, Bar, Gantt, kinds_of

LANE, GAP, TOP = 30, 10, 6
"""Pixels: of a lane, between two lanes, and above the first."""
LEAST = 1
"""Minimum height of a bar, in pixels."""
AXIS = 30
"""Height of the axis, in pixels."""
NUMBERED = 0.06
"""Minimum width of a bar that carries its number, as a fraction of the page."""
HEADS = ("#", "what", "size", "tensors", "layers", "ready", "start", "end", "takes", "exposed", "rate")
"""Headings of the table of collectives; a measured one was submitted, and its tensors are not known."""
TICKS = 5
"""Ticks on the time axis before zooming."""


def lanes(gantt: Gantt, key: str, width: float) -> Markup:
    """The bars of a chart, ``width`` of the drawing wide; bars of collectives link to rows of :func:`table`."""
    rows = {bar: number for number, bar in enumerate(gantt.collectives)}
    drawn = []
    for place, lane in enumerate(gantt.lanes):
        y = TOP + place * (LANE + GAP)
        drawn.append(element("rect", x="0", y=y, width="100%", height=LANE, class_="lane"))
        for bar in lane.bars:
            part = width * bar.duration / gantt.end
            drawn.append(_collective(bar, y, gantt, f"{key}-{rows[bar]}", part) if bar.sends else _bar(bar, y, gantt))
    title = element("title", f"{_kind(gantt)} iteration, {gantt.name}: {gantt.shown(gantt.end)}")
    desc = element("desc", description(gantt))
    inner = element("svg", *drawn, *_marks(gantt), width=percent(width), height=height(gantt), class_="span")
    label = f"{key}-title"
    return element(
        "svg", element("g", title, id=label), desc, inner, class_="lanes", width="100%", height=height(gantt),
        role="group", aria_label=f"{_kind(gantt)} iteration, {gantt.name}", data_chart=key,
    )  # fmt: skip


def names(gantt: Gantt) -> Markup:
    """The names of the lanes, in a column beside them."""
    texts = [
        element("text", lane.name, x="0", y=TOP + place * (LANE + GAP) + LANE / 2 + 4)
        for place, lane in enumerate(gantt.lanes)
    ]
    return element("svg", *texts, width="100%", height=height(gantt), aria_hidden="true")


def axis(end: float) -> Markup:
    """The time axis under the lanes; the script draws a finer one after zooming."""
    unit, factor = time_unit(end)
    drawn = []
    for tick in even_ticks(0, end * factor, TICKS):
        at = percent(tick / (end * factor))
        drawn.append(element("line", x1=at, x2=at, y1=0, y2=5))
        drawn.append(element("text", f"{tick:g} {unit}" if tick else "0", x=at, y=19))
    return element("svg", *drawn, class_="axis", width="100%", height=AXIS, aria_hidden="true")


def height(gantt: Gantt) -> int:
    """Height of the chart, in pixels."""
    return TOP + len(gantt.lanes) * (LANE + GAP)


def description(gantt: Gantt) -> str:
    """The chart in a sentence."""
    bars, count = gantt.collectives, number_of(gantt)
    collectives = f"{count} collective{'' if count == 1 else 's'}"
    busy = gantt.shown(plain_sum(bar.busy_time for bar in bars))
    return (
        f"{collectives} take {busy}, of which {gantt.shown(gantt.exposed_time)} "
        "exposed, while nothing computes. The table below has every collective."
    )


def number_of(gantt: Gantt) -> int:
    """Number of collectives that are drawn one by one."""
    return sum(bar.parts for bar in gantt.collectives)


def table(gantt: Gantt, key: str) -> Markup:
    """A table of the collectives that are drawn, in the order in which they start."""
    heads: Sequence[str] = HEADS
    if gantt.measured:
        heads = ["submitted" if head == "ready" else head for head in HEADS if head not in ("tensors", "layers")]
    rows = (cells(_texts(bar, gantt), id=f"{key}-{number}") for number, bar in enumerate(gantt.collectives))
    caption = f"Collectives of {gantt.name}, {_kind(gantt).lower()}"
    return rows_table(caption, heads, rows, "wide" if gantt.measured else "wide planned")


def _texts(bar: Bar, gantt: Gantt) -> list[str]:
    number = "" if bar.bucket is None else str(bar.bucket + 1)
    size = "not known" if bar.bytes is None else show_bytes(bar.bytes)
    ends = bar.layers if len(bar.layers) < 3 else (bar.layers[0], "…", bar.layers[-1])
    tensors = [] if gantt.measured else [str(len(bar.layers)), " ".join(ends)]
    times = ("" if bar.ready is None else show_time(bar.ready), show_time(bar.start), show_time(bar.end))
    rate = "" if bar.rate is None else f"{bar.rate / 1e9:.3g} GB/s"
    return [number, _what(bar), size, *tensors, *times, show_time(bar.duration), show_time(bar.exposed_time), rate]


def _bar(bar: Bar, y: int, gantt: Gantt) -> Markup:
    return element(
        "rect", **_box(bar.start, bar.end, y, gantt, bar.coverage), class_=f"bar {bar.look}{_odd(bar)}",
        data_bucket=bar.bucket, data_say=_sentence(bar),
    )  # fmt: skip


def _collective(bar: Bar, y: int, gantt: Gantt, row: str, part: float) -> Markup:
    """A bar with its exposed parts hatched, and with its number if ``part`` of the width has room for it."""
    drawn = [element("rect", **_box(bar.start, bar.end, y, gantt, bar.coverage), class_=f"fill{_odd(bar)}")]
    if bar.parts == 1:
        drawn += [element("rect", **_box(start, end, y, gantt), class_="exposed") for start, end in bar.exposed]
    elif bar.exposed:
        share = bar.exposed_time / bar.duration
        drawn.append(element("rect", **_box(bar.start, bar.end, y, gantt, share), class_="exposed"))
    if bar.bucket is not None and part >= NUMBERED:
        middle = percent((bar.start + bar.end) / 2 / gantt.end)
        drawn.append(element("text", str(bar.bucket + 1), x=middle, y=y + LANE / 2 + 4))
    return element(
        "g", *drawn, class_="bar collective", tabindex="0" if row.endswith("-0") else "-1", role="img",
        aria_label=_sentence(bar), data_row=row, data_bucket=bar.bucket,
    )  # fmt: skip


def _box(start: float, end: float, y: int, gantt: Gantt, share: float = 1.0) -> dict[str, object]:
    """The rectangle of a bar: as long as its time, ``share`` of the lane high, at the bottom of the lane."""
    left, width = percent(start / gantt.end), percent((end - start) / gantt.end)
    tall = LANE if share == 1 else max(LEAST, round(share * LANE, 1))
    return {"x": left, "y": y + LANE - tall, "width": width, "height": tall}


def _odd(bar: Bar) -> str:
    """The class that gives every other bucket another shade."""
    return " odd" if bar.bucket is not None and bar.bucket % 2 else ""


def _marks(gantt: Gantt) -> list[Markup]:
    """A line at the time of a single GPU without communication."""
    if gantt.alone is None or gantt.alone >= gantt.end:
        return []
    at = percent(gantt.alone / gantt.end)
    return [element("line", x1=at, x2=at, y1=0, y2=height(gantt) - GAP + 4, class_="alone")]


def _sentence(bar: Bar) -> str:
    when = f"{show_time(bar.start)} to {show_time(bar.end)} ({show_time(bar.duration)})"
    if not bar.sends:
        return f"{_what(bar)}{_of(bar.layers)}: {when}{_busy(bar)}"
    which = "" if bar.bucket is None else f" {bar.bucket + 1}"
    size = "" if bar.bytes is None else f", {show_bytes(bar.bytes)}"
    exposed = f", {show_time(bar.exposed_time)} exposed" if bar.exposed else ", hidden behind computation"
    return f"{_what(bar)}{which}{size}: {when}{exposed}"


def _busy(bar: Bar) -> str:
    return "" if bar.busy is None else f", busy for {show_time(bar.busy)} of it ({bar.coverage:.0%}), {bar.parts} times"


def _of(layers: Sequence[str]) -> str:
    if not layers:
        return ""
    return f" of {layers[0]}" if len(layers) == 1 else f" of {len(layers)} layers, {layers[0]} … {layers[-1]}"


def _what(bar: Bar) -> str:
    if bar.sends and bar.parts > 1:
        return f"{bar.parts} \N{MULTIPLICATION SIGN} {bar.words}"
    return bar.words[:1].upper() + bar.words[1:]


def _kind(gantt: Gantt) -> str:
    return "Measured" if gantt.measured else "Predicted"


def legend(gantts: Sequence[Gantt]) -> Markup:
    """The meaning of colours and hatching."""
    entries = [_entry(f"bar {kind}", KINDS[kind]) for kind in kinds_of(gantts)]
    entries += [_entry("fill", "collective beside computation"), _entry("fill", "exposed: nothing computes", True)]
    entries.append(
        element("li", element("svg", element("line", x1=8, x2=8, y1=0, y2=14, class_="alone"), width=16, height=14),
                "a single worker would end here")
    )  # fmt: skip
    return element("ul", *entries, class_="legend")


def _entry(kind: str, words: str, hatched: bool = False) -> Markup:
    swatch = [element("rect", x=0, y=1, width=16, height=12, class_=kind)]
    if hatched:
        swatch.append(element("rect", x=0, y=1, width=16, height=12, class_="exposed"))
    return element("li", element("svg", *swatch, width=16, height=14, aria_hidden="true"), words)
