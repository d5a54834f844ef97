"""Drawing functions for each curve of a report. To add one: a module with a function per form, and a line here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from osfmodel.planning.report import Scaling, SizeCurve
from osfmodel.show.curves import scaling, scatter, sizes
from osfmodel.show.html.markup import Markup
from osfmodel.show.pictures import Curve
from osfmodel.show.pictures.scatter import Scatter


@dataclass(frozen=True, slots=True)
class Drawing:
    """A type of curve, with a drawing function for each form.

    key, title: id and heading of its section of a page
    section:    (curve) -> content of that section
    terminal:   (console, curve), prints it
    axes:       (axes of matplotlib, curve), draws on them
    """

    key: str
    title: str
    section: Callable[[Any], Iterable[Markup]]
    terminal: Callable[[Any, Any], None]
    axes: Callable[[Any, Any], None]


CURVES: Mapping[type[Curve], Drawing] = {
    Scaling: Drawing("workers", "More workers", scaling.workers, scaling.show_scaling, scaling.draw_scaling),
    SizeCurve: Drawing("sizes", "Bucket size", sizes.sizes, sizes.show_sizes, sizes.draw_sizes),
    Scatter: Drawing(
        "evidence",
        "Runs of the sources of the error band",
        scatter.evidence,
        scatter.show_scatter,
        scatter.draw_scatter,
    ),
}
"""The drawing of each type of curve."""
