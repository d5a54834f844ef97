"""A scaling curve as a picture, and as one page for a compute proposal: figures, curve, sources, command."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from osfmodel.planning.scaling.curve import ScaleCurve, ScalePoint
from osfmodel.planning.scaling.goals import Answer
from osfmodel.show.page import (
    SHAPES,
    UP,
    Axis,
    Markup,
    Scale,
    cells,
    curve,
    document,
    down,
    element,
    header,
    key,
    mark,
    percent,
    plot,
    rows_table,
    section,
)
from osfmodel.show.picture import COLOURS, even_ticks, figure_of, finish, save
from osfmodel.show.scale import RateAt, combination_columns, curve_words, rates, told_columns, unit_of
from osfmodel.show.table import PAGE, Column, amount, for_people, texts


def by_strategy(found: Sequence[RateAt]) -> dict[str, list[RateAt]]:
    """The rates of each strategy, in the order in which these first appear."""
    own: dict[str, list[RateAt]] = {}
    for one in found:
        own.setdefault(one.strategy, []).append(one)
    return own


def plot_scale(curve: ScaleCurve, path: str) -> None:
    """Write the picture. Raises UsageError where matplotlib is missing, DataError where it cannot be written."""
    figure = figure_of((8.0, 4.5))
    axes = figure.subplots()
    found = rates(curve.points)
    counts = [one.workers for one in found]
    banded = [one for one in found if one.high > one.low]
    if banded:
        axes.vlines([one.workers for one in banded], [one.low for one in banded], [one.high for one in banded],
                    color=COLOURS[5], linewidth=5, alpha=0.6, label="90 % error band")  # fmt: skip
    axes.plot(counts, [one.rate for one in found], color="#999999", linewidth=1.2)
    for number, (name, own) in enumerate(by_strategy(found).items()):
        axes.plot([one.workers for one in own], [one.rate for one in own], marker="osD^"[number % 4],
                  color=COLOURS[number % len(COLOURS)], label=name, linestyle="none")  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts], fontsize=8)
    axes.minorticks_off()
    axes.set_ylim(0, None)
    changes = f"\nwith {curve.changes}" if curve.changes else ""
    axes.set(
        xlabel="GPUs", ylabel=unit_of(curve.points), title=f"{curve_words(curve)} on {curve.cluster.name}{changes}"
    )
    finish(axes, "lower left")
    save(figure, path)


STYLES = 3
"""Number of styles of marks."""


def proposal(made: ScaleCurve, answers: Sequence[Answer], command: str, version: str) -> str:
    """The page as text; ``command``: the command line that prints its figures."""
    return document(f"{made.workload.name}: scaling", "scale", version, _sections(made, answers, command))


def _sections(made: ScaleCurve, answers: Sequence[Answer], command: str) -> Iterable[Markup]:
    changed = f", with {made.changes}" if made.changes else ""
    yield header(
        curve_words(made),
        f"Training on {made.cluster.name}{changed}",
        made.turns,
        *(element("p", one.words, class_="why") for one in answers),
        *(element("p", one, class_="doubt") for one in made.warnings),
    )
    yield section("scaling", "Number of GPUs", _scaling(made))
    if every := made.combinations:
        table = _table(combination_columns(every), every)
        yield section("combinations", "All combinations (best: the one to take)", [table])
    yield section("assumed", "Assumptions and sources", _assumed(made))
    yield section("command", "Command", [element("p", "These figures come from"), element("pre", command)])


def _scaling(made: ScaleCurve) -> Iterable[Markup]:
    points = list(made.points)
    yield _table(told_columns(points), points)
    found = rates(points)
    if len(found) > 1:
        yield _plot(found, unit_of(points))
    yield element(
        "p",
        "Scaling: the time with perfect scaling over that of the step. Error band: the step of nine in ten comparable "
        "runs was within it. MFU: operations of the model, nothing recomputed, over those of the GPU's data sheet.",
        class_="note",
    )


def _table(told: Sequence[Column[ScalePoint]], points: Iterable[ScalePoint]) -> Markup:
    columns = for_people(told, PAGE)
    rows = (cells(texts(columns, point)) for point in points)
    return element("div", rows_table("", [one.heading(PAGE) for one in columns], rows), class_="tablebox")


def _plot(found: Sequence[RateAt], unit: str) -> Markup:
    """The rate of each GPU, with its error band as an upright line."""
    counts = [one.workers for one in found]
    across = Axis(Scale(counts[0], counts[-1], True), counts, lambda tick: f"{tick:g}", "GPUs")
    highest = max(one.high for one in found)
    step = even_ticks(0, highest, UP)[1]
    top = step * math.ceil(highest / step)
    up = Axis(Scale(0, top), even_ticks(0, top, UP), amount, unit)
    drawn: list[Markup] = []
    names: list[tuple[str, str | None, str]] = []
    for one in found:
        x = percent(across.scale.place(one.workers))
        ends = {"y1": down(up.scale.place(one.low)), "y2": down(up.scale.place(one.high))}
        drawn.append(element("line", x1=x, x2=x, **ends, class_="line bound"))
    drawn.append(curve([(one.workers, one.rate) for one in found], across, up, "s0"))
    for number, (name, own) in enumerate(by_strategy(found).items()):
        style, shape = f"s{number % STYLES}", SHAPES[number % len(SHAPES)]
        for one in own:
            say = f"{one.workers} GPUs, {name}: {amount(one.rate)} {unit}, {amount(one.low)} to {amount(one.high)}"
            drawn.append(mark(across.scale.place(one.workers), up.scale.place(one.rate), shape, style, say))
        names.append((style, shape, name))
    names.append(("bound", None, "error band"))
    return plot(across, up, drawn, f"Rate in {unit}", "The table above has every value.") + key(names)


def _assumed(made: ScaleCurve) -> Iterable[Markup]:
    workload, cluster = made.workload.source, made.cluster.source
    said = [f"Computation: {workload.origin}; {workload.conditions}."]
    worded = made.cluster.name.startswith(f"{made.cluster.cost_model}:")
    prices = f"prices of the cost model {made.cluster.cost_model} for {made.cluster.name}, by data sheets"
    said.append(f"Network: {prices if worded else f'{cluster.origin}; {cluster.conditions}'}.")
    if made.learned is not None:
        said.append(made.learned.sentence)
    elif made.anchored is not None:
        said.append(f"One measured step was given: computation takes {made.anchored:.3g} times as long as without it.")
    bands = {point.band.kind: point.band for point in made.points if point.band is not None}
    for kind, band in bands.items():
        learned = f"{band.runs} measured runs of {len(band.sources)} sources: {', '.join(band.sources)}"
        said.append(
            f"Error band ({kind}): {learned if band.runs else 'how far counted times of computation were off'}."
        )
    yield element(
        "ul", *(element("li", one) for one in [*said, *(f"{note[:1].upper()}{note[1:]}." for note in made.notes)])
    )
