"""Segments of a workload: parts of the model that can be recomputed in backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from osfmodel.entities.display import brief, show_bytes
from osfmodel.entities.errors import DataError, require_count, require_name
from osfmodel.entities.records import dataclass


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the model, such as a residual or transformer block, that can be recomputed in backward.

    name:        of the module
    first, last: the layers that it spans, in the order of the workload
    kept_bytes:  of activations that it keeps from forward to backward, without its output: recomputing it frees
                 them until then
    """

    name: str
    first: str
    last: str
    kept_bytes: int

    def __post_init__(self) -> None:
        require_name(self.name, "the name of a segment")
        require_count(self.kept_bytes, f"kept bytes of segment {self.name!r}")

    def __repr__(self) -> str:
        return brief(self, f"{self.name}: {show_bytes(self.kept_bytes)} kept, {self.first} to {self.last}")


def span_of(segment: Segment, places: Mapping[str, int]) -> slice:
    """The slice of the layers that a segment spans; ``places``: of the layers, by name."""
    return slice(places[segment.first], places[segment.last] + 1)


def require_segments(segments: Sequence[Segment], layers: Sequence[str], workload: str) -> None:
    """Raise DataError for segments of a workload without layers, out of order or with a layer or a name in common."""
    places = {name: place for place, name in enumerate(layers)}
    before, names = 0, set()
    for segment in segments:
        for name in (segment.first, segment.last):
            if name not in places:
                raise DataError(f"segment {segment.name!r} of workload {workload!r} has no layer {name!r}")
        span = span_of(segment, places)
        if span.start < before or span.stop <= span.start or segment.name in names:
            raise DataError(
                f"segment {segment.name!r} of workload {workload!r} is empty, is there twice, or has layers of the "
                "segment before it: segments follow each other as the layers do"
            )
        before = span.stop
        names.add(segment.name)
